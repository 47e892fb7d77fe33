// The tokens of one step that one rank works on, and the scalars of its update. Host values, set between steps.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/model/training_spec.hpp"
#include "core/plan/parallel_plan.hpp"

namespace sextant {

struct MicrobatchTokens {
  std::vector<std::int32_t> ids, targets;  // [micro_batch, seq_len / cp], by sequence, then by local position
  // Likewise, the position at which each token's document begins; empty when documents are not kept apart.
  std::vector<std::int32_t> documents = {};
};

struct StepBatch {
  std::vector<MicrobatchTokens> microbatches;
  std::int64_t valid_targets = 0;  // of this rank's tokens
  double loss_scale = 0;           // 1 / valid targets of the global batch
};

// Fills seq_len + 1 tokens of one sequence of the global batch; target i is token i + 1. A negative token ~t is token t,
// and as a target carries no loss. Where documents are kept apart, it begins one.
using SequenceSource = std::function<void(std::int64_t step, int sequence, std::span<std::int32_t>)>;

// What `at` works on in a step. Sequence (micro-batch m, replica d, place i) is (m dp + d) micro_batch + i of the global
// batch; where replicas have unequally many micro-batches, those that have no m-th are not counted. With `apart`, attention
// does not reach from a document to the one before. Throws ConfigError when a token is beyond the vocabulary.
StepBatch make_batch(const SequenceSource&, std::int64_t step, const ParallelPlan&, const TrainingSpec&,
                     const RankCoord& at, int vocab_size, bool apart = false);

// Sequences that can be learnt, for runs without data: each walks the vocabulary in strides of its own, with a few random
// jumps. The same for the same seed on every layout.
SequenceSource synthetic_sequences(int vocab_size, int global_batch, std::uint64_t seed);

}  // namespace sextant

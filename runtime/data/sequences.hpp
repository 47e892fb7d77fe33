// The sequences of training steps, out of data sets. A split is cut into windows of seq_len tokens; an epoch takes every
// window once, in an order of its own. Sample n of a run (n = step x global batch + sequence) is the same in any layout.
// Within the rules of runtime/step_batch.hpp: a negative token ~t is token t that begins a document (Packing::within) or
// fills up, and carries no loss as a target.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/data/data_set.hpp"

namespace sextant {

enum class Packing : std::uint8_t {
  across,  // a window is one text: attention reaches over the ends of documents (GPT-3, LLaMA)
  within,  // a token sees its own document only, and no document predicts the next one's first token (Llama 3)
};
inline constexpr std::array<std::string_view, 2> kPackingNames = {"across", "within"};

struct WeightedData {
  std::shared_ptr<const DataSet> data;
  double weight = 1;
};

// Sequence `sequence` of step `step`, tokens [0, seq_len].
using TokenSource = std::function<void(std::int64_t step, int sequence, std::span<std::int32_t>)>;

struct SequenceOptions {
  int seq_len = 0, global_batch = 0;
  std::uint64_t seed = 1;
  Packing packing = Packing::across;
};

// Throws ConfigError when a set is shorter than a sequence.
TokenSource training_sequences(std::vector<WeightedData>, const SequenceOptions&);
std::int64_t windows(const TokenRow&, int seq_len);  // of one epoch

// Every held-out token once, in order; behind the last, sequences without a loss.
TokenSource validation_sequences(std::shared_ptr<const DataSet>, const SequenceOptions&);
std::int64_t validation_batches(const DataSet&, const SequenceOptions&);  // until all are seen

// For a checkpoint: what must be the same for a run to go on with the same data.
std::string data_identity(const std::vector<WeightedData>&, const SequenceOptions&);

}  // namespace sextant

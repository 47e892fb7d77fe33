// Which parameters does a stage hold, in which gradient buckets, cut into which shards? A pure value, computed before
// any buffer exists and read by the lowering, the memory model, the runtime and the checkpoints alike.
//
// Parameters stand in reverse order of first forward use, so that buckets fill in the order of the backward pass. Each
// starts at a multiple of 64 elements; a bucket is padded to 64 * shards and rank r owns slice r of EVERY bucket, which
// makes it one contiguous reduce-scatter and all-gather (Megatron-LLaMA's idea, without its divisibility demand). With
// shard weights a bucket has as many equal parts as they add up to, and slice r as many of them as weight r says.
#pragma once

#include <cstdint>
#include <vector>

#include "core/graph/parameter_kind.hpp"
#include "core/graph/work.hpp"
#include "core/model/model_spec.hpp"
#include "core/plan/parallel_plan.hpp"
#include "core/plan/stack_spec.hpp"

namespace sextant {

// Extents of one tensor-parallel rank. kv_heads is at least 1: with tp > n_kv_heads they are replicated.
struct LocalShape {
  int heads = 0, kv_heads = 0, ffn = 0;
  int vocab = 0;  // of the padded vocabulary
  bool operator==(const LocalShape&) const = default;
};
LocalShape local_shape(const ModelSpec&, int tp, int vocab_multiple);

// One rank's blocks of one micro-batch, with every extent filled in; kind and pass are the caller's.
BlockWork block_extents(const ModelSpec&, const TrainingSpec&, const ParallelPlan&, const LocalShape&,
                        const StackRules&);

// The parameters of a decoder layer that a model has, in reverse order of first use: those of one block stand together. With
// linear_bias (GPT) biases are counted with their matrix, as those of layer norms always are.
std::vector<ParameterKind> layer_parameters(const ModelSpec&);

// One parameter tensor.
struct Parameter {
  ParameterKind kind = ParameterKind::embedding;
  std::uint16_t chunk = 0;    // model chunk
  std::uint16_t layer = 0;    // decoder layer of the model; 0 for embedding, final norm and head
  std::uint16_t bucket = 0;   // index in ParameterLayout::buckets
  std::int64_t offset = 0;    // first element inside the bucket
  std::int64_t elements = 0;  // of this rank
};

struct Bucket {
  std::uint32_t first = 0, count = 0;  // parameters
  std::int64_t elements = 0;           // padded: a multiple of 64 * ParameterLayout::parts
};

struct ParameterLayout {
  std::vector<Parameter> parameters;  // last-used first
  std::vector<Bucket> buckets;        // in order of completion in the backward pass
  int shards = 1;                     // slices per bucket
  int parts = 1;              // of equal size per bucket: as many as shards, or the sum of their weights
  int most_parts = 1;         // of the largest slice
  std::int64_t elements = 0;  // of this rank, without padding
  std::int64_t padded = 0;    // sum over buckets
  // Elements of the largest slice: what every rank makes its buffers for.
  std::int64_t slice(const Bucket& b) const { return slice(b.elements); }
  std::int64_t slice(std::int64_t bucket_elements) const { return bucket_elements / parts * most_parts; }
  std::int64_t owned() const { return slice(padded); }
};

// The stage's parameters. ZeRO-3 and parameter offload: one bucket per unit (decoder layer, or module where the stack
// fetches modules; embedding; final norm with head). Otherwise whole parameters are collected until the bucket size is reached; a tied embedding and its copy beside
// the head have buckets of their own.
ParameterLayout parameter_layout(const ModelSpec&, const ParallelPlan&, const StackRules&, int stage);

// Buckets are the units that parameters are fetched in, whatever the bucket size.
bool buckets_are_units(const ParallelPlan&, const StackRules&);
// Elements from which on a bucket takes no further parameter. 0: buckets are units, or nothing is cut into buckets, as all gradients
// are reduced together after the backward pass. Those that are reduced in every micro-batch are cut whether the backward pass goes
// on beside their reduction or waits for it: a bucket makes room for the next one.
std::int64_t bucket_limit(const ParallelPlan&, const StackRules&);
// Gradients are reduced after every micro-batch: they live in a ring of two buffers, and the reduced slice is added to
// an accumulator. Then a bucket ends where an op does, so that no op needs more than one of the two. Not with the
// zero-bubble schedule, whose weight halves fill the buckets of several micro-batches at once.
bool reduces_every_microbatch(const ParallelPlan&, const StackRules&);
// Whether reductions run beside the backward pass: asked for, and what the stack does at the plan's ZeRO stage.
bool overlaps_grad_reduce(const ParallelPlan&, const StackRules&);
bool reduces_every_microbatch(int zero_stage, int pp, const StackRules&);  // with the other schedules
// ... and are copied to the host and summed there. On one stage: copies of a tied embedding meet on devices alone.
bool sums_gradients_on_host(const ParallelPlan&, const StackRules&);
// Parameters are gathered before every micro-batch's forward and held until its backward is over.
bool gathers_every_microbatch(const ParallelPlan&, const StackRules&);
// Parameters are fetched (gathered, or copied from the host) unit by unit in every pass.
bool fetches_parameters(const ParallelPlan&, const StackRules&);
// The embedding whose head, on the same stage, sums its gradient over micro-batches in a place of its own: its index among
// the layout's parameters. -1: none.
int embedding_apart_from_head(const ParameterLayout&, const ModelSpec&, const ParallelPlan&,
                              const StackRules&, int microbatches);
// Elements of an owned slice whose optimizer state and update are on the host, of that share of the plan: those at its end.
std::int64_t host_share(double optimizer_offload, std::int64_t slice);
// Of an element of a parameter that is copied from the host.
int fetched_bytes(const TrainingSpec&, const StackRules&);

}  // namespace sextant

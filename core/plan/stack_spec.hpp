// A software stack: what a training framework can do, by which rules it does it, and how well. The same
// layout is lowered, priced and accounted differently for each. Presets in tools/presets/stacks; nothing here
// names a model.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/base/dtype.hpp"
#include "core/base/error.hpp"
#include "core/base/rejection.hpp"
#include "core/base/units.hpp"
#include "core/plan/parallel_plan.hpp"
#include "core/plan/stage_cuts.hpp"

namespace sextant {

// How many micro-batches m an interleaved schedule takes, pp or more, in groups of interleaved_group(). Equal rounds:
// multiples of m / pp, rounded down (PyTorch's ScheduleInterleaved1F1B).
enum class InterleavedCount : std::uint8_t { multiples_of_pp, equal_rounds, any };
inline constexpr std::array<std::string_view, 3> kInterleavedCountNames = {"multiples_of_pp", "equal_rounds",
                                                                           "any"};

// What it can do. A layout outside is refused with the name of what is missing.
struct StackCapabilities {
  std::vector<int> zero_stages = {0, 1};
  int max_zero_with_pp = 1;
  bool tensor_parallel = true, pipeline_parallel = true, sequence_parallel = true, context_parallel = true;
  bool interleaved = true, gpipe = false, zero_bubble = false;
  UnevenStages uneven_stages = UnevenStages::none;
  std::vector<AxisOrder>
      axis_orders;  // in which it places ranks, innermost first, the usual one first; none: in any
  // Where nobody states a cut embedding and LM head count as so many layers each (cut_with_ends); 0: chunks are equal.
  int usual_end_layers = 0;
  bool uneven_microbatches = false;  // replicas may have unequally many in a step
  bool uneven_shards = false;        // ranks of a shard group may own and update unequal parts of the state
  int interleaved_from_pp = 2;       // stages that the interleaved schedule needs at least
  InterleavedCount interleaved_microbatches = InterleavedCount::multiples_of_pp;
  bool shard_degree = false;            // hybrid sharding: 1 < shard_degree < replicas
  bool replicas_divide_hidden = false;  // every parameter must split evenly over the replicas
  // CP ranks share the state, whatever is asked for: there is no ZeRO 0 beside CP, and shards are whole CP groups.
  bool context_parallel_shards = false;
  // In bf16 with so many pipeline stages or more (0: never) master copy and moments are sharded over the replicas, whatever is
  // asked for: there is no ZeRO 0 then (DeepSpeed's BF16_Optimizer).
  int bf16_shards_from_pp = 0;
  bool copies_kv_heads = true;  // tp beyond the key/value heads: several ranks hold a copy of one
  bool recompute_selective = true, recompute_full = true, recompute_layers = true;
  bool optimizer_offload = false, parameter_offload = false, activation_offload = false;
  bool activation_offload_needs_recompute = false;
  // Activations on the host beside pipeline stages, and beside recomputation of any kind.
  bool activation_offload_with_pp = true, activation_offload_with_recompute = true;
  bool activation_offload_of_all_layers = true;
  bool parameter_offload_needs_optimizer =
      false;  // parameters are on the host only where all of its state is
  bool optimizer_offload_needs_parameters = false;
  // Of parameters and optimizer state: beside pipeline stages, of one replica, with several micro-batches in a step.
  bool offload_with_pp = true, offload_of_one_replica = true, offload_with_accumulation = true;
  // The lowest ZeRO stage that hybrid sharding and offload need. One replica shards nothing: offload asks for none there.
  int shard_degree_from_zero = 0, parameter_offload_from_zero = 0, optimizer_offload_from_zero = 0,
      partial_offload_from_zero = 0;  // partial: of the optimizer state, neither none nor all; 4: not offered
  // The lowest ZeRO stage that sums gradients of 16-bit parameters in fp32.
  int fp32_sums_from_zero = 0;
  // The highest ZeRO stage with optimizer state on the host, and with overlapped tensor-parallel collectives.
  int optimizer_offload_to_zero = 3, overlap_tp_to_zero = 3;
  // The highest ZeRO stage that the framework itself advises beside TP or CP: what is above runs, and is not recommended.
  int advised_zero_with_tp = 3;
  bool overlap_grad_reduce = true, overlap_param_gather = true, overlap_tp = false;
  bool overlap_tp_needs_sequence_parallel = false;
  bool bucket_size = true, last_bucket_split = false;
  bool fp8 = false;

  AxisOrder usual_order() const {
    return axis_orders.empty() ? AxisOrder(RankDegrees{}.order) : axis_orders.front();
  }
  bool operator==(const StackCapabilities&) const = default;
};

// Whether there is no ZeRO 0 of this layout: its state is sharded whatever is asked for.
bool always_shards(const StackCapabilities&, const ParallelPlan&, Dtype parameter);
// The lowest ZeRO stage that is offered to it, whatever its own; 0 where none is.
int lowest_zero_stage(const StackCapabilities&, const ParallelPlan&, Dtype parameter);
// Whether a layout with tp may overlap its collectives.
bool may_overlap_tp(const StackCapabilities&, const ParallelPlan&);

// When things happen: read by lower() and by nothing else.
struct StackRules {
  bool reduce_every_microbatch = false;  // ZeRO-2: reduce-scatter in each backward instead of the last
  bool zero3_reduce_every_microbatch = true;
  bool reduce_every_microbatch_with_pp = true;  // false: in the last one, with pipeline stages
  // The highest ZeRO stage whose overlapped reductions run during the backward pass; those above hold it up,
  // asked for or not, in the stack's own buckets (what others would gain there no run has shown).
  int grad_reduce_overlaps_to_zero = 3;
  // With all of the optimizer state on the host, gradients that are reduced in every micro-batch are copied there at once; those
  // of the second and later ones are added there, which the launching thread waits for (FSDP2: foreach_reduce). Otherwise
  // they are summed on the device and copied in the end.
  bool host_sums_gradients = false;
  // Parameters on the host are the optimizer's fp32 master copy; that is what is copied, and rounded on the device (FSDP2).
  bool host_parameters_are_master = false;
  // What rests of a parameter is that fp32 copy on the device too; one in the format of compute exists while it is gathered alone
  // (FSDP): with ZeRO 2 from the forward pass to the end of the backward pass, otherwise unit by unit.
  bool shards_are_master = false;
  bool pipelined_update = false;  // Adam of bucket b overlaps the gather of bucket b-1, first-used first
  bool param_gather_overlaps_forward =
      true;  // overlapped parameter gather hides behind the first forward; otherwise
             // it must end before the first forward starts
  bool p2p_overlaps_compute_1f1b = false;  // stage-to-stage transfers leave the compute lane free
  bool p2p_overlaps_compute_interleaved = true;
  std::int64_t bucket_elements = 40'000'000;  // default bucket: max(bucket_elements, per_rank * replicas)
  std::int64_t bucket_elements_per_replica = 1'000'000;
  int prefetch_blocks = 1;  // ZeRO-3: units gathered ahead
  // What ZeRO-3 and parameter offload fetch, release and reduce as one unit: a decoder layer, or each module of it that
  // holds matrices (QKV with its norm, attention output, MLP with its norm).
  bool fetch_modules = false;
  bool zero3_regather_in_backward = true;
  // ZeRO 2 reduces the units of ZeRO 3 and not buckets; where gradients are reduced in every micro-batch, parameters are
  // released behind its backward and gathered again for the next (FSDP with reshard_after_forward off).
  bool zero2_by_units = false;
  // Selective recomputation keeps the attention core's output and that of every second GEMM of a layer, and makes all else
  // again (PyTorch's per-operation policy), instead of repeating the attention core alone.
  bool selective_by_operation = false;
  // Logits are never held whole: the head's backward makes them, the loss and both gradients chunk by chunk. Its forward does
  // nothing then; with tp it makes them a first time, for the loss.
  bool head_fused_with_loss = false;
  // Q, K and V are one GEMM, and so are gate and up: their matrices, gradients and results stand side by side.
  bool fused_projections = false;
  // Logits of a head fused with its loss are kept in the format of GEMMs, as PyTorch's are, and become their gradients in
  // place; the loss is made of them in fp32. Otherwise they are kept in fp32 beside their gradients.
  bool short_logits = false;
  // What logits of a head fused with its loss may take: as many tokens' are made at a time. 0: about 2^24 logits.
  Bytes head_logits;
  bool loss_gathers_logits = false;  // logits are gathered over tp before the loss
  int vocab_multiple = 128;  // the vocabulary is padded to a multiple of this times tp; 1 = never padded
  bool scatter_p2p = true;   // with tp, each rank sends its share of the activations
  // With cp, keys and values go round beside the attention over those that have arrived, and their gradients beside its
  // backward (Transformer Engine's p2p, PyTorch's ring); otherwise they are gathered before it and scattered behind it.
  bool cp_ring = false;
  bool clip_gradients = true;
  // The first micro-batch of a step writes gradients that the others add to, so that nothing is cleared before.
  bool gradients_begin_written = false;
  // A tied embedding's two gradients are summed over micro-batches apart and added once, on one stage as on two, so that
  // pipelining changes no bit. Not where gradients are reduced in every micro-batch.
  bool tied_gradients_apart = false;
  // A checkpoint holds the parameters in their own format beside master copy and moments, where that is another one.
  bool checkpoint_parameters = true;
  bool operator==(const StackRules&) const = default;
};

enum class AttentionKernel : std::uint8_t { unfused, fused_softmax, flash1, flash2, flash3, cudnn, triton };

// How the small operations of a layer run: each as a kernel that the host launches, or fused by a compiler (torch.compile).
enum class Blocks : std::uint8_t { eager, compiled };
inline constexpr std::array<std::string_view, 2> kBlocksNames = {"eager", "compiled"};

// What one scale of an fp8 operand is for: the whole tensor, or a row (and in the backward pass a column) of it.
enum class Fp8Scales : std::uint8_t { tensor, row };

// How well: constants of the cost models that belong to the framework rather than to device or network.
struct StackKernels {
  AttentionKernel attention = AttentionKernel::flash2;
  Blocks blocks = Blocks::eager;
  bool norm_fused = true;
  double pointwise_passes = 2.0;       // k of the memory-bound passes, see cost_models/pointwise
  double loss_bytes_per_logit = 57.0;  // traffic forward + backward
  Seconds host_forward_per_layer;      // CPU time to launch one layer's forward
  Seconds host_tp_per_layer;           // added when tp > 1
  double gemm_bonus = 1.0;             // tuned GEMM selection of vendor containers
  Fp8Scales fp8_scales = Fp8Scales::tensor;
  // Of GEMMs in fp8 with scales of rows: their rate over that with one scale of a tensor, and what making scales and casting
  // moves beyond it, bytes per token and hidden channel in either direction.
  double fp8_row_gemm_share = 1.0, fp8_row_bytes = 0.0;
  // Of the causal mask's imbalance between context-parallel ranks, the share that the framework leaves: 0 with slices dealt
  // from both ends of the sequence, 1 with consecutive ones, of which the last has 2 - 1 / cp times the mean work.
  double cp_imbalance = 0.0;
  double tp_hidden_share = 0.0;  // of a tp collective tiled into its GEMM, when overlap_tp
  double accumulate_bytes =
      0.0;                     // traffic per parameter and micro-batch when wgrad is not accumulated in place
  double update_bytes = 25.0;  // optimizer traffic per owned parameter (fp32 state)
  double norm_bytes = 8.0;     // norm and clip traffic per local parameter
  Seconds step_overhead;       // fixed host time per step: data, logging, scheduler
  double straggler_per_log2_node = 0.0035;
  double comm_slows_compute = 0.024;  // compute beside a collective runs (1 + this) times longer
  double compute_slows_comm = 0.0;
  double copy_slows_compute = 0.0;  // the same of copies between device and host
  double compute_slows_copy = 0.0;
  bool operator==(const StackKernels&) const = default;
};

// Copies of gradients that the optimizer's update makes and frees again.
enum class UpdateCopies : std::uint8_t {
  none,
  converted,  // one in fp32, of gradients in another format
  flattened,  // one flat in their own format and of that one in fp32; with ZeRO 0 one in fp32 and of that one flat
};
inline constexpr std::array<std::string_view, 3> kUpdateCopiesNames = {"none", "converted", "flattened"};

// What it holds. Bytes per token and channel of one layer's saved activations, see cost_models/memory.
struct StackMemory {
  bool exact_tensors =
      false;  // what is kept is core/graph/block_tensors.hpp to the byte; of the coefficients below only
              // fragmentation and outside count
  double saved_hidden = 1.7;  // c1: copies of the residual stream kept per layer, times 2h bytes
  double saved_norm = 7.0;    // bytes per hidden channel kept by a layer's norms that are no fused kernels
  double saved_ffn =
      4.0;  // c2: copies of the FFN width kept, times 2f bytes; two at most where the MLP has no gate
  double saved_rope = 4.4;      // cr: extra bytes per channel of q and k
  double saved_tp = 2.0;        // cu: extra bytes per hidden channel when tp > 1
  double saved_tp_shard = 0.0;  // ... and of the slice that sequence parallelism leaves
  // > 0: ranks of a node; saved_tp are what hidden gathers leave behind, and not every layout holds them (cost_models/memory).
  int async_tp_ranks = 0;
  double attention_scores = 4.3;  // bytes per score kept by a fused scale-mask-softmax kernel
  double attention_scores_eager =
      9.3;                             // ... by separate mask, softmax and dropout; online softmax keeps none
  double full_recompute_hidden = 1.1;  // bytes per hidden channel that a fully recomputed layer keeps
  double recompute_share = 1.0;        // of a layer's activations, alive at once while it is recomputed
  double logits_bytes = 2.4;           // per local logit, from the head's forward to its backward
  double logits_tp_factor = 1.0;       // times as many when tp > 1
  double loss_hidden_bytes = 0.0;      // per hidden channel, while the loss is computed in chunks
  double logits_kept_bytes = 0.0;      // more of them, still held by the micro-batch before; m > 1
  double loss_gather_bytes = 0.0;      // per logit of the whole vocabulary, where rules.loss_gathers_logits
  double transient_hidden = 0.0;       // bytes per token and hidden channel, once, when tp > 1
  // Inputs of GEMMs in fp8 are kept in fp8, beside what else keeps them in 16 bits (Transformer Engine).
  bool saves_fp8_inputs = false;
  // Per element of each shape of weight that a stage has: gradients that were added to the main ones are told to autograd as one
  // tensor for all weights of a shape, which is never freed (Transformer Engine from 2.3).
  double wgrad_placeholder_bytes = 0.0;
  double gradient_bytes =
      4.0;  // G per local parameter before sharding, in the stack's own format of gradients
  bool gradients_as_parameters = false;  // that is the format of parameters, instead of fp32
  // What a published run states as their format is that of their reduction alone (reduce_dtype of FSDP).
  bool runs_state_reduction = false;
  double ddp_extra_bytes = 0.0;  // per local parameter when state is not sharded
  // fp32 parameters have a master copy too: with ZeRO 1 and 2, and on the host (DeepSpeed).
  bool sharded_master_of_fp32 = false;
  // With an optimizer of its own for bf16 (pipeline stages at ZeRO 0, or fp32 sums at ZeRO 1 without offload), gradients are
  // summed in a buffer beside the model's own.
  bool bf16_sums_beside_gradients = false;
  // With a part of the optimizer state on the host all gradients are there, in their own format; the device holds a copy in fp32 of
  // those that it updates itself (DeepSpeed's ZeRO 3).
  bool part_offload_moves_gradients = false;
  // Gradients that rest in shards are in fp32, the format of what they update, whatever format they are reduced in (FSDP).
  bool sharded_gradients_fp32 = false;
  // With ZeRO 3 and one micro-batch a reduced gradient takes its parameter's place, and each parameter has a place on the host all
  // the time whose optimizer state is there (chunks of Gemini).
  bool gradients_in_parameters = false;
  // With optimizer state on the host the optimizer is first made over whole parameters, of which it takes copies in fp32 on host and
  // device, and then again over the shards (Megatron-Core); moments are in fp32, as are gradients that the device updates from.
  bool offload_from_whole = false;
  // ZeRO 2: reduced gradients of later micro-batches lie in a partition of their own before they are added.
  bool zero2_sums_apart = false;
  // What exists while the device updates, and not beside activations. ZeRO stages whose gradients are freed before there are most
  // copies: all of ZeRO 0, those of what others update of ZeRO 1.
  UpdateCopies update_copies = UpdateCopies::none;
  std::vector<int> update_frees_gradients;
  double update_extra_bytes = 0.0;         // of an updated element, beyond copies of its gradient
  std::int64_t zero3_update_elements = 0;  // ZeRO 3 updates as many of a rank's at a time; 0: all
  double fragmentation = 1.06;             // reserved / allocated, where there is room
  double reserve_needed = 1.0;  // share of that reserve which the allocator cannot give back before it fails
  // Of what the host updates, per element, beyond its state and the gradients in their own format; and host memory taken over
  // what is kept there: page-locked blocks are rounded up.
  double host_extra_bytes = 0.0, host_factor = 1.0;
  bool host_gradients_fp32 = false;  // those are in fp32 there, not in their own format
  // Of what the device updates, per element: places that are kept page-locked on the host whatever is there, over host_factor
  // (chunks of Gemini).
  double host_places_bytes = 0.0;
  // Of each whole parameter that is updated there: page-locked copies of offload_from_whole, which torch keeps once they are freed.
  double host_whole_bytes = 0.0;
  Bytes outside;                       // context, NCCL, libraries
  std::optional<Bytes> outside_alone;  // ... of one rank, which has no NCCL; absent: as much
  bool operator==(const StackMemory&) const = default;
};

// What a rank takes of its device beside the framework's allocator, in a job of so many ranks.
// What must fit for each byte that is allocated: with the part of the reserve that the allocator cannot give back.
inline double needed_per_byte(const StackMemory& memory) {
  return 1 + memory.reserve_needed * (memory.fragmentation - 1);
}

inline Bytes outside_of(const StackMemory& memory, int ranks) {
  return ranks == 1 && memory.outside_alone ? std::min(*memory.outside_alone, memory.outside)
                                            : memory.outside;
}

struct StackSpec {
  std::string name, title, version, source;
  std::string
      assumes;  // what an answer takes for granted that its user may have set otherwise, and how to say so
  std::map<std::string, std::string> with_blocks;  // "eager" or "compiled" -> the preset with such blocks
  StackCapabilities can;
  StackRules rules;
  StackKernels kernels;
  StackMemory memory;
  bool operator==(const StackSpec&) const = default;
};

// As versions of its framework do that compute the loss of all tokens at once: bytes a logit, and no chunks of hidden states.
inline void hold_whole_logits(StackMemory& memory, double bytes) {
  memory.logits_bytes = bytes;
  memory.loss_hidden_bytes = 0;
}

// In which it keeps and reduces gradients where nobody states another format.
inline Dtype own_gradient_format(const StackSpec& stack, Dtype parameter) {
  return stack.memory.gradients_as_parameters ? parameter : Dtype::fp32;
}

std::vector<Problem> validate(const StackCapabilities&);

// The first thing the stack cannot do about this plan, or nothing.
std::optional<Rejection> refuses(const StackSpec&, const ParallelPlan&, const ModelSpec&,
                                 const TrainingSpec&);
// Its reason alone, without the text: what a search asks.
std::optional<RejectReason> refusal(const StackSpec&, const ParallelPlan&, const ModelSpec&,
                                    const TrainingSpec&);

std::string_view name(AttentionKernel);

// A preset by name, or a JSON file by path. A file may name another preset as its `base` and state only what
// differs, and under `on_generation` what differs on a generation of devices; without one that stays as it is. Throws
// ConfigError: unknown name (with a suggestion), unknown key, wrong type. `notes`: values that the next version reads no more.
StackSpec load_stack(const std::string& name_or_path, const std::filesystem::path& preset_dir,
                     std::string_view generation = "", std::vector<std::string>* notes = nullptr);
std::vector<std::string> stack_names(const std::filesystem::path& preset_dir);

void to_json(nlohmann::json&, const StackCapabilities&);
void from_json(const nlohmann::json&, StackCapabilities&);
void to_json(nlohmann::json&, const StackRules&);
void from_json(const nlohmann::json&, StackRules&);
void to_json(nlohmann::json&, const StackKernels&);
void from_json(const nlohmann::json&, StackKernels&);
void to_json(nlohmann::json&, const StackMemory&);
void from_json(const nlohmann::json&, StackMemory&);
void to_json(nlohmann::json&, const StackSpec&);
void from_json(const nlohmann::json&, StackSpec&);

}  // namespace sextant

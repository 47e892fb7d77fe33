// One layout: every degree of freedom that the runtime acts on and the planner searches. A pure value with a
// short key, readable both ways: tp4.pp8.vp5.cp1.dp2.z1.mbs1.sel
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/base/error.hpp"
#include "core/cluster/rank_grid.hpp"
#include "core/model/model_spec.hpp"
#include "core/model/training_spec.hpp"

namespace sextant {

enum class PipelineSchedule : std::uint8_t { one_f_one_b, interleaved, gpipe, zero_bubble };
enum class RecomputeKind : std::uint8_t { none, selective, full };

inline constexpr std::array<std::string_view, 4> kScheduleNames = {"1f1b", "interleaved", "gpipe",
                                                                   "zero_bubble"};
inline constexpr std::array<std::string_view, 3> kRecomputeNames = {"none", "selective", "full"};

constexpr std::string_view name(PipelineSchedule s) { return kScheduleNames[static_cast<std::size_t>(s)]; }
constexpr std::string_view name(RecomputeKind r) { return kRecomputeNames[static_cast<std::size_t>(r)]; }

// Bounds that keep every product of degrees inside an int.
inline constexpr int kMaxDegree = 1 << 20;
inline constexpr int kMaxWorld = 1 << 24;
inline constexpr int kMaxChunks = 65535;  // pp * vp
inline constexpr int kMaxLayers = 65535;
inline constexpr int kMaxShardWeight = 64;

// Activations that are thrown away in the forward pass and computed again in the backward pass.
// selective: the attention core. full: whole layers, of which only the input is kept; `layers` of each chunk,
// or all of them when layers < 0.
struct Recompute {
  RecomputeKind kind = RecomputeKind::none;
  int layers = -1;
  bool operator==(const Recompute&) const = default;
};

// Consecutive decoder layers [first, first + count) of one model chunk.
struct LayerRange {
  int first = 0;
  int count = 0;
  bool operator==(const LayerRange&) const = default;
};

struct ParallelPlan {
  int tp = 1, cp = 1, pp = 1, dp = 1;
  int vp = 1;  // model chunks per stage (virtual stages); > 1 only with the interleaved schedule
  bool sequence_parallel = false;  // Megatron SP: activations between TP regions are split over tokens
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  int zero_stage = 0;    // 0 none, 1 optimizer state, 2 and gradients, 3 and parameters
  int shard_degree = 0;  // ranks over which state is sharded; 0 = all dp*cp ranks; 1 = no sharding
  int micro_batch = 1;   // sequences per micro-batch and replica
  // Micro-batches of each of the dp replicas in a step, where they differ; empty = equally many. For machines of which a part
  // is slower, and for batches that dp does not divide.
  std::vector<int> replica_microbatches;
  // How much of every bucket each of the shards() ranks of a shard group owns and updates, beside the others: 2-2-1 is two
  // fifths, two fifths and one fifth. Empty = equal shares. For ranks of which some are slower.
  std::vector<int> shard_weights;
  Recompute recompute;
  double optimizer_offload = 0.0;  // share of the optimizer state and update that lives on the host, 0..1
  bool parameter_offload = false;  // parameters rest on the host and are fetched per layer
  int activation_offload = 0;      // layers per chunk whose saved activations rest on the host
  int offload_horizon = 1;  // layers ahead that are fetched back; as many and one leave or return at once
  std::int64_t bucket_elements = 0;  // gradient bucket size in elements; 0 = the stack's rule
  int last_bucket_split = 1;         // pieces of the bucket that completes last
  bool overlap_grad_reduce = true;
  bool overlap_param_gather = true;
  bool overlap_tp = false;
  AxisOrder axis_order = {Axis::tp, Axis::cp, Axis::dp, Axis::pp};  // innermost first, onto ranks
  std::vector<LayerRange>
      chunks;  // pp * vp of them in model order (chunk c lies on stage c % pp); empty = even split

  bool operator==(const ParallelPlan&) const = default;
  int world() const { return tp * cp * pp * dp; }
  operator RankDegrees() const { return {.tp = tp, .cp = cp, .dp = dp, .pp = pp, .order = axis_order}; }
  // Data-parallel ranks among which gradients are reduced: cp ranks hold the same parameters.
  int replicas() const { return dp * cp; }
  int shards() const { return zero_stage == 0 ? 1 : (shard_degree > 0 ? shard_degree : replicas()); }
};

// The plan key: parts separated by dots, each at most once, upper or lower case, in any order when read;
// plan_key() writes them in the order below, the seven numbers always, every other part only when it differs
// from its default. parse_plan_key(plan_key(p)) == p for every plan whose `chunks` follow one another and
// whose `recompute.layers` is set only with full recompute.
//
// clang-format off
//   tpN ppN vpN cpN dpN zN mbsN   degrees, virtual stages, ZeRO stage, micro-batch; absent = 1 (z: 0)
//   sel | full | fullN            recompute: attention core | all layers | N layers of each chunk; absent = none
//   sp | nosp                     sequence parallelism; absent = on when tp > 1, off otherwise
//   1f1b | int | gpipe | zb       schedule; absent = interleaved when vp > 1, 1F1B otherwise
//   sdN                           shard_degree; absent = 0, all dp*cp ranks
//   ooX                           percent of the optimizer state on the host, decimal point written p: oo12p5
//   po                            parameters rest on the host
//   aoN                           layers per chunk whose activations rest on the host; absent = 0
//   hzN                           offload horizon in layers; absent = 1
//   bN, bNK, bNM, bNG             bucket elements, K = 1e3, M = 1e6, G = 1e9; absent = 0, the stack's rule
//   lbN                           pieces of the last bucket; absent = 1
//   nogr, nopg                    gradient reduction, parameter gather not overlapped
//   tpo                           TP communication overlapped
//   ax-A-B-C-D                    axes onto ranks, innermost first; absent = ax-tp-cp-dp-pp
//   gaN-N-..., gaNxR-...          micro-batches (gradient accumulation) of each replica, NxR = R replicas of N; absent = even
//   swN-N-..., swNxR-...          shard weights: what each rank of a shard group owns beside the others; absent = equal
//   LN-N-..., LNxR-...            layers of each chunk in model order, NxR = R chunks of N; absent = even split
// clang-format on
std::string plan_key(const ParallelPlan&);
ParallelPlan parse_plan_key(std::string_view key);  // throws ConfigError naming the part that is wrong

// The same layout with everything on the device.
ParallelPlan without_offload(ParallelPlan);

// Every degree is at least 1, and neither the ranks nor the chunks are more than the bounds above.
bool degrees_fit(const ParallelPlan&);

// Consecutive chunks of these many layers, from layer 0 on.
std::vector<LayerRange> chunks_of(const std::vector<int>& layers);
// The other way: how many layers each chunk has.
std::vector<int> layer_counts(std::span<const LayerRange> chunks);

// The layers of every chunk: the plan's own, or an even split where the first chunks take the remainder.
std::vector<LayerRange> layer_ranges(const ParallelPlan&, int n_layers);
// Every chunk has as many layers as the others.
bool equal_chunks(const ParallelPlan&, int n_layers);

// Micro-batches per step and replica: global_batch / (micro_batch * dp), or those of the replica that has the most. Zero when
// it does not divide.
int microbatches(const ParallelPlan&, const TrainingSpec&);
// Of the replica `dp`.
int microbatches_of(const ParallelPlan&, const TrainingSpec&, int dp);
// How long it computes as a share of the replica with the most, the time included in which a pipeline fills and empties.
double share_of_most(const ParallelPlan&, const TrainingSpec&, int dp);

// Which slice of every bucket a rank owns; 0 where nothing is sharded.
int shard_of(const ParallelPlan&, const RankCoord&);
// The weights of shards(), where they are equal as well.
std::vector<int> shard_weights_of(const ParallelPlan&);
// By shard: how much it owns as a share of the one that owns the most.
std::vector<double> shares_of_largest(const ParallelPlan&);

// Contradictions inside the plan and against the model and batch (not against a cluster's size or a stack).
std::vector<Problem> validate(const ParallelPlan&, const ModelSpec&, const TrainingSpec&);
// The same for a model and training that are known to be valid: what a search asks.
std::vector<Problem> validate_checked(const ParallelPlan&, const ModelSpec&, const TrainingSpec&);

// As an object with one field per member, chunks as `chunk_layers`; a plan key (a string) is read as well.
void to_json(nlohmann::json&, const ParallelPlan&);
void from_json(const nlohmann::json&, ParallelPlan&);

}  // namespace sextant

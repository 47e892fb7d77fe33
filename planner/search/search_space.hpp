// Which layouts are looked at? The full product of one list per field, so that its size, and the size of every part of
// it, is a product too: candidates that do not divide, contradict themselves or repeat another one's graph are members
// with that outcome. Nothing here knows how fast or how large a layout is.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/cluster/cluster_spec.hpp"
#include "core/model/model_spec.hpp"
#include "core/model/training_spec.hpp"
#include "core/plan/parallel_plan.hpp"
#include "core/plan/plan_limits.hpp"
#include "core/plan/stage_cuts.hpp"

namespace sextant {

struct PipelineForm {
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  int vp = 1;
  bool operator==(const PipelineForm&) const = default;
};

// even: layers divided evenly, the first chunks take the remainder. balanced: chunks that are equally fast with
// embedding and LM head counted (planner/search/stage_split.hpp).
enum class StageSplit : std::uint8_t { even, balanced };

// Layers of every chunk, `all`: as many as the longest one has. The horizon is that of parameters on the host as well;
// where neither is there, it says nothing.
struct ActivationOffload {
  static constexpr int all = kMaxLayers;
  int layers = 0, horizon = 1;
  int of_chunk(int longest) const { return layers == all ? longest : layers; }
  bool operator==(const ActivationOffload&) const = default;
};

struct SearchSpace {
  int world = 1;  // dp = world / (tp * cp * pp)
  int n_layers = kMaxLayers;
  bool tight = false;  // state presses on memory, and shares of the optimizer are asked finely
  std::vector<int> tp, cp, pp;
  std::vector<AxisOrder> axis_order;
  std::vector<int> micro_batch;
  std::vector<std::uint8_t> sequence_parallel, overlap_tp;
  std::vector<Recompute> recompute;
  std::vector<PipelineForm> form;
  std::vector<StageSplit> split;
  std::vector<int> zero_stage, shard_degree;
  std::vector<double> optimizer_offload;
  std::vector<std::uint8_t> parameter_offload;
  std::vector<ActivationOffload> activation_offload;
  std::vector<std::int64_t> bucket_elements;
  std::vector<int> last_bucket_split;
  std::vector<std::uint8_t> overlap_grad_reduce, overlap_param_gather;
  PlanLimits limits;  // what no single list can state: dp, effective shards

  // The one horizon that stands for all of them where nothing is offloaded: 1, or the least that the limits leave.
  int horizon_of_nothing() const;
  // Looks ahead for what is not offloaded, by another horizon than that: a repetition, and no member.
  bool idle_horizon(const ParallelPlan&) const;

  std::uint64_t size() const;    // saturates at 2^64 - 1
  std::string describe() const;  // "30.2e12 layouts: tp 8 x cp 6 x ..."
};

// One member: an index into each list.
struct Choice {
  std::uint8_t tp = 0, cp = 0, pp = 0, axis_order = 0, micro_batch = 0, sequence_parallel = 0, overlap_tp = 0,
               recompute = 0, form = 0, split = 0, zero_stage = 0, shard_degree = 0, optimizer_offload = 0,
               parameter_offload = 0, activation_offload = 0, bucket_elements = 0, last_bucket_split = 0,
               overlap_grad_reduce = 0, overlap_param_gather = 0;
  auto operator<=>(const Choice&) const = default;
};
inline std::uint8_t small(std::size_t index) { return static_cast<std::uint8_t>(index); }

// Of a member: more than the layers (core/plan/stage_cuts.hpp) where the question says how many, else a move beside the space.
int most_chunks(const SearchSpace&, UnevenStages, int n_layers);

// The members that differ from one in a single field, or in two that go together.
std::vector<Choice> neighbours(const SearchSpace&, const Choice&);

// The member as a plan, its chunks left empty (`split` needs prices to become a list of layers): those of an even split.
ParallelPlan plan_of(const SearchSpace&, const Choice&);

// Everything that model, batch and number of ranks leave open, less what the user excludes. Stated in README. The optimizer's
// share on the host goes by quarters; by twentieths where parameters, gradients and optimizer state, split over all ranks,
// take a quarter of a device's memory or more: there it decides what fits.
SearchSpace default_space(const ModelSpec&, const TrainingSpec&, const DeviceSpec&, int world,
                          const PlanLimits& = {});

}  // namespace sextant

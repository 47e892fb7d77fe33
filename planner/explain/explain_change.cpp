// The smallest change that makes a layout possible: single fields first, then pairs; of those the nearest.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>

#include <fmt/format.h>

#include "planner/explain/explain.hpp"
#include "planner/search/stage_split.hpp"
#include "planner/simulation/robust.hpp"

namespace sextant {
namespace {

struct Step {
  std::string text;
  std::function<bool(ParallelPlan&)> apply;  // false: changes nothing
};

class Steps {
 public:
  Steps(const Job& job, const ParallelPlan& plan) : job_(job), plan_(plan) {
    saving();
    degrees();
    repairs();
  }
  std::vector<Step> take() { return std::move(steps_); }

 private:
  template <class F>
  void add(std::string text, F change) {
    steps_.push_back({std::move(text), [change](ParallelPlan& p) {
                        const ParallelPlan before = p;
                        change(p);
                        return !(p == before);
                      }});
  }

  // What needs less memory.
  void saving() {
    for (const RecomputeKind kind : {RecomputeKind::selective, RecomputeKind::full})
      add(fmt::format("{} recomputation", name(kind)), [kind](ParallelPlan& p) { p.recompute = {kind, -1}; });
    const int longest = longest_chunk(layer_ranges(plan_, job_.model.n_layers));
    for (int layers = 1; layers < longest; layers += (layers + 3) / 4)
      add(fmt::format("full recomputation of {} layer{} a chunk", layers, layers == 1 ? "" : "s"),
          [layers](ParallelPlan& p) {
            p.recompute = {RecomputeKind::full, layers};
          });
    for (int mbs = plan_.micro_batch / 2; mbs >= 1; mbs /= 2)
      add(fmt::format("micro-batches of {}", mbs), [mbs](ParallelPlan& p) { p.micro_batch = mbs; });
    for (int z = plan_.zero_stage + 1; z <= 3; ++z)
      add(fmt::format("ZeRO stage {}", z), [z](ParallelPlan& p) {
        p.zero_stage = z;
        p.shard_degree = 0;
      });
    if (plan_.shard_degree > 0)
      add("state sharded over all replicas", [](ParallelPlan& p) { p.shard_degree = 0; });
    if (plan_.tp > 1 && !plan_.sequence_parallel)
      add("sequence parallelism", [](ParallelPlan& p) { p.sequence_parallel = true; });
    if (job_.stack.can.optimizer_offload)
      for (int percent = 5; percent <= 100; percent += 5)
        add(percent == 100 ? "the optimizer on the host"
                           : fmt::format("{} % of the optimizer on the host", percent),
            [percent](ParallelPlan& p) { p.optimizer_offload = percent / 100.0; });
    for (const std::int64_t millions : {25, 100, 400})
      add(fmt::format("buckets of {} million elements", millions),
          [millions](ParallelPlan& p) { p.bucket_elements = millions * 1'000'000; });
    if (job_.stack.can.parameter_offload)
      add("parameters on the host", [](ParallelPlan& p) { p.parameter_offload = true; });
    if (job_.stack.can.parameter_offload_needs_optimizer)
      add("parameters and optimizer on the host", [](ParallelPlan& p) {
        p.parameter_offload = true;
        p.optimizer_offload = 1;
      });
    if (job_.stack.can.activation_offload)
      for (const int share : {4, 2, 1})
        add(fmt::format("activations of {} layers a chunk on the host",
                        std::max(1, job_.model.n_layers / (plan_.pp * plan_.vp) / share)),
            [share, n = job_.model.n_layers](ParallelPlan& p) {
              p.activation_offload = std::max(1, n / (p.pp * p.vp) / share);
            });
    if (plan_.overlap_tp) add("no TP overlap", [](ParallelPlan& p) { p.overlap_tp = false; });
    if (plan_.overlap_grad_reduce)
      add("gradient reduction behind the backward pass",
          [](ParallelPlan& p) { p.overlap_grad_reduce = false; });
    if (plan_.overlap_param_gather)
      add("parameter gather before the forward pass",
          [](ParallelPlan& p) { p.overlap_param_gather = false; });
  }

  // Ranks moved between two axes; all the ranks of the cluster when the plan states others.
  void degrees() {
    const int available = job_.topology.ranks();
    const auto trade = [&](const char* axis, int ParallelPlan::*degree, auto settle) {
      const int others = plan_.world() / (plan_.*degree * plan_.dp);
      for (const int ranks : {std::min(plan_.world(), available), available}) {
        for (int d = 1; ranks % others == 0 && d <= ranks / others; ++d) {
          if (ranks / others % d != 0 || (d == plan_.*degree && ranks == plan_.world())) continue;
          const int dp = ranks / others / d;
          add(d == plan_.*degree ? fmt::format("DP {}", dp) : fmt::format("{} {} and DP {}", axis, d, dp),
              [=](ParallelPlan& p) {
                p.*degree = d;
                p.dp = dp;
                settle(p);
              });
        }
        if (ranks == available) break;
      }
    };
    trade("TP", &ParallelPlan::tp, [&can = job_.stack.can](ParallelPlan& p) {
      p.sequence_parallel = p.tp > 1 && can.sequence_parallel;
      if (p.tp == 1) p.overlap_tp = false;
    });
    trade("CP", &ParallelPlan::cp, [](ParallelPlan&) {});
    trade("PP", &ParallelPlan::pp, [](ParallelPlan& p) { p.chunks.clear(); });
  }

  // What does not divide, or what the stack refuses.
  void repairs() {
    for (int mbs = plan_.micro_batch * 2; mbs <= 8 * plan_.micro_batch; mbs *= 2)
      add(fmt::format("micro-batches of {}", mbs), [mbs](ParallelPlan& p) { p.micro_batch = mbs; });
    for (int z = 0; z < plan_.zero_stage; ++z)
      add(fmt::format("ZeRO stage {}", z), [z](ParallelPlan& p) {
        p.zero_stage = z;
        p.shard_degree = 0;
      });
    if (plan_.vp > 1)
      add("no virtual stages", [](ParallelPlan& p) {
        p.vp = 1;
        p.schedule = PipelineSchedule::one_f_one_b;
        p.chunks.clear();
      });
    if (plan_.schedule == PipelineSchedule::gpipe || plan_.schedule == PipelineSchedule::zero_bubble)
      add("1F1B", [](ParallelPlan& p) { p.schedule = PipelineSchedule::one_f_one_b; });
    if (!plan_.chunks.empty()) add("equal stages", [](ParallelPlan& p) { p.chunks.clear(); });
    if (plan_.optimizer_offload > 0)
      add("the optimizer on the device", [](ParallelPlan& p) { p.optimizer_offload = 0; });
    if (plan_.parameter_offload)
      add("parameters on the device", [](ParallelPlan& p) { p.parameter_offload = false; });
    if (plan_.parameter_offload && plan_.optimizer_offload > 0)
      add("parameters and optimizer on the device", [](ParallelPlan& p) {
        p.parameter_offload = false;
        p.optimizer_offload = 0;
      });
    if (plan_.activation_offload > 0)
      add("activations on the device", [](ParallelPlan& p) {
        p.activation_offload = 0;
        p.offload_horizon = 1;
      });
    if (plan_.bucket_elements > 0)
      add("the stack's own buckets", [](ParallelPlan& p) { p.bucket_elements = 0; });
    if (plan_.last_bucket_split > 1)
      add("a last bucket in one piece", [](ParallelPlan& p) { p.last_bucket_split = 1; });
    const AxisOrder usual = job_.stack.can.usual_order();
    if (!same_order(plan_, usual))
      add("the usual order of axes", [usual](ParallelPlan& p) { p.axis_order = usual; });
  }

  const Job& job_;
  const ParallelPlan& plan_;
  std::vector<Step> steps_;
};

bool possible(const Job& job, const ParallelPlan& plan) {
  return degrees_fit(plan) && plan.world() <= job.topology.ranks() && !unlawful(job, plan) &&
         !too_large(job, plan_memory(job, plan));
}

// 1 for selective, 2 for full recomputation, in between for a part of the layers in full.
double layers_again(const ModelSpec& model, const ParallelPlan& p) {
  if (p.recompute.kind != RecomputeKind::full || p.recompute.layers < 0)
    return static_cast<int>(p.recompute.kind);
  return 1 + static_cast<double>(p.recompute.layers) /
                 std::max(1, longest_chunk(layer_ranges(p, model.n_layers)));
}

// How far one layout is from another: doublings of degrees and micro-batch, steps of ZeRO and of recomputation, and one for
// whatever else differs, with its share. Another grid of ranks is further than any ZeRO stage. What a field brings along,
// as dp does or sequence parallelism with tp, does not count.
double distance(const ModelSpec& model, const ParallelPlan& a, const ParallelPlan& b) {
  constexpr double kGrid = 2.5;
  const auto doublings = [](int x, int y) { return std::abs(std::log2(static_cast<double>(x) / y)); };
  const bool same_degrees = a.tp == b.tp && a.cp == b.cp && a.pp == b.pp;
  double d = doublings(a.tp, b.tp) + doublings(a.cp, b.cp) + doublings(a.pp, b.pp) + doublings(a.vp, b.vp) +
             doublings(a.micro_batch, b.micro_batch) + std::abs(a.zero_stage - b.zero_stage) +
             std::abs(layers_again(model, a) - layers_again(model, b));
  d += same_degrees ? doublings(a.dp, b.dp) : kGrid;
  if (a.tp == b.tp) d += (a.sequence_parallel != b.sequence_parallel) + (a.overlap_tp != b.overlap_tp);
  if (a.pp == b.pp && a.vp == b.vp) d += (a.schedule != b.schedule) + (a.chunks != b.chunks);
  if (a.zero_stage == b.zero_stage) d += a.shard_degree != b.shard_degree;
  if (a.activation_offload != b.activation_offload)
    d += 1 + doublings(std::max(1, a.activation_offload), std::max(1, b.activation_offload));
  d += ((a.optimizer_offload > 0) != (b.optimizer_offload > 0)) +
       std::abs(a.optimizer_offload - b.optimizer_offload);
  return d + (a.parameter_offload != b.parameter_offload) + (a.overlap_grad_reduce != b.overlap_grad_reduce) +
         (a.overlap_param_gather != b.overlap_param_gather) + (a.bucket_elements != b.bucket_elements) +
         (a.last_bucket_split != b.last_bucket_split) + (a.axis_order != b.axis_order);
}

}  // namespace

std::optional<Change> smallest_fitting_change(const Job& job, const ParallelPlan& plan, RankBy by) {
  if (!degrees_fit(plan)) return std::nullopt;
  const std::vector<Step> steps = Steps(job, plan).take();
  std::optional<Change> best;
  double nearest = INFINITY;
  const auto consider = [&](const ParallelPlan& p, const std::string& text, int fields) {
    constexpr double kSame = 1e-9;
    const double far = distance(job.model, plan, p);
    if (far > nearest + kSame || !possible(job, p)) return;
    Change change{p, text, fields, predict_under(job, p, by)};
    if (far < nearest - kSame || ranked_step(change.prediction, by) < ranked_step(best->prediction, by))
      best = std::move(change);
    nearest = std::min(nearest, far);
  };
  for (const Step& step : steps) {
    ParallelPlan p = plan;
    if (step.apply(p)) consider(p, step.text, 1);
  }
  if (best) return best;
  for (std::size_t i = 0; i < steps.size(); ++i)
    for (std::size_t j = i + 1; j < steps.size(); ++j) {
      ParallelPlan p = plan;
      if (steps[i].apply(p) && steps[j].apply(p)) consider(p, steps[i].text + " and " + steps[j].text, 2);
    }
  return best;
}

}  // namespace sextant

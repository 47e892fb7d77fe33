// Other choices: with one field different, and on a machine a little different.
#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "planner/answers/robust_plans.hpp"
#include "planner/explain/explain.hpp"
#include "planner/search/search_budget.hpp"
#include "planner/simulation/robust.hpp"
#include "planner/simulation/stage_memory.hpp"

namespace sextant {
namespace {

// Products slower by a factor; everything else as it was.
class SlowerGemms final : public CostModel {
 public:
  SlowerGemms(const CostModel& base, double factor) : base_(base), factor_(factor) {}
  OpCost price(const Work& work) const override {
    OpCost cost = base_.price(work);
    const auto* block = std::get_if<BlockWork>(&work);
    const bool products = block && (block->kind == BlockKind::qkv || block->kind == BlockKind::attention ||
                                    block->kind == BlockKind::mlp || block->kind == BlockKind::head);
    if (products) {
      const Seconds more = cost.compute * (factor_ - 1);
      cost.compute += more;
      cost.duration += more;
    }
    return cost;
  }

 private:
  const CostModel& base_;
  double factor_;
};

// The most that a layout of `others` may reserve on the job's devices.
Bytes most_memory(const Job& job, const Others& others) {
  return most_needed(job.cluster.device, job.stack, others.most_oom_chance);
}

SearchOptions among(const Others& others, const Job& job, SearchOptions options) {
  const Bytes most = most_memory(job, others);
  options.memory_limit = std::min(most, options.memory_limit.value_or(most));
  options.move_layers = others.off_grid;
  return options;
}

}  // namespace

std::vector<Alternative> alternatives(const Job& job, const Others& others, const ParallelPlan& best,
                                      const SearchOptions& options, RankBy by) {
  constexpr std::array kFields = {PlanField::tp,         PlanField::pp,          PlanField::cp,
                                  PlanField::zero_stage, PlanField::micro_batch, PlanField::recompute};
  const SearchBudget budget(options);
  std::vector<Alternative> out;
  for (const PlanField field : kFields) {
    if (budget.over()) break;
    PlanLimits other;
    other.limits.push_back({field, Relation::not_equal, field_value(best, field)});
    PlanLimits both = others.limits;
    both.limits.push_back(other.limits.front());
    const SearchSpace space = default_space(job.model, job.training, job.cluster.device, best.world(), both);
    if (space.size() == 0) continue;  // pinned
    const std::string text = to_string(other);
    Alternative a;
    a.field = text.substr(0, text.find("!="));
    a.other = "not " + text.substr(text.find("!=") + 2);
    const SteadyPlans found = robust_plans(job, space, by, among(others, job, budget.next()));
    a.exact = found.proved;
    if (!found.report.ranked.empty()) {
      a.plan = found.report.ranked.front();
      a.comparison = compare(job, best, a.plan->plan, by);
    }
    out.push_back(std::move(a));
  }
  return out;
}

namespace {

// How a choice bears machines a little different.
class ChangedMachines {
 public:
  ChangedMachines(const Job& job, const Others& others, const ParallelPlan& best, RankBy by)
      : job_(job),
        others_(others),
        best_(best),
        by_(by),
        space_(default_space(job.model, job.training, job.cluster.device, best.world(), others.limits)),
        now_(step_of(job, best)) {}

  Sensitivity of(std::string what, const Job& changed, const SearchOptions& options) const {
    Sensitivity s;
    s.what = std::move(what);
    const SteadyPlans found = robust_plans(changed, space_, by_, among(others_, changed, options));
    const SearchReport& report = found.report;
    s.exact = found.proved;
    const PlanMemory memory = plan_memory(changed, best_);
    s.possible = !too_large(changed, memory);
    if (s.possible && memory.peak > most_memory(changed, others_))
      s.oom_chance =
          chance_of_overflow(memory.peak, changed.cluster.device.memory, overflow_scale(changed.stack));
    if (report.ranked.empty()) {
      s.same = false;
      s.text = report.exact ? "nothing fits any more" : "nothing found in time";
    } else {
      compare_with_staying(report.ranked.front(), changed, s);
    }
    return s;
  }

 private:
  Seconds step_of(const Job& machine, const ParallelPlan& plan) const {
    return ranked_step(predict_under(machine, plan, by_), by_);
  }
  void compare_with_staying(const RankedPlan& found, const Job& changed, Sensitivity& s) const {
    s.plan = found.plan;
    s.same = *s.plan == best_;
    Seconds then = ranked_step(found.prediction, by_);
    const Seconds stays = s.may_stay() ? step_of(changed, best_) : then;
    // Of what was not proved, staying may be better; and who gains nothing stays.
    constexpr double kNothing = 0.0005;
    if (stays < then || (s.may_stay() && stays / then - 1 < kNothing)) {
      s.same = true;
      s.plan = best_;
      then = stays;
    }
    s.slower = then / now_ - 1;
    s.regret = stays / then - 1;
    if (s.may_stay() && !s.same && !too_large(job_, plan_memory(job_, *s.plan)))
      s.as_today = now_ / step_of(job_, *s.plan) - 1 > s.regret - kTieShare / 2;
    if (s.same)
      s.text = "the same choice";
    else if (!s.may_stay())
      s.text = "no longer fits";
    else
      s.text = fmt::format("{:.1f} % faster than staying", 100 * s.gain());
  }

  const Job& job_;
  const Others& others_;
  const ParallelPlan& best_;
  RankBy by_;
  SearchSpace space_;
  Seconds now_;
};

}  // namespace

std::vector<Sensitivity> sensitivities(const Job& job, const Others& others, const ParallelPlan& best,
                                       const SearchOptions& options, RankBy by) {
  const SearchBudget budget(options);
  const ChangedMachines machines(job, others, best, by);
  std::vector<Sensitivity> out;
  const auto ask = [&](std::string what, const Job& changed) {
    if (!budget.over()) out.push_back(machines.of(std::move(what), changed, budget.next()));
  };
  const auto with_cluster = [&](std::string what, auto change) {
    ClusterSpec cluster = job.cluster;
    change(cluster);
    const Topology topology(cluster);
    ask(std::move(what), {job.model, job.training, cluster, topology, job.stack, job.cost, job.interval,
                          job.uncertainty, job.residual});
  };
  with_cluster("memory -5 %", [](ClusterSpec& c) {
    c.device.memory = Bytes(static_cast<std::int64_t>(0.95 * static_cast<double>(c.device.memory.v)));
  });
  for (const double factor : {0.8, 0.5})
    if (job.cluster.nodes > 1)
      with_cluster(fmt::format("network x{:g}", factor), [factor](ClusterSpec& c) {
        c.fabric.bandwidth = c.fabric.bandwidth * factor;
        c.node.nic_bandwidth = c.node.nic_bandwidth * factor;
      });
  if (job.cluster.node.gpus > 1)
    with_cluster("links in a node x0.8",
                 [](ClusterSpec& c) { c.node.link_bandwidth = c.node.link_bandwidth * 0.8; });
  const SlowerGemms slower(job.cost, 1.0 / 0.9);
  ask("GEMMs -10 %", {job.model, job.training, job.cluster, job.topology, job.stack, slower, job.interval,
                      job.uncertainty, job.residual});
  return out;
}

}  // namespace sextant

#include "planner/explain.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include <fmt/format.h>

#include "core/plan_links.hpp"
#include "planner/lower.hpp"
#include "planner/simulate.hpp"

namespace sextant {
namespace {

struct Simulated {
  Breakdown breakdown;
  PlanLinks links;
  Seconds step;
};

Simulated simulate_plan(const Job& job, const ParallelPlan& plan) {
  Simulated s;
  s.links = plan_links(job.topology, plan);
  const ExecutionGraph graph = lower(job.model, job.training, s.links, plan, job.stack, {.operands = false});
  const Timeline timeline = simulate(graph, price(graph, job.cost), simulate_options(job, plan));
  s.breakdown = breakdown(graph, timeline);
  s.step = timeline.makespan();
  return s;
}

bool crosses(const GroupShape& group) { return group.size > 1 && group.nodes > 1; }

// What in the layouts makes a category longer, when it can be named.
std::string cause_of(TimeCategory category, const ParallelPlan& best, const Simulated& a,
                     const ParallelPlan& other, const Simulated& b) {
  const StageLinks &la = a.links.of(0), &lb = b.links.of(0);
  switch (category) {
    case TimeCategory::compute:
      if (other.tp > best.tp)
        return fmt::format("TP {} leaves smaller products than TP {}", other.tp, best.tp);
      if (other.micro_batch < best.micro_batch)
        return fmt::format("micro-batches of {} instead of {} leave smaller products", other.micro_batch,
                           best.micro_batch);
      return "";
    case TimeCategory::recompute:
      return other.recompute == best.recompute ? ""
                                               : fmt::format("{} recomputation", name(other.recompute.kind));
    case TimeCategory::exposed_tp:
      if (crosses(lb.tp) && !crosses(la.tp)) return fmt::format("TP over {} nodes", lb.tp.nodes);
      if (other.tp > best.tp) return fmt::format("TP {} instead of {}", other.tp, best.tp);
      if (best.overlap_tp && !other.overlap_tp) return "TP collectives are not overlapped";
      return "";
    case TimeCategory::exposed_cp:
      if (crosses(lb.cp) && !crosses(la.cp)) return fmt::format("CP over {} nodes", lb.cp.nodes);
      return other.cp > best.cp ? fmt::format("CP {} instead of {}", other.cp, best.cp) : "";
    case TimeCategory::exposed_pp:
      return other.pp * other.vp > best.pp * best.vp
                 ? fmt::format("{} model chunks send instead of {}", other.pp * other.vp, best.pp * best.vp)
                 : "";
    case TimeCategory::exposed_dp:
      if (!other.overlap_grad_reduce && best.overlap_grad_reduce)
        return "gradient reduction is not overlapped";
      if (!other.overlap_param_gather && best.overlap_param_gather)
        return "parameter gather is not overlapped";
      if (other.zero_stage > best.zero_stage)
        return fmt::format("ZeRO {} instead of {}", other.zero_stage, best.zero_stage);
      if (other.replicas() > best.replicas())
        return fmt::format("{} replicas instead of {}", other.replicas(), best.replicas());
      return "";
    case TimeCategory::offload:
      return "copies from and to the host";
    case TimeCategory::bubble:
      if (other.pp > best.pp || other.vp < best.vp || other.schedule != best.schedule)
        return fmt::format("pp {} vp {} ({}) instead of pp {} vp {} ({})", other.pp, other.vp,
                           name(other.schedule), best.pp, best.vp, name(best.schedule));
      return "";
    case TimeCategory::imbalance:
      return "stages of unequal length";
    case TimeCategory::optimizer:
      return other.shards() < best.shards()
                 ? fmt::format("{} shards instead of {}", other.shards(), best.shards())
                 : "";
  }
  return "";
}

std::string words(const std::vector<TimeTerm>& terms, double total) {
  std::vector<std::string> parts;
  for (const TimeTerm& t : terms) {
    if (parts.size() == 3 || std::abs(t.seconds) < 0.05 * std::abs(total)) break;
    parts.push_back(fmt::format("{} {:+.3f} s{}", name(t.category), t.seconds,
                                t.seconds > 0 && !t.cause.empty() ? " (" + t.cause + ")" : ""));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

struct Step {
  std::string text;
  std::function<bool(ParallelPlan&)> apply;  // false: changes nothing
};

// Single changes that save memory, or that repair what does not divide.
std::vector<Step> possible_steps(const Job& job, const ParallelPlan& plan) {
  std::vector<Step> steps;
  const auto add = [&](std::string text, auto change) {
    steps.push_back({std::move(text), [change](ParallelPlan& p) {
                       const ParallelPlan before = p;
                       change(p);
                       return !(p == before);
                     }});
  };
  for (const RecomputeKind kind : {RecomputeKind::selective, RecomputeKind::full})
    add(fmt::format("{} recomputation", name(kind)), [kind](ParallelPlan& p) { p.recompute = {kind, -1}; });
  for (int mbs = plan.micro_batch / 2; mbs >= 1; mbs /= 2)
    add(fmt::format("micro-batches of {}", mbs), [mbs](ParallelPlan& p) { p.micro_batch = mbs; });
  for (int z = plan.zero_stage + 1; z <= 3; ++z)
    add(fmt::format("ZeRO stage {}", z), [z](ParallelPlan& p) { p.zero_stage = z, p.shard_degree = 0; });
  if (plan.shard_degree > 0)
    add("state sharded over all replicas", [](ParallelPlan& p) { p.shard_degree = 0; });
  if (plan.tp > 1 && !plan.sequence_parallel)
    add("sequence parallelism", [](ParallelPlan& p) { p.sequence_parallel = true; });
  for (const int factor : {2, 4, 8}) {
    if (plan.dp % factor == 0) {
      add(fmt::format("TP {} and DP {}", plan.tp * factor, plan.dp / factor),
          [factor](ParallelPlan& p) { p.tp *= factor, p.dp /= factor, p.sequence_parallel = true; });
      add(fmt::format("PP {} and DP {}", plan.pp * factor, plan.dp / factor),
          [factor](ParallelPlan& p) { p.pp *= factor, p.dp /= factor, p.chunks.clear(); });
      add(fmt::format("CP {} and DP {}", plan.cp * factor, plan.dp / factor),
          [factor](ParallelPlan& p) { p.cp *= factor, p.dp /= factor; });
    }
    if (plan.tp % factor == 0)
      add(fmt::format("TP {} and DP {}", plan.tp / factor, plan.dp * factor), [factor](ParallelPlan& p) {
        p.tp /= factor, p.dp *= factor;
        if (p.tp == 1) p.sequence_parallel = p.overlap_tp = false;
      });
    if (plan.pp % factor == 0)
      add(fmt::format("PP {} and DP {}", plan.pp / factor, plan.dp * factor), [factor](ParallelPlan& p) {
        p.pp /= factor, p.dp *= factor, p.chunks.clear();
        if (p.pp == 1) p.vp = 1, p.schedule = PipelineSchedule::one_f_one_b;
      });
  }
  if (plan.vp > 1)
    add("no virtual stages",
        [](ParallelPlan& p) { p.vp = 1, p.schedule = PipelineSchedule::one_f_one_b, p.chunks.clear(); });
  if (plan.schedule == PipelineSchedule::gpipe || plan.schedule == PipelineSchedule::zero_bubble)
    add("1F1B", [](ParallelPlan& p) { p.schedule = PipelineSchedule::one_f_one_b; });
  if (!plan.chunks.empty()) add("equal stages", [](ParallelPlan& p) { p.chunks.clear(); });
  if (plan.overlap_tp) add("no TP overlap", [](ParallelPlan& p) { p.overlap_tp = false; });
  if (plan.overlap_grad_reduce)
    add("gradient reduction behind the backward pass",
        [](ParallelPlan& p) { p.overlap_grad_reduce = false; });
  if (plan.overlap_param_gather)
    add("parameter gather before the forward pass", [](ParallelPlan& p) { p.overlap_param_gather = false; });
  if (job.stack.can.optimizer_offload)
    add("the optimizer on the host", [](ParallelPlan& p) { p.optimizer_offload = 1; });
  if (job.stack.can.parameter_offload)
    add("parameters on the host", [](ParallelPlan& p) { p.parameter_offload = true; });
  if (job.stack.can.activation_offload)
    for (const int share : {4, 2, 1})
      add(fmt::format("activations of {} layers a chunk on the host",
                      std::max(1, job.model.n_layers / (plan.pp * plan.vp) / share)),
          [share, n = job.model.n_layers](ParallelPlan& p) {
            p.activation_offload = std::max(1, n / (p.pp * p.vp) / share);
          });
  return steps;
}

bool possible(const Job& job, const ParallelPlan& plan) {
  return degrees_fit(plan) && plan.world() <= job.topology.ranks() && !unlawful(job, plan) &&
         plan_memory(job, plan).peak <= job.cluster.device.memory;
}

// Products slower by a factor; everything else as it was.
class SlowerProducts final : public CostModel {
 public:
  SlowerProducts(const CostModel& base, double factor) : base_(base), factor_(factor) {}
  OpCost price(const Work& work) const override {
    OpCost cost = base_.price(work);
    const auto* block = std::get_if<BlockWork>(&work);
    const bool products = block && (block->kind == BlockKind::qkv || block->kind == BlockKind::attention ||
                                    block->kind == BlockKind::mlp || block->kind == BlockKind::head);
    if (products) {
      const Seconds more = cost.compute * (factor_ - 1);
      cost.compute += more, cost.duration += more;
    }
    return cost;
  }

 private:
  const CostModel& base_;
  double factor_;
};

}  // namespace

Comparison compare(const Job& job, const ParallelPlan& best, const ParallelPlan& other) {
  const Simulated a = simulate_plan(job, best), b = simulate_plan(job, other);
  Comparison c;
  c.best_step = measured_step(job, best, a.step), c.other_step = measured_step(job, other, b.step);
  c.slower = c.other_step / c.best_step - 1;
  for (int i = 0; i < kTimeCategories; ++i) {
    const auto category = static_cast<TimeCategory>(i);
    const double seconds =
        b.breakdown.mean[static_cast<std::size_t>(i)] - a.breakdown.mean[static_cast<std::size_t>(i)];
    c.terms.push_back({category, seconds, cause_of(category, best, a, other, b)});
  }
  const double total = (b.step - a.step).v;
  // What explains the sign of the difference first.
  std::stable_sort(c.terms.begin(), c.terms.end(), [&](const TimeTerm& x, const TimeTerm& y) {
    return total >= 0 ? x.seconds > y.seconds : x.seconds < y.seconds;
  });
  c.text = fmt::format("{} by {:.1f} %: {}", c.slower >= 0 ? "slower" : "faster", 100 * std::abs(c.slower),
                       words(c.terms, total));
  return c;
}

std::optional<Change> smallest_fitting_change(const Job& job, const ParallelPlan& plan) {
  const std::vector<Step> steps = possible_steps(job, plan);
  std::optional<Change> best;
  const auto consider = [&](const ParallelPlan& p, const std::string& text, int fields) {
    if (!possible(job, p)) return;
    Change change{p, text, fields, predict(job, p)};
    if (!best || change.prediction.step < best->prediction.step) best = std::move(change);
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

WhyNot why_not(const Job& job, const ParallelPlan& plan, const ParallelPlan& best, double tie_share) {
  WhyNot w;
  const auto with_fix = [&] {
    w.fix = smallest_fitting_change(job, plan);
    if (w.fix)
      w.lines.push_back(fmt::format("smallest change: {} ({}), {:.3f} s a step, {:.1f} GiB", w.fix->text,
                                    plan_key(w.fix->plan), w.fix->prediction.step.v,
                                    gib(w.fix->prediction.memory.peak)));
    else
      w.lines.push_back("no change of one or two fields makes it possible");
  };
  if (degrees_fit(plan) && plan.world() > job.topology.ranks()) {
    w.rejection =
        Rejection{RejectReason::not_divisible,
                  fmt::format("needs {} GPUs, the cluster has {}", plan.world(), job.topology.ranks()),
                  static_cast<double>(plan.world()), static_cast<double>(job.topology.ranks())};
  } else {
    w.rejection = unlawful(job, plan);
  }
  if (w.rejection) {
    w.verdict = Verdict::unlawful;
    w.lines.push_back(fmt::format("not possible: {}", w.rejection->text));
    with_fix();
    return w;
  }
  w.rejection = too_large(job, plan_memory(job, plan));
  if (w.rejection) {
    w.verdict = Verdict::too_large;
    w.lines.push_back(w.rejection->text);
    with_fix();
    return w;
  }
  if (plan == best) {
    w.lines.push_back("this is the best layout");
    return w;
  }
  w.comparison = compare(job, best, plan);
  w.verdict = std::abs(w.comparison->slower) < tie_share ? Verdict::tie : Verdict::slower;
  if (w.verdict == Verdict::tie)
    w.lines.push_back(fmt::format("a tie: {} (the model cannot tell differences below {:.1f} %)",
                                  w.comparison->text, 100 * tie_share));
  else
    w.lines.push_back(w.comparison->text);
  return w;
}

std::vector<std::string> why_best(const Job& job, const SearchReport& report) {
  std::vector<std::string> lines;
  if (report.ranked.empty()) return lines;
  const ParallelPlan& best = report.ranked.front().plan;
  const Simulated s = simulate_plan(job, best);
  std::vector<std::string> parts;
  for (int i = 0; i < kTimeCategories; ++i) {
    const double share = s.breakdown.mean[static_cast<std::size_t>(i)] / s.step.v;
    if (share >= 0.002)
      parts.push_back(fmt::format("{} {:.1f} %", name(static_cast<TimeCategory>(i)), 100 * share));
  }
  lines.push_back(fmt::format("{}: {}", plan_key(best), fmt::join(parts, ", ")));
  for (std::size_t i = 1; i < report.ranked.size(); ++i) {
    const Comparison c = compare(job, best, report.ranked[i].plan);
    lines.push_back(fmt::format("{}: {}{}", plan_key(report.ranked[i].plan),
                                report.ranked[i].tie ? "a tie, " : "", c.text));
  }
  return lines;
}

std::vector<Sensitivity> sensitivities(const Job& job, const SearchSpace& space, const ParallelPlan& best,
                                       const SearchOptions& options) {
  std::vector<Sensitivity> out;
  SearchOptions one = options;
  one.top = 1;
  const auto ask = [&](std::string what, const Job& changed) {
    Sensitivity s;
    s.what = std::move(what);
    const SearchReport report = search(changed, space, one);
    s.possible = plan_memory(changed, best).peak <= changed.cluster.device.memory;
    if (report.ranked.empty()) {
      s.same = false;
      s.text = fmt::format("{}: nothing fits any more", s.what);
      out.push_back(std::move(s));
      return;
    }
    s.plan = report.ranked.front().plan;
    s.same = s.plan == best;
    const Prediction stays = predict(changed, best);
    s.regret = stays.step / report.ranked.front().prediction.step - 1;
    if (s.same)
      s.text = fmt::format("{}: the same choice", s.what);
    else if (!s.possible)
      s.text = fmt::format("{}: it no longer fits; {} then", s.what, plan_key(s.plan));
    else
      s.text =
          fmt::format("{}: {} then, {:.1f} % faster than staying", s.what, plan_key(s.plan), 100 * s.regret);
    out.push_back(std::move(s));
  };
  {
    ClusterSpec cluster = job.cluster;
    cluster.device.memory =
        Bytes(static_cast<std::int64_t>(0.95 * static_cast<double>(cluster.device.memory.v)));
    ask("memory -5 %", {job.model, job.training, cluster, job.topology, job.stack, job.cost});
  }
  {
    ClusterSpec cluster = job.cluster;
    cluster.fabric.bandwidth = cluster.fabric.bandwidth * 0.8;
    cluster.node.nic_bandwidth = cluster.node.nic_bandwidth * 0.8;
    const Topology topology(cluster);
    ask("network x0.8", {job.model, job.training, cluster, topology, job.stack, job.cost});
  }
  {
    const SlowerProducts slower(job.cost, 1.0 / 0.9);
    ask("matrix products -10 %", {job.model, job.training, job.cluster, job.topology, job.stack, slower});
  }
  return out;
}

NothingFits why_nothing_fits(const Job& job, const SearchSpace& space, int most_gpus,
                             const SearchOptions& options) {
  NothingFits n;
  n.available = job.cluster.device.memory;
  // The least memory that lets anything fit, by halving the range; each question is one search.
  SearchOptions one = options;
  one.top = 1;
  Bytes low = n.available, high = Bytes(n.available.v * 2);
  for (int i = 0; i < 8; ++i, high = Bytes(high.v * 2)) {
    one.memory_limit = high;
    const SearchReport report = search(job, space, one);
    if (!report.ranked.empty()) {
      n.closest = report.ranked.front().plan, n.needed = report.ranked.front().prediction.memory.peak;
      break;
    }
    low = high;
  }
  for (int i = 0; n.closest && i < 5; ++i) {
    one.memory_limit = Bytes((low.v + std::min(high.v, n.needed.v)) / 2);
    const SearchReport report = search(job, space, one);
    if (report.ranked.empty())
      low = *one.memory_limit;
    else
      n.closest = report.ranked.front().plan, n.needed = report.ranked.front().prediction.memory.peak;
  }
  if (n.closest)
    n.lines.push_back(fmt::format("the leanest layout, {}, needs {:.1f} of {:.1f} GiB", plan_key(*n.closest),
                                  gib(n.needed), gib(n.available)));
  else
    n.lines.push_back("no layout divides, whatever the memory");
  if (n.closest) {
    n.more_gpus = fewest_gpus(job, std::nullopt, most_gpus, space.limits, options);
    if (n.more_gpus)
      n.lines.push_back(fmt::format("it fits on {} GPUs: {}", n.more_gpus->gpus,
                                    plan_key(n.more_gpus->report.ranked.front().plan)));
    else
      n.lines.push_back(fmt::format("it does not fit on {} GPUs either", most_gpus));
  }
  return n;
}

}  // namespace sextant

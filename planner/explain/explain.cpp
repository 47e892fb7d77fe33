#include "planner/explain/explain.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "core/base/words.hpp"
#include "core/plan/plan_links.hpp"
#include "planner/simulation/robust.hpp"
#include "planner/simulation/stage_memory.hpp"

namespace sextant {
namespace {

struct SimulatedStep {
  Breakdown breakdown;
  PlanLinks links;
  Seconds step, jitter;  // by what it is ranked; the part of it that jitter adds
};

SimulatedStep simulate_plan(const Job& job, const ParallelPlan& plan, RankBy by) {
  SimulatedStep s{step_breakdown(job, plan), plan_links(job.topology, plan), {}, {}};
  s.step = measured_step(job, plan, s.breakdown.step);
  if (by == RankBy::undisturbed || job.cluster.jitter == JitterSpec{}) return s;
  const Seconds ranked = ranked_step(predict_under(job, plan, by), by);
  s.jitter = ranked - s.step;
  s.step = ranked;
  return s;
}

bool crosses_nodes(const GroupShape& group) { return group.size > 1 && group.nodes > 1; }

// "8 micro-batches for 4 stages of 2 chunks".
std::string stages_text(const ParallelPlan& plan, const TrainingSpec& training) {
  const int m = microbatches(plan, training);
  return fmt::format("{} micro-batch{} for {} stage{}{}", m, m == 1 ? "" : "es", plan.pp,
                     plan.pp == 1 ? "" : "s", plan.vp > 1 ? fmt::format(" of {} chunks", plan.vp) : "");
}

double mean_microbatches(const ParallelPlan& plan, const TrainingSpec& training) {
  return static_cast<double>(training.global_batch) / (static_cast<double>(plan.micro_batch) * plan.dp);
}

// Of its compute, what the replica with most micro-batches has above the mean of all.
double uneven_compute(const ParallelPlan& plan, const TrainingSpec& training, const SimulatedStep& s) {
  if (plan.replica_microbatches.empty()) return 0;
  return s.breakdown.mean[static_cast<std::size_t>(TimeCategory::compute)] *
         (1 - mean_microbatches(plan, training) / microbatches(plan, training));
}

// Each cause with the part of the compute that it makes, where it can be told.
std::string cause_of_compute(const Job& job, const ParallelPlan& best, const SimulatedStep& a,
                             const ParallelPlan& other, const SimulatedStep& b) {
  std::vector<std::string> causes;
  constexpr auto kCompute = static_cast<std::size_t>(TimeCategory::compute);
  const double more = b.breakdown.mean[kCompute] - a.breakdown.mean[kCompute],
               uneven = uneven_compute(other, job.training, b) - uneven_compute(best, job.training, a);
  constexpr double kNoticed = 0.05;  // of the difference
  if (uneven > kNoticed * std::abs(more)) {
    const std::string part = uneven < (1 - kNoticed) * more ? fmt::format("{:.3f} s of it as ", uneven) : "";
    causes.push_back(fmt::format("{}micro-batches of replicas differ: {} where the mean is {:.3g}", part,
                                 microbatches(other, job.training), mean_microbatches(other, job.training)));
    if (part.empty()) return causes.front();
  }
  if (other.world() < best.world())
    causes.push_back(fmt::format("{} GPUs instead of {}", other.world(), best.world()));
  if (other.tp > best.tp)
    causes.push_back(fmt::format("smaller GEMMs at TP {} than at TP {}", other.tp, best.tp));
  else if (other.micro_batch < best.micro_batch)
    causes.push_back(
        fmt::format("smaller GEMMs at micro-batches of {} than of {}", other.micro_batch, best.micro_batch));
  else if (other.cp > best.cp)
    causes.push_back(
        job.stack.rules.cp_ring
            ? fmt::format("CP {} instead of {}: attention in more, shorter steps", other.cp, best.cp)
            : fmt::format("smaller GEMMs at CP {} than at CP {}", other.cp, best.cp));
  return fmt::format("{}", fmt::join(causes, "; "));
}

// What in the layouts makes a category longer, when it can be named.
std::string cause_of(TimeCategory category, const Job& job, const ParallelPlan& best, const SimulatedStep& a,
                     const ParallelPlan& other, const SimulatedStep& b) {
  const StageLinks &la = a.links.of(0), &lb = b.links.of(0);
  switch (category) {
    case TimeCategory::compute:
      return cause_of_compute(job, best, a, other, b);
    case TimeCategory::recompute:
      return other.recompute == best.recompute ? ""
                                               : fmt::format("{} recomputation", name(other.recompute.kind));
    case TimeCategory::exposed_tp:
      if (crosses_nodes(lb.tp) && !crosses_nodes(la.tp)) return fmt::format("TP over {} nodes", lb.tp.nodes);
      if (other.tp > best.tp) return fmt::format("TP {} instead of {}", other.tp, best.tp);
      if (best.overlap_tp && !other.overlap_tp) return "TP collectives are not overlapped";
      return "";
    case TimeCategory::exposed_cp:
      if (crosses_nodes(lb.cp) && !crosses_nodes(la.cp)) return fmt::format("CP over {} nodes", lb.cp.nodes);
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
    case TimeCategory::bubble: {
      std::string stages = stages_text(other, job.training);
      if (best.pp == 1) return stages;
      const std::string before = stages_text(best, job.training);
      return stages == before ? "" : stages + " instead of " + before;
    }
    case TimeCategory::imbalance:
      return "stages of unequal length";
    case TimeCategory::optimizer:
      return other.shards() < best.shards() ? fmt::format("{} shard{} instead of {}", other.shards(),
                                                          other.shards() == 1 ? "" : "s", best.shards())
                                            : "";
  }
  return "";
}

// What explains the sign of the difference first.
std::string terms_text(const std::vector<TimeTerm>& terms, Seconds jitter, double total) {
  std::vector<std::pair<double, std::string>> parts;
  for (const TimeTerm& t : terms)
    parts.emplace_back(t.seconds, fmt::format("{} {:+.3f} s{}", words(name(t.category)), t.seconds,
                                              t.seconds > 0 && !t.cause.empty() ? " (" + t.cause + ")" : ""));
  if (jitter != Seconds(0)) parts.emplace_back(jitter.v, fmt::format("jitter {:+.3f} s", jitter.v));
  const double sign = total >= 0 ? 1 : -1;
  std::ranges::stable_sort(parts, std::ranges::greater{},
                           [&](const auto& part) { return sign * part.first; });
  constexpr std::size_t kShown = 3;
  std::vector<std::string> texts;
  for (const auto& [seconds, text] : parts) {
    if (texts.size() == kShown || std::abs(seconds) < 0.05 * std::abs(total)) break;
    texts.push_back(text);
  }
  return fmt::format("{}", fmt::join(texts, "; "));
}

// The heaviest stage of each, by category.
std::vector<MemoryTerm> memory_terms(const Job& job, const ParallelPlan& best, const ParallelPlan& other) {
  const auto heaviest = [&](const ParallelPlan& plan) {
    MemoryEstimate estimate = estimate_memory(job.model, job.training, plan, job.stack);
    return estimate.stages[static_cast<std::size_t>(estimate.heaviest)];
  };
  const StageMemory a = heaviest(best), b = heaviest(other);
  std::vector<MemoryTerm> terms;
  for (std::size_t k = 0; k < a.at_peak.size(); ++k)
    if (static_cast<BufferKind>(k) != BufferKind::host && (a.at_peak[k] > 0 || b.at_peak[k] > 0))
      terms.push_back(
          {std::string(name(static_cast<BufferKind>(k))), Bytes(a.at_peak[k]), Bytes(b.at_peak[k])});
  terms.push_back({"allocator reserve", a.fragmented, b.fragmented});
  terms.push_back({"CUDA context and NCCL", a.outside, b.outside});
  return terms;
}

}  // namespace

std::string_view name(Verdict verdict) {
  constexpr std::array<std::string_view, 6> names = {"unlawful", "too_large", "slower",
                                                     "tie",      "best",      "faster"};
  return names[static_cast<std::size_t>(verdict)];
}

Comparison compare(const Job& job, const ParallelPlan& best, const ParallelPlan& other, RankBy by) {
  const SimulatedStep a = simulate_plan(job, best, by), b = simulate_plan(job, other, by);
  Comparison c;
  c.best_step = a.step;
  c.other_step = b.step;
  c.best_jitter = a.jitter;
  c.other_jitter = b.jitter;
  c.slower = c.other_step / c.best_step - 1;
  c.best = a.breakdown.mean;
  c.other = b.breakdown.mean;
  for (int i = 0; i < kTimeCategories; ++i) {
    const auto category = static_cast<TimeCategory>(i);
    const double seconds =
        b.breakdown.mean[static_cast<std::size_t>(i)] - a.breakdown.mean[static_cast<std::size_t>(i)];
    c.terms.push_back({category, seconds, cause_of(category, job, best, a, other, b)});
  }
  const Seconds jitter = b.jitter - a.jitter;
  const double total = (b.breakdown.step - a.breakdown.step + jitter).v;
  std::stable_sort(c.terms.begin(), c.terms.end(), [&](const TimeTerm& x, const TimeTerm& y) {
    return total >= 0 ? x.seconds > y.seconds : x.seconds < y.seconds;
  });
  c.text = fmt::format("{} by {:.1f} %: {}", c.slower >= 0 ? "slower" : "faster", 100 * std::abs(c.slower),
                       terms_text(c.terms, jitter, total));
  return c;
}

WhyNot why_not(const Job& job, const ParallelPlan& plan, const ParallelPlan& best, RankBy by,
               double tie_share) {
  WhyNot w;
  const auto with_fix = [&] {
    w.fix = smallest_fitting_change(job, plan, by);
    if (w.fix)
      w.lines.push_back(fmt::format("smallest change: {} ({}), {:.3f} s a step, {:.1f} GiB", w.fix->text,
                                    plan_key(w.fix->plan), ranked_step(w.fix->prediction, by).v,
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
    w.short_by = Bytes(static_cast<std::int64_t>(w.rejection->needed - w.rejection->available));
    w.memory = memory_terms(job, best, plan);
    w.lines.push_back(
        fmt::format("does not fit: {}, {:.1f} GiB too much", w.rejection->text, gib(w.short_by)));
    with_fix();
    return w;
  }
  if (plan == best) {
    w.lines.push_back("this is the layout that it would be compared with");
    return w;
  }
  w.comparison = compare(job, best, plan, by);
  w.verdict = std::abs(w.comparison->slower) < tie_share ? Verdict::tie
              : w.comparison->slower > 0                 ? Verdict::slower
                                                         : Verdict::faster;
  if (w.verdict == Verdict::tie)
    w.lines.push_back(fmt::format("a tie: {} (measured runs bear out no order below {:.0f} %)",
                                  w.comparison->text, 100 * tie_share));
  else
    w.lines.push_back(w.comparison->text);
  return w;
}

WhyNot why_not(const Job& job, const FilledPlan& filled, const ParallelPlan& best, RankBy by) {
  WhyNot w = why_not(job, filled.plan, best, by);
  if (!filled.indivisible) return w;
  const Problem& p = *filled.indivisible;
  std::string text = fmt::format("{}, expected {} ({})", p.value, p.expected, p.hint);
  if (w.verdict == Verdict::unlawful) {
    text += "; " + w.rejection->text;
  } else {
    w = WhyNot();
    w.verdict = Verdict::unlawful;
    w.lines.emplace_back();
  }
  w.rejection = Rejection{RejectReason::not_divisible, text, 0, 0};
  w.lines.front() = "not possible: " + text;
  return w;
}

}  // namespace sextant

// The layouts that bear a varying machine best, that need least memory, and that trade time against memory.
#include <algorithm>
#include <cmath>
#include <ostream>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "planner/robust.hpp"
#include "planner/scale.hpp"
#include "tools/layout_table.hpp"
#include "tools/plan_answers.hpp"

namespace sextant {

namespace {

using Json = nlohmann::ordered_json;

// The layouts that are best on a network as slow as in one step of ten, or as in the mean of its times: what bears a varying
// network may lie far below the best on a steady one.
std::vector<RankedPlan> best_on_slow_network(const Asking& a, bool p90, int top) {
  const double sigma = a.question().cluster.jitter.network_sigma;
  if (sigma <= 0) return {};
  // Of a lognormal factor of mean 1: the 10th percentile, or the inverse of the mean of its inverse.
  const double factor = std::exp(p90 ? -1.2816 * sigma - 0.5 * sigma * sigma : -sigma * sigma);
  Question slow = a.question();
  slow.cluster.fabric.bandwidth = slow.cluster.fabric.bandwidth * factor;
  slow.cluster.node.nic_bandwidth = slow.cluster.node.nic_bandwidth * factor;
  const Planning planning(std::move(slow), a.session.presets());
  return search_possible(planning.job(), a.space, a.searching.options(top)).ranked;
}

}  // namespace

// The expected step is never below the steady one (a step is convex in its durations, whose means jitter does not
// lower), so that the first layout left out bounds all the others; for the 90th percentile that is a rule of thumb.
ExitCode answer_steadiest(const Asking& a) {
  const Job job = a.planning.job();
  const JitterSpec& jitter = a.question().cluster.jitter;
  if (jitter == JitterSpec{})
    throw UsageError(
        "--rank-by needs jitter\n  for example: --straggler-sigma 0.02 --network-sigma 0.1, or the cluster's "
        "jitter.compute_sigma");
  const bool p90 = a.options.rank_by == "p90";
  const auto measure = [&](const RobustPlan& p) { return p90 ? p.step.p90 : p.step.mean; };
  constexpr int kSampled = 30;  // kinds of layouts
  SearchReport report = search_possible(job, a.space, a.searching.options(1));
  if (report.ranked.empty()) return nothing(a, report);
  std::vector<RobustPlan> ranked;
  const auto sample = [&] {
    ranked = rank_robust(job, report, jitter, p90 ? RobustMeasure::p90 : RobustMeasure::mean);
  };
  sample();
  // What is slower without jitter than the steady best is with it cannot be better.
  const ParallelPlan& steady_best = report.ranked.front().plan;
  const Seconds fixed = measured_step(job, steady_best, Seconds(0));
  const Seconds at_most((measure(ranked.front()) - fixed) /
                        (measured_step(job, steady_best, Seconds(1)) - fixed));
  const int n = std::max(kSampled, 2 * a.options.top);
  SearchOptions how = a.searching.options(n);
  how.at_most = at_most;
  // Nothing comes back when it is stopped at once.
  if (SearchReport more = search_possible(job, a.space, how); !more.ranked.empty()) report = std::move(more);
  const bool all = static_cast<int>(report.ranked.size()) < n;
  const Seconds not_listed = report.ranked.back().prediction.step;
  for (RankedPlan& found : best_on_slow_network(a, p90, a.options.top)) {
    const auto same = [&](const RankedPlan& r) { return r.plan == found.plan; };
    if (std::any_of(report.ranked.begin(), report.ranked.end(), same)) continue;
    found.prediction = predict(job, found.plan);
    found.simulated = found.prediction.step, found.before_moves.reset();
    report.ranked.push_back(std::move(found));
  }
  sample();
  for (RobustPlan& r : ranked)
    use_covariance(a.session, a.options.question, a.question(), r.plan.plan, r.plan.prediction);
  const bool enough = report.exact && (all || not_listed >= measure(ranked.front()));
  a.searching.finish();
  const std::size_t sampled = ranked.size();
  const Seconds beyond = measure(ranked.front());
  ranked.resize(std::min(sampled, static_cast<std::size_t>(a.options.top)));
  for (RobustPlan& r : ranked) r.plan.tie = &r != &ranked.front() && r.plan.slower < kTieShare;
  RankedPlan written = ranked.front().plan;  // as simulate writes it
  written.prediction = expected(written.prediction, ranked.front().step);
  write_plan(a, a.question().cluster.gpus(), written);
  if (a.session.common.json) {
    Json j = answer_json(a, {}, report);
    j["rank_by"] = a.options.rank_by;
    for (const RobustPlan& r : ranked) {
      Json entry = ranked_json(r.plan);
      entry["expected_step_time_s"] = r.step.mean.v, entry["p90_step_time_s"] = r.step.p90.v;
      j["ranked"].push_back(std::move(entry));
    }
    j["jitter"] = {{"compute_sigma", jitter.compute_sigma}, {"network_sigma", jitter.network_sigma}};
    j["sampled_layouts"] = sampled, j["ranking_proved"] = enough;
    print_json(a.session, "plan", j);
    return finished(a, true);
  }
  LayoutTable table({{"#"}}, {{"expected s"}, {"p90 s"}, {"slower %"}});
  int rank = 0;
  for (const RobustPlan& r : ranked) {
    ++rank;
    table.add({fmt::format("{}", rank)}, r.plan,
              {fmt::format("{:.3f}", r.step.mean.v), fmt::format("{:.3f}", r.step.p90.v),
               slower_text(r.plan, rank == 1)},
              rank == 1);
  }
  a.say_question();
  a.say(
      fmt::format("ranked by the {} of {} steps; spread of each rank's compute {:g} %, of the network {:g} %",
                  p90 ? "90th percentile" : "mean", ranked.front().step.samples, 100 * jitter.compute_sigma,
                  100 * jitter.network_sigma));
  a.out() << '\n' << table.render(a.session.terminal, a.session.common.wide) << '\n';
  print_best(a, ranked.front().plan);
  const ParallelPlan& steady = report.ranked.front().plan;
  a.say(steady == ranked.front().plan.plan
            ? "Without jitter it is the best as well."
            : fmt::format("Without jitter {} is the best, with {:.3f} s.", plan_key(steady),
                          report.ranked.front().prediction.step.v));
  a.say(enough ? fmt::format(
                     "The best of {} layouts that were sampled; every other kind takes at least {:.3f} s "
                     "even without jitter.",
                     sampled, beyond.v)
               : fmt::format(
                     "The best of {} layouts that were sampled; others were not, so that this is no proof.",
                     sampled));
  print_search(a, report, " without jitter");
  print_next(a, a.question().cluster.gpus(), ranked.front().plan.plan);
  return finished(a, true);
}

ExitCode answer_leanest(const Asking& a) {
  const Job job = a.planning.job();
  if (never_possible(job, a.space)) return nothing(a, search_possible(job, a.space, {}));
  LeanestPlans lean = leanest_plans(job, a.space, a.searching.options(a.options.top));
  if (lean.report.ranked.empty()) return nothing(a, lean.report);
  a.searching.finish();
  use_covariance(a.session, a.options.question, a.question(), lean.report.ranked);
  const RankedPlan& best = lean.report.ranked.front();
  write_plan(a, a.question().cluster.gpus(), best);
  if (a.session.common.json) {
    Json j = answer_json(a, lean.report.ranked, lean.report);
    j["least_memory_GiB"] = gib(lean.limit), j["no_layout_within_GiB"] = gib(lean.needs_more);
    print_json(a.session, "plan", j);
    return finished(a, true);
  }
  print_ranking(a, lean.report.ranked);
  print_best(a, best);
  // Rounded down, so that it holds as it is printed.
  const Bytes least = lean.proved ? lean.limit : lean.needs_more;
  a.say(fmt::format(
      "No layout needs less than {:.3f} GiB{}. --pareto trades time against memory.",
      std::floor(1000 * gib(least)) / 1000,
      lean.proved ? "; these need no more" : "; whether one needs less than these is not proved"));
  a.say(fmt::format("{} layouts: {}.", count_text(lean.report.space), fates_text(lean.report.fates)));
  if (!lean.report.exact)
    a.say(fmt::format("That the first is the {} is not proved: {}.", lean.proved ? "fastest" : "leanest",
                      lean.report.stopped));
  print_next(a, a.question().cluster.gpus(), best.plan);
  return finished(a, true);
}

ExitCode answer_front(const Asking& a) {
  const Job job = a.planning.job();
  if (never_possible(job, a.space)) return nothing(a, search_possible(job, a.space, {}));
  const ParetoFront found = pareto_front(job, a.space, a.searching.options(1, "pareto"));
  if (found.plans.empty()) return nothing(a, search_possible(job, a.space, a.searching.options(1)));
  a.searching.finish();
  write_plan(a, a.question().cluster.gpus(), found.plans.front());
  if (a.session.common.json) {
    Json j = question_json(a.question());
    j["objective"] = a.options.objective, j["pareto"] = Json::array();
    j.update(report_json(found.report));
    j["exact"] = found.exact;
    for (const RankedPlan& r : found.plans) j["pareto"].push_back(ranked_json(r));
    print_json(a.session, "plan", j);
    return finished(a, true);
  }
  LayoutTable table({}, {{"slower %"}});
  for (const RankedPlan& r : found.plans) table.add({}, r, {slower_text(r, &r == &found.plans.front())});
  a.say_question();
  a.out() << '\n' << table.render(a.session.terminal, a.session.common.wide) << '\n';
  a.say(
      fmt::format("{} layouts: each is the fastest of those that need at least 10 % less memory than the one "
                  "above.",
                  found.plans.size()));
  a.say(found.exact
            ? fmt::format(
                  "Within {:.2f} GiB every layout takes more than 1.5 times the first one's step: proved.",
                  gib(found.needs_more))
            : "Stopped early: leaner layouts were not looked for.");
  a.say(fmt::format("{} layouts: {}.", count_text(found.report.space), fates_text(found.report.fates)));
  print_next(a, a.question().cluster.gpus(), found.plans.back().plan);
  return finished(a, true);
}

}  // namespace sextant

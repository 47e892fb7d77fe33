// Other sizes of the cluster: the scaling curve, the cheapest tokens, the fewest GPUs.
#include <algorithm>
#include <cmath>
#include <ostream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "planner/answers/scale.hpp"
#include "tools/output/layout_table.hpp"
#include "tools/output/training_time.hpp"
#include "tools/terminal/bar.hpp"
#include "tools/verbs/plan_answers.hpp"

namespace sextant {

namespace {

using Json = nlohmann::ordered_json;

// Whole nodes up to the cluster: every number where there are few, otherwise doubling.
constexpr int kFewNodes = 16;
std::vector<int> usual_sizes(const ClusterSpec& cluster) {
  std::vector<int> sizes;
  for (int nodes = 1; nodes < cluster.nodes; nodes = cluster.nodes <= kFewNodes ? nodes + 1 : 2 * nodes)
    sizes.push_back(nodes * cluster.node.gpus);
  sizes.push_back(cluster.gpus());
  return sizes;
}

Json point_json(const Asking& a, const ScalePoint& point) {
  Json j = {{"gpus", point.gpus},
            {"exact", point.report.exact},
            {"efficiency", point.efficiency},
            {"best", nullptr}};
  j.update(report_json(point.report));
  if (!point.report.ranked.empty()) j["best"] = ranked_json(a, point.best());
  return j;
}

// Of a size without a layout.
const char* why_empty(const SearchReport& report) {
  const OutcomeCounts& outcomes = report.outcomes;
  if (!report.exact) return "nothing found";
  if (outcomes[Outcome::out_of_memory] > 0) return "nothing fits";
  return outcomes[Outcome::unsupported_by_stack] + outcomes[Outcome::outside_limits] > 0
             ? "nothing allowed divides"
             : "nothing divides";
}

std::string days_text(double seconds) {
  return seconds >= 172800 ? fmt::format("{:.1f} days", seconds / 86400)
                           : fmt::format("{:.1f} hours", seconds / 3600);
}

// Where a deadline is to be held, by layouts without unusual features as far as these hold it on any size.
FewestGpus fewest_of(const Asking& a, const Job& job, std::optional<Seconds> deadline) {
  const Question& q = a.question();
  const int all = q.cluster.gpus();
  if (deadline && !a.options.daring) {
    const EvidenceTable evidence = load_evidence(a.session.presets());
    FewestGpus usual = fewest_usual_gpus(job, deadline, all, q.limits, evidence,
                                         a.searching.options(a.options.top, "sizes"));
    if (usual.found) return usual;
  }
  return fewest_gpus(job, deadline, all, q.limits, a.searching.options(a.options.top, "sizes"));
}

}  // namespace

ExitCode answer_curve(const Asking& a) {
  const Job job = a.planning.job();
  const Question& q = a.question();
  const bool cheap = a.options.objective == "tokens-per-dollar", lasting = a.options.objective == "goodput";
  const SaveKind saves = a.options.goodput.kind();
  if (lasting && !failure_model(job, q.cluster.gpus(), saves))
    throw UsageError(
        fmt::format("what failures and storage of {} do is not known\n  for example: --node-mtbf-hours "
                    "5000 --storage-GBps 100",
                    q.cluster.name.empty() ? "the cluster" : q.cluster.name));
  if (cheap && q.cluster.device.price_usd_per_hour <= 0)
    throw UsageError(fmt::format("the price of {} is not known\n  for example: --price-per-gpu-hour 2.5",
                                 q.cluster.device.name));
  const std::vector<int> sizes =
      a.options.scale.empty() ? usual_sizes(q.cluster) : parse_sizes(a.options.scale);
  const DecisionBasis basis{rule_of(a), load_evidence(a.session.presets())};
  const auto points = scaling_curve(job, sizes, q.limits, a.searching.options(1, "sizes"),
                                    a.options.daring ? nullptr : &basis);
  const ScalePoint* chosen = cheap ? cheapest(points) : lasting ? most_lasting(job, points, saves) : nullptr;
  const bool any =
      std::any_of(points.begin(), points.end(), [](const auto& p) { return !p.report.ranked.empty(); });
  a.searching.finish();
  if (chosen) write_plan(a, chosen->gpus, chosen->best());
  if (a.session.common.json) {
    Json j = question_json(q);
    j["objective"] = a.options.objective;
    j["ranked"] = Json::array(), j["scale"] = Json::array();
    if (chosen) j["ranked"].push_back(ranked_json(a, chosen->best()));
    for (const ScalePoint& point : points) j["scale"].push_back(point_json(a, point));
    j["exact"] = points.size() == sizes.size() &&
                 std::all_of(points.begin(), points.end(), [](const auto& p) { return p.report.exact; });
    print_json(a.session, "plan", j);
    return finished(a, any);
  }
  const bool priced = q.cluster.device.price_usd_per_hour > 0;
  std::vector<Column> after = {{"efficiency %", Align::right, 1}, {"tokens/s", Align::left, 2}};
  const bool fails = failure_model(job, q.cluster.gpus(), saves).has_value();
  if (fails) after.push_back({"goodput %", Align::right, lasting ? 0 : 3});
  if (fails) after.push_back({"lasting tok/s", Align::right, lasting ? 0 : 3});
  if (priced) after.push_back({"$/M tokens", Align::right, cheap ? 0 : 3});
  const std::string& tokens = a.options.tokens;
  if (!tokens.empty()) after.push_back({fmt::format("days of {}", tokens), Align::right, 0});
  constexpr int kRateColumns = 10;  // of a bar as long as that of the fastest size
  double fastest = 0;
  for (const ScalePoint& point : points)
    if (!point.report.ranked.empty()) fastest = std::max(fastest, point.best().prediction.tokens_per_s);
  LayoutTable table({{"GPUs"}}, after);
  for (const ScalePoint& point : points) {
    const std::string gpus = fmt::format("{}", point.gpus);
    if (point.report.ranked.empty()) {
      table.add_empty({gpus}, why_empty(point.report));
      continue;
    }
    const RankedPlan& best = point.best();
    std::vector<std::string> cells = {
        fmt::format("{:.1f}", 100 * point.efficiency),
        bar_text(a.session.terminal, best.prediction.tokens_per_s / fastest, kRateColumns)};
    if (const auto g = goodput(job, best.plan, best.prediction.step, saves)) {
      cells.push_back(fmt::format("{:.1f}", 100 * g->goodput));
      cells.push_back(fmt::format("{:.0f}", g->tokens_per_s));
    }
    if (priced) cells.push_back(fmt::format("{:.4f}", best.prediction.usd_per_million_tokens));
    if (!tokens.empty())
      cells.push_back(training_days_text(tokens, q.training, q.cluster, best.plan, best.prediction));
    table.add({gpus}, best, cells, &point == chosen);
  }
  a.say_question();
  a.out() << '\n' << table.render(a.session.terminal, a.session.common.wide) << '\n';
  if (points.size() < sizes.size())
    a.say(fmt::format("Stopped early: {} of {} sizes were looked at.", points.size(), sizes.size()));
  for (const ScalePoint& point : points)
    if (!point.report.exact)
      a.say(fmt::format("Not proved best on {} GPUs: {}.", point.gpus, point.report.stopped));
  OutcomeCounts outcomes;
  std::uint64_t space = 0;
  for (const ScalePoint& point : points) outcomes += point.report.outcomes, space += point.report.space;
  a.say(fmt::format("{} layouts of all sizes: {}.", count_text(space), outcomes_text(outcomes)));
  a.say(
      "Every size has the same global batch; efficiency is tokens/s/GPU against the smallest size that "
      "fits.");
  a.say(a.options.daring ? "Of each size the fastest on paper."
                         : "Of each size the recommended layout; --daring shows the fastest on paper.");
  if (!q.cluster.defects.empty())
    a.say("Sizes below the cluster's leave out the nodes with the worst defects.");
  if (chosen && a.options.scale.empty()) a.say("Of these sizes alone; --scale takes others.");
  if (chosen) {
    const RankedPlan& best = chosen->best();
    if (lasting)
      a.say(fmt::format("most lasting tokens: {} GPUs", chosen->gpus));
    else
      a.say(fmt::format("cheapest: {} GPUs, {:.4f} $ per million tokens at {:g} $ per GPU and hour",
                        chosen->gpus, best.prediction.usd_per_million_tokens,
                        q.cluster.device.price_usd_per_hour));
    print_best(a, best);
    print_safe(a, {best});
    print_next(a, chosen->gpus, best.plan);
  } else if (any) {
    const auto last =
        std::find_if(points.rbegin(), points.rend(), [](const auto& p) { return !p.report.ranked.empty(); });
    print_next(a, last->gpus, last->best().plan);
  }
  return finished(a, any);
}

ExitCode answer_fewest(const Asking& a) {
  const Job job = a.planning.job();
  const Question& q = a.question();
  const auto deadline = longest_step(a.options, q.training);
  if (never_possible(job, a.space)) return nothing(a, search_possible(job, a.space, {}));
  const FewestGpus f = fewest_of(a, job, deadline);
  if (!f.found && !f.most) return nothing(a, search_possible(job, a.space, a.searching.options(1)));
  a.searching.finish();
  const ScalePoint& point = f.found ? *f.found : *f.most;
  const RankedPlan& best = point.report.ranked.front();
  // What the tokens take with a plan.
  const auto takes = [&](const RankedPlan& r) {
    return deadline
               ? days_text(r.prediction.step / *deadline * parse_duration(a.options.deadline, "--deadline").v)
               : "";
  };
  if (f.found) write_plan(a, point.gpus, best);
  if (a.session.common.json) {
    Json j = answer_json(a, f.found ? point.report.ranked : std::vector<RankedPlan>{}, point.report);
    j["fewest_gpus"] = f.found ? Json(point.gpus) : Json(nullptr);
    j["deadline_step_time_s"] = deadline ? Json(deadline->v) : Json(nullptr);
    j["next_smaller_gpus"] = f.next_smaller, j["all_sizes_tried"] = f.exact;
    j["all_sizes_tried_to"] = f.every_to, j["usual_layouts_alone"] = f.usual;
    j["best_on_all"] = f.most ? ranked_json(a, f.most->report.ranked.front()) : Json(nullptr);
    print_json(a.session, "plan", j);
    return finished(a, f.found.has_value());
  }
  if (!f.found) {
    const bool exact = point.report.exact;
    print_error(
        a.session.terminal, "sextant plan",
        exact ? fmt::format("{} GPUs cannot meet the deadline", q.cluster.gpus())
              : fmt::format("nothing was found in time that meets the deadline on {} GPUs", q.cluster.gpus()),
        fmt::format("  the best {}takes {:.3f} s a step, {} tokens take {}: {}\n"
                    "  the deadline allows {:.3f} s a step; try more GPUs, or --deadline {:.0f}d\n",
                    exact ? "" : "found ", best.prediction.step.v, a.options.tokens, takes(best),
                    plan_key(best.plan), deadline->v,
                    std::ceil(best.prediction.step / *deadline *
                              parse_duration(a.options.deadline, "--deadline").v / 86400)));
    return finished(a, false);
  }
  print_ranking(a, point.report.ranked);
  const std::string reason = deadline
                                 ? fmt::format(": {} tokens take {} of {}", a.options.tokens, takes(best),
                                               days_text(parse_duration(a.options.deadline, "--deadline").v))
                                 : "";
  a.say(fmt::format("fewest: {} of {} GPUs{}", point.gpus, q.cluster.gpus(), reason));
  const char* lacks = deadline ? "too slow" : "too few";
  if (f.usual)
    a.say("Layouts without unusual features alone; --daring takes all that fit, and may do with fewer.");
  if (f.exact && f.next_smaller > 0)
    a.say(fmt::format("{} would be {}, as is every smaller number: all were tried{}.", f.next_smaller, lacks,
                      deadline ? ", by layouts on the search grid" : ""));
  if (!f.exact && !f.in_time)
    a.say(fmt::format("The time for the search is spent: fewer may do. {} are known to be {}.",
                      f.next_smaller, lacks));
  else if (!f.exact)
    a.say(fmt::format(
        "Every number up to {} was tried and is {}; from there on whole nodes alone{}: a number between may "
        "do.",
        f.every_to, lacks,
        f.next_smaller > f.every_to ? fmt::format(", of which {} are {}", f.next_smaller, lacks) : ""));
  print_best(a, best);
  print_safe(a, point.report.ranked);
  print_search(a, point.report);
  print_next(a, point.gpus, best.plan);
  return finished(a, true);
}

}  // namespace sextant

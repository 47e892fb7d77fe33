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

// The sizes that were looked at, and what was asked of them.
struct ScalingCurve {
  const Job& job;
  const std::vector<int>& sizes;          // that were asked for
  const std::vector<ScalePoint>& points;  // as far as the time went
  const ScalePoint* chosen;               // of an objective over sizes; null: none
  bool cheap = false, lasting = false;    // the objective
  SaveKind saves = {};
  // Whether any has a layout.
  bool any() const {
    return std::ranges::any_of(points, [](const ScalePoint& p) { return !p.report.ranked.empty(); });
  }
};

// What the objective needs to know.
void check_curve(const Asking& a, const Job& job, bool cheap, bool lasting) {
  const ClusterSpec& cluster = a.question().cluster;
  if (lasting && !failure_model(job, cluster.gpus(), a.options.goodput.kind()))
    throw UsageError(
        fmt::format("what failures and storage of {} do is not known\n  for example: --node-mtbf-hours "
                    "5000 --storage-GBps 100",
                    cluster.name.empty() ? "the cluster" : cluster.name));
  if (cheap && cluster.device.price_usd_per_hour <= 0)
    throw UsageError(fmt::format("the price of {} is not known\n  for example: --price-per-gpu-hour 2.5",
                                 cluster.device.name));
}

Json curve_json(const Asking& a, const ScalingCurve& c) {
  Json j = question_json(a.question());
  j["objective"] = a.options.objective;
  j["ranked"] = Json::array();
  j["scale"] = Json::array();
  if (c.chosen) j["ranked"].push_back(ranked_json(a, c.chosen->best()));
  for (const ScalePoint& point : c.points) j["scale"].push_back(point_json(a, point));
  j["exact"] = c.points.size() == c.sizes.size() &&
               std::ranges::all_of(c.points, [](const ScalePoint& p) { return p.report.exact; });
  return j;
}

std::vector<Column> curve_columns(const Asking& a, const ScalingCurve& c) {
  const ClusterSpec& cluster = a.question().cluster;
  std::vector<Column> after = {{"efficiency %", Align::right, 1}, {"tokens/s", Align::left, 2}};
  if (failure_model(c.job, cluster.gpus(), c.saves)) {
    after.push_back({"goodput %", Align::right, c.lasting ? 0 : 3});
    after.push_back({"lasting tok/s", Align::right, c.lasting ? 0 : 3});
  }
  if (cluster.device.price_usd_per_hour > 0) after.push_back({"$/M tokens", Align::right, c.cheap ? 0 : 3});
  const std::string& tokens = a.options.tokens;
  if (!tokens.empty()) after.push_back({fmt::format("days of {}", tokens), Align::right, 0});
  return after;
}

// `fastest`: of all sizes, in tokens/s.
std::vector<std::string> curve_cells(const Asking& a, const ScalingCurve& c, const ScalePoint& point,
                                     double fastest) {
  constexpr int kRateColumns = 10;  // of a bar as long as that of the fastest size
  const Question& q = a.question();
  const RankedPlan& best = point.best();
  std::vector<std::string> cells = {
      fmt::format("{:.1f}", 100 * point.efficiency),
      bar_text(a.session.terminal, best.prediction.tokens_per_s / fastest, kRateColumns)};
  if (const auto g = goodput(c.job, best.plan, best.prediction.step, c.saves)) {
    cells.push_back(fmt::format("{:.1f}", 100 * g->goodput));
    cells.push_back(fmt::format("{:.0f}", g->tokens_per_s));
  }
  if (q.cluster.device.price_usd_per_hour > 0)
    cells.push_back(fmt::format("{:.4f}", best.prediction.usd_per_million_tokens));
  const std::string& tokens = a.options.tokens;
  if (!tokens.empty())
    cells.push_back(training_days_text(tokens, q.training, q.cluster, best.plan, best.prediction));
  return cells;
}

void print_curve_table(const Asking& a, const ScalingCurve& c) {
  double fastest = 0;
  for (const ScalePoint& point : c.points)
    if (!point.report.ranked.empty()) fastest = std::max(fastest, point.best().prediction.tokens_per_s);
  LayoutTable table({{"GPUs"}}, curve_columns(a, c));
  for (const ScalePoint& point : c.points) {
    const std::string gpus = fmt::format("{}", point.gpus);
    if (point.report.ranked.empty())
      table.add_empty({gpus}, why_empty(point.report));
    else
      table.add({gpus}, point.best(), curve_cells(a, c, point, fastest), &point == c.chosen);
  }
  a.say_question();
  a.out() << '\n' << table.render(a.session.terminal, a.session.common.wide) << '\n';
}

// What the table is of, and how far it is proved.
void print_curve_notes(const Asking& a, const ScalingCurve& c) {
  if (c.points.size() < c.sizes.size())
    a.say(fmt::format("Stopped early: {} of {} sizes were looked at.", c.points.size(), c.sizes.size()));
  for (const ScalePoint& point : c.points)
    if (!point.report.exact)
      a.say(fmt::format("Not proved best on {} GPUs: {}.", point.gpus, point.report.stopped));
  OutcomeCounts outcomes;
  std::uint64_t space = 0;
  for (const ScalePoint& point : c.points) {
    outcomes += point.report.outcomes;
    space += point.report.space;
  }
  a.say(fmt::format("{} layouts of all sizes: {}.", count_text(space), outcomes_text(outcomes)));
  a.say(
      "Every size has the same global batch; efficiency is tokens/s/GPU against the smallest size that "
      "fits.");
  a.say(a.options.daring ? "Of each size the fastest on paper."
                         : "Of each size the recommended layout; --daring shows the fastest on paper.");
  if (!a.question().cluster.defects.empty())
    a.say("Sizes below the cluster's leave out the nodes with the worst defects.");
  if (c.chosen && a.options.scale.empty()) a.say("Of these sizes alone; --scale takes others.");
}

void print_chosen_size(const Asking& a, const ScalingCurve& c) {
  if (!c.chosen) {
    if (!c.any()) return;
    const auto last = std::find_if(c.points.rbegin(), c.points.rend(),
                                   [](const ScalePoint& p) { return !p.report.ranked.empty(); });
    return print_next(a, last->gpus, last->best().plan);
  }
  const RankedPlan& best = c.chosen->best();
  if (c.lasting)
    a.say(fmt::format("most lasting tokens: {} GPUs", c.chosen->gpus));
  else
    a.say(fmt::format("cheapest: {} GPUs, {:.4f} $ per million tokens at {:g} $ per GPU and hour",
                      c.chosen->gpus, best.prediction.usd_per_million_tokens,
                      a.question().cluster.device.price_usd_per_hour));
  print_best(a, best);
  print_safe(a, {best});
  print_next(a, c.chosen->gpus, best.plan);
}

// The size that was found, or that comes closest, and the deadline it is for.
struct FewestAnswer {
  const Asking& asking;
  const FewestGpus& fewest;
  std::optional<Seconds> deadline;  // of a step
  const ScalePoint& point() const { return fewest.found ? *fewest.found : *fewest.most; }
  const RankedPlan& best() const { return point().report.ranked.front(); }
  double deadline_s() const { return parse_duration(asking.options.deadline, "--deadline").v; }
  // What the tokens take with the best layout.
  std::string takes() const {
    return deadline ? days_text(best().prediction.step / *deadline * deadline_s()) : "";
  }
};

Json fewest_json(const FewestAnswer& answer) {
  const auto& [a, f, deadline] = answer;
  const SearchReport& report = answer.point().report;
  Json j = answer_json(a, f.found ? report.ranked : std::vector<RankedPlan>{}, report);
  j["fewest_gpus"] = f.found ? Json(f.found->gpus) : Json(nullptr);
  j["deadline_step_time_s"] = deadline ? Json(deadline->v) : Json(nullptr);
  j["next_smaller_gpus"] = f.next_smaller;
  j["all_sizes_tried"] = f.exact;
  j["all_sizes_tried_to"] = f.every_to;
  j["usual_layouts_alone"] = f.usual;
  j["best_on_all"] = f.most ? ranked_json(a, f.most->report.ranked.front()) : Json(nullptr);
  return j;
}

void print_too_slow(const FewestAnswer& answer) {
  const Asking& a = answer.asking;
  const int gpus = a.question().cluster.gpus();
  const bool exact = answer.point().report.exact;
  const Seconds step = answer.best().prediction.step;
  print_error(a.session.terminal, "sextant plan",
              exact ? fmt::format("{} GPUs cannot meet the deadline", gpus)
                    : fmt::format("nothing was found in time that meets the deadline on {} GPUs", gpus),
              fmt::format("  the best {}takes {:.3f} s a step, {} tokens take {}: {}\n"
                          "  the deadline allows {:.3f} s a step; try more GPUs, or --deadline {:.0f}d\n",
                          exact ? "" : "found ", step.v, a.options.tokens, answer.takes(),
                          plan_key(answer.best().plan), answer.deadline->v,
                          std::ceil(step / *answer.deadline * answer.deadline_s() / 86400)));
}

// Which numbers were tried, and what fewer would be.
void print_fewest_notes(const Asking& a, const FewestGpus& f, bool deadline) {
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
}

void print_fewest(const FewestAnswer& answer) {
  const Asking& a = answer.asking;
  const SearchReport& report = answer.point().report;
  print_ranking(a, report.ranked);
  const std::string reason = answer.deadline ? fmt::format(": {} tokens take {} of {}", a.options.tokens,
                                                           answer.takes(), days_text(answer.deadline_s()))
                                             : "";
  a.say(fmt::format("fewest: {} of {} GPUs{}", answer.point().gpus, a.question().cluster.gpus(), reason));
  print_fewest_notes(a, answer.fewest, answer.deadline.has_value());
  print_best(a, answer.best());
  print_safe(a, report.ranked);
  print_search(a, report);
  print_next(a, answer.point().gpus, answer.best().plan);
}

}  // namespace

ExitCode answer_curve(const Asking& a) {
  const Job job = a.planning.job();
  const Question& q = a.question();
  const bool cheap = a.options.objective == "tokens-per-dollar", lasting = a.options.objective == "goodput";
  check_curve(a, job, cheap, lasting);
  const SaveKind saves = a.options.goodput.kind();
  const std::vector<int> sizes =
      a.options.scale.empty() ? usual_sizes(q.cluster) : parse_sizes(a.options.scale);
  const DecisionBasis basis{rule_of(a), load_evidence(a.session.presets())};
  const auto points = scaling_curve(job, sizes, q.limits, a.searching.options(1, "sizes"),
                                    a.options.daring ? nullptr : &basis);
  const ScalePoint* chosen = cheap ? cheapest(points) : lasting ? most_lasting(job, points, saves) : nullptr;
  a.searching.finish();
  if (chosen) write_plan(a, chosen->gpus, chosen->best());
  const ScalingCurve curve{job, sizes, points, chosen, cheap, lasting, saves};
  if (a.session.common.json) {
    print_json(a.session, "plan", curve_json(a, curve));
  } else {
    print_curve_table(a, curve);
    print_curve_notes(a, curve);
    print_chosen_size(a, curve);
  }
  return finished(a, {.found = curve.any()});
}

ExitCode answer_fewest(const Asking& a) {
  const Job job = a.planning.job();
  const auto deadline = longest_step(a.options, a.question().training);
  if (never_possible(job, a.space)) return nothing(a, search_possible(job, a.space, {}));
  const FewestGpus f = fewest_of(a, job, deadline);
  if (!f.found && !f.most) return nothing(a, search_possible(job, a.space, a.searching.options(1)));
  a.searching.finish();
  const FewestAnswer answer{a, f, deadline};
  if (f.found) write_plan(a, f.found->gpus, answer.best());
  if (a.session.common.json)
    print_json(a.session, "plan", fewest_json(answer));
  else if (!f.found)
    print_too_slow(answer);
  else
    print_fewest(answer);
  return finished(a, {.found = f.found.has_value()});
}

}  // namespace sextant

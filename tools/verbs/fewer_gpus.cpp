#include "tools/verbs/fewer_gpus.hpp"

#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "planner/answers/sub_cluster.hpp"

namespace sextant {

namespace {

// Of the search of all GPUs: little of what a plan takes.
constexpr double kShareOfTime = 0.5, kLeastTime_s = 0.25, kMostTime_s = 2;

// Asks for the layouts of that part: of a cluster without the nodes, or where a node is used in part, of its size.
std::string command(const Asking& a, int gpus) {
  const ClusterSpec& all = a.question().cluster;
  std::string limits = limit_arguments(a.question());
  if (a.options.max_oom_chance > 0) limits += fmt::format(" --max-oom-chance {:g}", a.options.max_oom_chance);
  return sub_cluster(all, gpus).gpus() == gpus
             ? fmt::format("sextant plan{}{}", sized_arguments(a.session, a.options.question, all, gpus),
                           limits)
             : fmt::format("sextant plan{}{} --scale {},{}",
                           question_arguments(a.session, a.options.question), limits, gpus, all.gpus());
}

}  // namespace

std::optional<ScalePoint> fewer_gpus(const Asking& a, const SearchReport& of_all) {
  const ClusterSpec& cluster = a.question().cluster;
  if (cluster.gpus() == cluster.nodes * cluster.node.gpus && cluster.defects.empty()) return std::nullopt;
  SearchOptions how = a.searching.options(1, "fewer GPUs");
  if (a.options.budget_s == 0)
    how.budget_s = std::clamp(kShareOfTime * of_all.wall_s, kLeastTime_s, kMostTime_s);
  return faster_on_fewer(a.planning.job(), of_all.ranked.front().prediction.step, a.question().limits, how);
}

nlohmann::ordered_json fewer_json(const Asking& a, const ScalePoint& fewer) {
  nlohmann::ordered_json j = ranked_json(a, fewer.report.ranked.front());
  j["gpus"] = fewer.gpus;
  j["left_out_nodes"] = left_out_nodes(a.question().cluster, fewer.gpus);
  j["command"] = command(a, fewer.gpus);
  return j;
}

void print_fewer_gpus(const Asking& a, const ScalePoint& fewer, const RankedPlan& best) {
  const ClusterSpec& cluster = a.question().cluster;
  const RankedPlan& faster = fewer.report.ranked.front();
  const std::vector<int> without = left_out_nodes(cluster, fewer.gpus);
  const double gain = best.prediction.step / faster.prediction.step - 1;
  a.say(fmt::format(
      "{} of the {} GPUs{} are {}: {:.3f} s instead of {:.3f} s, with {}.", fewer.gpus, cluster.gpus(),
      without.empty() ? ", which divide better," : fmt::format(", without {},", nodes_text(without)),
      gain < kTieShare ? "as fast" : fmt::format("{:.0f} % faster", 100 * gain), faster.prediction.step.v,
      best.prediction.step.v, plan_key(faster.plan)));
  a.out() << command_lines(a.session.terminal.columns, "  ", command(a, fewer.gpus));
}

}  // namespace sextant

#include "planner/validation/inconsistent_times.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace sextant {

namespace {

bool doubled(int a, int b) { return a == 2 * b || b == 2 * a; }

// One of the two fields differs by one step, and nothing else.
bool neighbours(const RunRow& a, const RunRow& b) {
  if (!(a.model == b.model && a.training == b.training && a.gpu == b.gpu && a.nodes == b.nodes &&
        a.gpus_per_node == b.gpus_per_node && a.node_network == b.node_network &&
        a.framework == b.framework && a.precision == b.precision && a.attention == b.attention &&
        a.norm_fused == b.norm_fused && a.gradient == b.gradient &&
        a.recompute_by_operation == b.recompute_by_operation))
    return false;
  ParallelPlan of_a = a.plan;
  const bool other_zero = a.plan.zero_stage != b.plan.zero_stage;
  of_a.zero_stage = b.plan.zero_stage;
  if (other_zero) of_a.shard_degree = b.plan.shard_degree;
  if (of_a == b.plan) return other_zero;
  of_a.micro_batch = b.plan.micro_batch;
  return !other_zero && of_a == b.plan && doubled(a.plan.micro_batch, b.plan.micro_batch);
}

bool contradicts(double time, const std::vector<double>& others) {
  constexpr double kAlike = 1.15, kApart = 1.3;
  constexpr std::size_t kFewest = 2;
  if (others.size() < kFewest) return false;
  const auto [least, most] = std::ranges::minmax(others);
  return most <= kAlike * least && (time > kApart * most || time * kApart < least);
}

}  // namespace

std::vector<InconsistentTime> inconsistent_times(std::span<const RunRow> rows) {
  std::map<std::pair<std::string, std::string>, std::vector<std::size_t>> groups;
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (rows[i].step_time && !rows[i].group_id.empty() && rows[i].unreadable.empty())
      groups[{rows[i].source, rows[i].group_id}].push_back(i);
  std::vector<InconsistentTime> out;
  for (const auto& [name, group] : groups)
    for (const std::size_t i : group) {
      InconsistentTime found{.row = i, .neighbours = {}};
      std::vector<double> times;
      for (const std::size_t k : group)
        if (k != i && neighbours(rows[i], rows[k])) {
          found.neighbours.push_back(k);
          times.push_back(rows[k].step_time->v);
        }
      if (contradicts(rows[i].step_time->v, times)) out.push_back(std::move(found));
    }
  return out;
}

std::vector<RunRow> without(std::span<const RunRow> rows, std::span<const InconsistentTime> times) {
  std::vector<RunRow> out(rows.begin(), rows.end());
  for (const InconsistentTime& t : times) out[t.row].step_time.reset();
  return out;
}

}  // namespace sextant

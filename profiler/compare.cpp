#include "profiler/compare.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "core/base/error.hpp"

namespace sextant {

std::string operation_class(const ExecutionGraph& graph, const Op& op) {
  if (op.role != OpRole::block)
    return op.pass == Pass::none ? std::string(name(op.role))
                                 : fmt::format("{} {}", name(op.role), name(op.pass));
  const auto& block = std::get<BlockWork>(graph.works[op.work]);
  return fmt::format("{} {}", name(block.kind), name(block.pass));
}

TimelineComparison compare(const ExecutionGraph& graph, const Timeline& predicted, const Timeline& measured) {
  SEXTANT_CHECK(predicted.spans.size() == graph.ops.size() && measured.spans.size() == graph.ops.size(),
                "timelines of the same graph");
  TimelineComparison c{breakdown(graph, predicted), breakdown(graph, measured), {}};
  std::map<std::string, ClassComparison> classes;
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const Op& op = graph.ops[i];
    ClassComparison& sum = classes[operation_class(graph, op)];
    ++sum.count;
    sum.compute_lane = sum.compute_lane || graph.lanes[op.lanes[0]].kind == LaneKind::compute;
    sum.predicted_s += (predicted.spans[i].end - predicted.spans[i].start) / graph.plan.pp;
    sum.measured_s += (measured.spans[i].end - measured.spans[i].start) / graph.plan.pp;
  }
  for (auto& [key, sum] : classes) {
    sum.operations = key;
    c.classes.push_back(sum);
  }
  std::ranges::stable_sort(c.classes, std::greater<>{},
                           [](const ClassComparison& x) { return std::abs(x.measured_s - x.predicted_s); });
  return c;
}

}  // namespace sextant

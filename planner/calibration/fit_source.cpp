#include "planner/calibration/fit_source.hpp"

#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace sextant {

std::string fit_source(const FreeConstant& constant, std::span<const MeasuredRun> runs) {
  std::map<std::string, int> rows;
  for (const MeasuredRun& m : runs)
    if (concerns(constant, m.run)) ++rows[m.source];
  std::vector<std::string> of;
  for (const auto& [source, n] : rows) of.push_back(fmt::format("{} of {}", n, source));
  std::string text = fmt::format("sextant calibrate --refit, step times; rows: {}", fmt::join(of, ", "));
  if (!constant.also.empty())
    text += fmt::format("; one value for {}, {}", constant.owner, fmt::join(constant.also, ", "));
  return text;
}

std::string fit_source(const MemoryPlan& plan, const MemoryFit& fit) {
  std::vector<std::string> rows;
  if (fit.peaks > 0) rows.push_back(fmt::format("{} peaks", fit.peaks));
  if (fit.outcomes > 0) rows.push_back(fmt::format("{} that fitted or ran out", fit.outcomes));
  return fmt::format("sextant calibrate --refit, memory; rows: {}, of {}", fmt::join(rows, " and "),
                     fmt::join(plan.sources, ", "));
}

bool finds_better(const MemoryFit& fit) { return fit.before > 1.05 * fit.after + 1; }

}  // namespace sextant

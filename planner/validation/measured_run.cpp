#include "planner/validation/measured_run.hpp"

#include <algorithm>
#include <map>

#include <fmt/format.h>

namespace sextant {

LayoutPoint layout_point(const ResolvedRun& run) {
  return layout_point(run.model, run.training, run.plan, run.cluster.device.generation);
}

std::vector<MeasuredRun> measured_runs(std::span<const RunRow> rows, const FrameworkMap& map,
                                       const std::filesystem::path& preset_dir) {
  std::vector<MeasuredRun> out;
  for (const RunRow& row : rows) {
    if (!row.step_time) continue;
    ResolvedRun run = resolve(row, map, preset_dir);
    if (!validate(run.plan, run.model, run.training).empty()) continue;
    out.push_back({row.run_id, row.source, std::move(run), *row.step_time, row.peak_memory_GiB,
                   fmt::format("{}:{}", row.file, row.line)});
  }
  return out;
}

std::vector<MeasuredRun> balanced(std::span<const MeasuredRun> runs, std::size_t most) {
  std::map<std::string, std::vector<const MeasuredRun*>> sources;
  for (const MeasuredRun& m : runs) sources[m.source].push_back(&m);
  std::vector<MeasuredRun> out;
  for (const auto& [source, rows] : sources)
    for (std::size_t i = 0, taken = std::min(most, rows.size()); i < taken; ++i)
      out.push_back(*rows[i * rows.size() / taken]);
  return out;
}

}  // namespace sextant

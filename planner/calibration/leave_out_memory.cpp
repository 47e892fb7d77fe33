#include "planner/calibration/leave_out_memory.hpp"

#include <algorithm>
#include <iterator>
#include <set>

namespace sextant {

namespace {

bool named(const std::vector<std::string>& list, const std::string& name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

}  // namespace

MemoryFits::MemoryFits(std::span<const RunRow> rows, const FrameworkMap& map,
                       const std::filesystem::path& preset_dir)
    : plans_(load_memory_plans(preset_dir)) {
  for (const MemoryPlan& plan : plans_) samples_.push_back(memory_samples(rows, map, preset_dir, plan));
}

MemoryWithout MemoryFits::without(const std::string& source) const {
  MemoryWithout out;
  for (std::size_t p = 0; p < plans_.size(); ++p) {
    const MemoryPlan& plan = plans_[p];
    if (!named(plan.sources, source)) continue;
    std::vector<MemorySample> others;
    std::ranges::copy_if(samples_[p], std::back_inserter(others),
                         [&](const MemorySample& s) { return s.row->source != source; });
    std::vector<std::pair<std::string, double>> values;
    for (const FittedConstant& c : calibrate_memory(others, plan).constants)
      values.emplace_back(c.key, c.value);
    if (values.empty())  // no other source speaks
      for (const MemoryConstant& c : plan.constants) values.emplace_back(c.key, c.prior);
    for (const std::string& stack : plan.stacks) out.of_stack_[stack] = values;
  }
  return out;
}

void MemoryWithout::use(ResolvedRun& run) const {
  if (const auto it = of_stack_.find(run.stack.name); it != of_stack_.end())
    for (const auto& [key, value] : it->second) set_memory_constant(run.stack.memory, key, value);
}

std::vector<SourceScore> leave_one_source_out_memory(std::span<const RunRow> rows, const FrameworkMap& map,
                                                     const std::filesystem::path& preset_dir) {
  std::set<std::string> sources;
  for (const RunRow& r : rows) sources.insert(r.source);
  const MemoryFits all(rows, map, preset_dir);
  std::vector<SourceScore> out;
  for (const std::string& source : sources) {
    const MemoryWithout fits = all.without(source);
    if (fits.empty()) continue;
    std::vector<RunRow> own;
    for (const RunRow& r : rows)
      if (r.source == source) own.push_back(r);
    PredictOptions options{preset_dir, nullptr, {}};
    options.adjust = [&fits](ResolvedRun& run) { fits.use(run); };
    for (SourceScore& s : score_runs(own, predict_runs(own, map, options)))
      if (s.memory_rows > 0 || s.oom_true + s.oom_false + s.oom_missed > 0) out.push_back(std::move(s));
  }
  return out;
}

}  // namespace sextant

#include "planner/calibration/leave_out_memory.hpp"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "planner/calibration/calibrate_memory.hpp"

namespace sextant {

namespace {

bool named(const std::vector<std::string>& list, const std::string& name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

// A plan with the values its coefficients take without the source.
using Refitted = std::pair<const MemoryPlan*, std::vector<double>>;

Refitted refitted(const MemoryPlan& plan, std::span<const RunRow> others, const FrameworkMap& map,
                  const std::filesystem::path& preset_dir) {
  std::vector<double> values;
  for (const FittedConstant& c : calibrate_memory(others, map, preset_dir, plan).constants)
    values.push_back(c.value);
  if (values.empty())  // no other source speaks
    for (const MemoryConstant& c : plan.constants) values.push_back(c.prior);
  return {&plan, std::move(values)};
}

}  // namespace

std::vector<SourceScore> leave_one_source_out_memory(std::span<const RunRow> rows, const FrameworkMap& map,
                                                     const std::filesystem::path& preset_dir) {
  const std::vector<MemoryPlan> plans = load_memory_plans(preset_dir);
  std::set<std::string> sources;
  for (const RunRow& r : rows) sources.insert(r.source);
  std::vector<SourceScore> out;
  for (const std::string& source : sources) {
    std::vector<RunRow> own, others;
    for (const RunRow& r : rows) (r.source == source ? own : others).push_back(r);
    std::vector<Refitted> fits;
    for (const MemoryPlan& plan : plans)
      if (named(plan.sources, source)) fits.push_back(refitted(plan, others, map, preset_dir));
    if (fits.empty()) continue;
    PredictOptions options{preset_dir, nullptr, {}};
    options.adjust = [&fits](ResolvedRun& run) {
      for (const auto& [plan, values] : fits)
        if (named(plan->stacks, run.stack.name))
          for (std::size_t i = 0; i < values.size(); ++i)
            set_memory_constant(run.stack.memory, plan->constants[i].key, values[i]);
    };
    for (SourceScore& s : score_runs(own, predict_runs(own, map, options)))
      if (s.memory_rows > 0 || s.oom_true + s.oom_false + s.oom_missed > 0) out.push_back(std::move(s));
  }
  return out;
}

}  // namespace sextant

#include "planner/calibration/fitted_count.hpp"

#include "cost_models/constants.hpp"
#include "planner/calibration/calibrate_memory.hpp"

namespace sextant {

FittedCount fitted_count(const std::filesystem::path& preset_dir, std::span<const FreeConstant> calibrated) {
  FittedCount count;
  count.step_time = calibrated.size();
  for (const MemoryPlan& plan : load_memory_plans(preset_dir)) count.memory += plan.constants.size();
  std::set<std::string> moved;
  for (const FreeConstant& k : calibrated)
    if (k.of == ConstantOwner::device) moved.insert(k.key);
  for (const auto& file : std::filesystem::directory_iterator(preset_dir / "cost")) {
    const std::string generation = file.path().stem().string();
    if (generation == "common") continue;
    for (const ConstantRecord& r : load_cost_preset(generation, preset_dir / "cost").records)
      if (r.origin == "F" && !moved.contains(r.key)) count.frozen.insert(r.key);
  }
  return count;
}

}  // namespace sextant

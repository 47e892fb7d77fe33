// Which memory coefficients of a stack do measured peaks and out-of-memory rows speak for? A bounded fit with priors:
// a coefficient that the rows say nothing about stays at its prior. Peaks count by their relative error, rows known
// only to fit or not to fit by the likelihood of that. Nothing is fitted per row, model or layout.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/runs/framework_map.hpp"
#include "core/runs/run_row.hpp"
#include "planner/simulation/stage_memory.hpp"

namespace sextant {

// One coefficient of StackMemory by its JSON key ("saved_ffn", "outside_GiB").
struct MemoryConstant {
  std::string key;
  double prior = 0, sigma = 0;  // where it stays without evidence, and how firmly
  double low = 0, high = 0;
};

struct MemoryPlan {
  std::vector<std::string> stacks;   // one set of coefficients for all of them
  std::vector<std::string> sources;  // whose rows are read
  std::vector<MemoryConstant> constants;
};
// tools/presets/calibration/memory.json: which coefficients are fitted from which rows.
std::vector<MemoryPlan> load_memory_plans(const std::filesystem::path& preset_dir);

struct FittedConstant {
  std::string key;
  double prior = 0, value = 0;
  double sigma = 0;  // after the fit; equal to the prior's when no row spoke
};

struct MemoryFit {
  int peaks = 0, outcomes = 0;   // rows with a peak; rows known only to fit or not
  double before = 0, after = 0;  // objective at the presets and at the fit
  std::vector<FittedConstant> constants;
};

// A row that speaks for a plan's constants. The row outlives it.
struct MemorySample {
  ResolvedRun run;
  const RunRow* row = nullptr;
  StackSpec tried;  // the run's, with the constants that a fit tries
};
std::vector<MemorySample> memory_samples(std::span<const RunRow>, const FrameworkMap&,
                                         const std::filesystem::path& preset_dir, const MemoryPlan&);

// Samples of this plan; what they try is left at the last that was tried.
MemoryFit calibrate_memory(std::span<MemorySample>, const MemoryPlan&);
MemoryFit calibrate_memory(std::span<const RunRow>, const FrameworkMap&,
                           const std::filesystem::path& preset_dir, const MemoryPlan&);

double memory_constant(const StackMemory&, const std::string& key);
void set_memory_constant(StackMemory&, const std::string& key, double value);

}  // namespace sextant

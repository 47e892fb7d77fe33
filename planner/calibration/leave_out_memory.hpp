// What would a newcomer's memory be predicted to be? The coefficients of memory that a source takes part in are fitted without
// it, from their priors; its own peaks and outcomes are then predicted with them. A stack that no other source speaks for keeps
// its priors.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/runs/framework_map.hpp"
#include "core/runs/run_row.hpp"
#include "planner/calibration/calibrate_memory.hpp"
#include "planner/validation/validate.hpp"

namespace sextant {

// Coefficients of memory by a fit without one source.
class MemoryWithout {
 public:
  void use(ResolvedRun&) const;
  bool empty() const { return of_stack_.empty(); }  // no coefficient was fitted to the source

 private:
  friend class MemoryFits;
  std::map<std::string, std::vector<std::pair<std::string, double>>> of_stack_;  // key and value
};

// Such fits to one set of rows, which outlive it.
class MemoryFits {
 public:
  MemoryFits(std::span<const RunRow>, const FrameworkMap&, const std::filesystem::path& preset_dir);
  MemoryWithout without(const std::string& source) const;

 private:
  std::vector<MemoryPlan> plans_;
  std::vector<std::vector<MemorySample>> samples_;  // of each plan
};

// For every source that coefficients are fitted to, in the order of names.
std::vector<SourceScore> leave_one_source_out_memory(std::span<const RunRow>, const FrameworkMap&,
                                                     const std::filesystem::path& preset_dir);

}  // namespace sextant

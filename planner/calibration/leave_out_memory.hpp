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
#include "planner/validation/validate.hpp"

namespace sextant {

// Coefficients of memory by a fit without one source. `rows` may hold rows of that source.
class MemoryWithout {
 public:
  MemoryWithout(const std::string& source, std::span<const RunRow> rows, const FrameworkMap&,
                const std::filesystem::path& preset_dir);
  void use(ResolvedRun&) const;
  bool empty() const { return of_stack_.empty(); }  // no coefficient was fitted to the source

 private:
  std::map<std::string, std::vector<std::pair<std::string, double>>> of_stack_;  // key and value
};

// For every source that coefficients are fitted to, in the order of names.
std::vector<SourceScore> leave_one_source_out_memory(std::span<const RunRow>, const FrameworkMap&,
                                                     const std::filesystem::path& preset_dir);

}  // namespace sextant

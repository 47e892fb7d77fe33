// What `sextant calibrate --refit` says of memory: the coefficients of the stacks, fitted anew from the same rows.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "planner/calibration/calibrate_memory.hpp"
#include "planner/validation/validate.hpp"
#include "tools/inputs/verb.hpp"

namespace sextant {

struct RefittedMemory {
  std::vector<std::string> stacks;
  std::vector<double> presets;  // by constant
  MemoryFit fit;
  std::string source;  // of the fitted values: command and rows
};

// By plan of tools/presets/calibration/memory.json; those of which no row was given are left out.
std::vector<RefittedMemory> refit_memory(const std::vector<std::string>& run_files,
                                         const std::filesystem::path& preset_dir);

// leave_one_source_out_memory on these files.
std::vector<SourceScore> memory_left_out(const std::vector<std::string>& run_files,
                                         const std::filesystem::path& preset_dir);

void print_refitted(Session&, const std::vector<RefittedMemory>&);
void print_memory_left_out(Session&, const std::vector<SourceScore>&);
nlohmann::ordered_json to_json(const std::vector<RefittedMemory>&);
nlohmann::ordered_json memory_left_out_json(const std::vector<SourceScore>&);

}  // namespace sextant

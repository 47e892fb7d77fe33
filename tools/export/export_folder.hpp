// The folder of an export: all files of the target, the launcher and the plan itself, written together.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/plan/plan_file.hpp"
#include "tools/export/export_target.hpp"
#include "tools/export/launch.hpp"

namespace sextant {

// Everything that is written for this plan, plan.json and README.md among them. `presets` holds the checkers.
std::vector<ExportFile> export_files(const PlanFile&, const ChosenTarget&, const ExportContent&,
                                     const LaunchOptions&, const std::filesystem::path& presets);

// Throws ConfigError where the folder has files that no export wrote, or is none.
void check_export_folder(const std::filesystem::path&);

// All or nothing: the files of an earlier export there are replaced once the new ones are on the disk. Throws ConfigError where the
// folder cannot be made, BackendError where writing fails.
void write_export(const std::filesystem::path&, const std::vector<ExportFile>&);

// What the target's own parser said about the files of the folder.
struct ParserAnswer {
  enum Outcome { accepted, refused, absent } outcome = absent;
  std::string text;  // its last lines
};
// Runs check.py with SEXTANT_PYTHON, or python3.
ParserAnswer ask_parser(const std::filesystem::path& folder);

}  // namespace sextant

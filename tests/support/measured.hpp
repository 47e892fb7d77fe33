// The presets in the source tree, and the folder of published measurements beside the project; tests that need the
// latter skip with a reason when it is absent.
#pragma once

#include <filesystem>
#include <vector>

#include "core/runs/run_row.hpp"

namespace sextant::test {

inline std::filesystem::path preset_dir() {
  return std::filesystem::path(SEXTANT_SOURCE_DIR) / "tools/presets";
}

inline std::filesystem::path measured_dir() {
  for (const char* up : {"../shared", "../../shared"})
    if (const auto dir = std::filesystem::path(SEXTANT_SOURCE_DIR) / up / "measured";
        std::filesystem::exists(dir))
      return dir;
  return {};
}

inline std::vector<RunRow> all_runs() {
  std::vector<RunRow> rows;
  for (const auto& file : std::filesystem::directory_iterator(measured_dir() / "runs")) {
    if (file.path().extension() != ".csv") continue;
    auto more = read_runs(file.path());
    rows.insert(rows.end(), more.begin(), more.end());
  }
  return rows;
}

}  // namespace sextant::test

#define SEXTANT_NEEDS_MEASURED()               \
  if (::sextant::test::measured_dir().empty()) \
  GTEST_SKIP() << "needs the measured runs: ../shared/measured is absent"

// The presets in the source tree, and the folder of published measurements beside the project; tests that need the
// latter skip with a reason when it is absent.
#pragma once

#include <filesystem>

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

}  // namespace sextant::test

#define SEXTANT_NEEDS_MEASURED()               \
  if (::sextant::test::measured_dir().empty()) \
  GTEST_SKIP() << "needs the measured runs: ../shared/measured is absent"

// A file of another framework read and sized as `--from` does, for tests.
#pragma once

#include <filesystem>
#include <string>

#include "tests/tools/verbs/call.hpp"
#include "tools/import/import_file.hpp"
#include "tools/inputs/inputs.hpp"

namespace sextant::importing {

inline const std::filesystem::path kPresets = std::filesystem::path(SEXTANT_SOURCE_DIR) / "tools/presets";
inline std::filesystem::path golden(const std::string& name) {
  return std::filesystem::path(SEXTANT_SOURCE_DIR) / "tests/golden/import" / name;
}

inline ImportedRun imported(const std::filesystem::path& file) {
  return import_file(file.string(), kPresets, {});
}

inline Question asked_from(const std::filesystem::path& file, const std::string& cluster,
                           const std::string& model = "") {
  QuestionOptions options;
  options.from = file.string();
  options.cluster = cluster;
  options.model = model;
  return read_question(options, kPresets);
}

inline bool names(const std::vector<std::string>& texts, const std::string& words) {
  for (const std::string& text : texts)
    if (text.find(words) != std::string::npos) return true;
  return false;
}

}  // namespace sextant::importing

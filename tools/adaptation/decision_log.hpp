// What a run that adapts has decided, and what came of it: adaptation.jsonl in its folder, a line each.
#pragma once

#include <filesystem>

#include <nlohmann/json.hpp>

namespace sextant {

inline constexpr const char* kAdaptationFile = "adaptation.jsonl";

class DecisionLog {
 public:
  // `folder`: empty, and nothing is written.
  explicit DecisionLog(std::filesystem::path folder) : folder_(std::move(folder)) {}
  // Appends; throws BackendError when the line cannot be written.
  void add(const nlohmann::ordered_json& line);
  const nlohmann::ordered_json& lines() const { return lines_; }
  // The number of the last decision of the run, whichever process made it; 0: there is none.
  int last() const;

 private:
  std::filesystem::path folder_;
  nlohmann::ordered_json lines_ = nlohmann::ordered_json::array();
};

}  // namespace sextant

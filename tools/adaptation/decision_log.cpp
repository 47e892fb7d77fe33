#include "tools/adaptation/decision_log.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

#include <fmt/format.h>

#include "core/base/error.hpp"
#include "core/base/shallow_json.hpp"

namespace sextant {

void DecisionLog::add(const nlohmann::ordered_json& line) {
  lines_.push_back(line);
  if (folder_.empty()) return;
  const std::filesystem::path file = folder_ / kAdaptationFile;
  std::ofstream out(file, std::ios::app);
  out << line.dump() << '\n' << std::flush;
  if (!out) throw BackendError(fmt::format("{}: {}", file.string(), std::strerror(errno)));
}

int DecisionLog::last() const {
  int number = 0;
  const auto look = [&](const auto& line) {
    if (line.is_object() && line.contains("decision") && line.at("decision").is_number_integer())
      number = std::max(number, line.at("decision").template get<int>());
  };
  for (const auto& line : lines_) look(line);
  if (folder_.empty()) return number;
  std::ifstream in(folder_ / kAdaptationFile);
  for (std::string line; std::getline(in, line);) look(json_or_discarded(line));
  return number;
}

}  // namespace sextant

#include "tools/adaptation/decision_log.hpp"

#include <cerrno>
#include <cstring>
#include <fstream>

#include <fmt/format.h>

#include "core/base/error.hpp"

namespace sextant {

void DecisionLog::add(const nlohmann::ordered_json& line) {
  lines_.push_back(line);
  if (folder_.empty()) return;
  const std::filesystem::path file = folder_ / kAdaptationFile;
  std::ofstream out(file, std::ios::app);
  out << line.dump() << '\n' << std::flush;
  if (!out) throw BackendError(fmt::format("{}: {}", file.string(), std::strerror(errno)));
}

}  // namespace sextant

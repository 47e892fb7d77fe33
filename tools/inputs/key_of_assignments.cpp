#include "tools/inputs/key_of_assignments.hpp"

#include "core/base/error.hpp"
#include "core/plan/parallel_plan.hpp"

namespace sextant {

std::optional<std::string> key_of_assignments(const std::string& text) {
  if (text.find('=') == std::string::npos) return std::nullopt;
  std::string key;
  for (const char c : text) {
    if (c == '=' || c == ' ') continue;
    key += c == ',' ? '.' : c;
  }
  try {
    parse_plan_key(key);
  } catch (const ConfigError&) {
    return std::nullopt;
  }
  return key;
}

}  // namespace sextant

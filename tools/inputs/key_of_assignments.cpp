#include "tools/inputs/key_of_assignments.hpp"

#include <regex>
#include <span>
#include <string_view>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/words.hpp"
#include "core/plan/parallel_plan.hpp"

namespace sextant {

namespace {

bool is_key(const std::string& text) {
  try {
    parse_plan_key(text);
  } catch (const ConfigError&) {
    return false;
  }
  return true;
}

// What stands for what, in this order, in lower case.
std::span<const std::pair<std::regex, const char*>> spellings() {
  static const std::pair<std::regex, const char*> kSpellings[] = {
      {std::regex(",? no recomputation"), ""},
      {std::regex("zero[-_ ]?(stage)?[-_ ]?(?=[=:0-9])"), "z"},
      {std::regex("z([0-9])/([0-9]+)"), "z$1.sd$2"},  // sharded over part of the replicas
      {std::regex("(micro[-_ ]?batch([-_ ]?size)?|\\bmb)(?=[-=: 0-9])"), "mbs"},
      {std::regex("vpp(?=[-=: 0-9])"), "vp"},
      {std::regex("([a-z]) *[-=:] *(?=[0-9])"), "$1"},
      {std::regex("(tp|pp|cp|dp|vp|mbs|z) +(?=[0-9])"), "$1"},
      {std::regex("([0-9])(?=(tp|pp|cp|dp|vp|mbs|z)[0-9])"), "$1."},
      {std::regex("([0-9]) *x *(?=[a-z])"), "$1."},
      {std::regex("[ ,;_/+|*-]+"), "."},
  };
  return kSpellings;
}

}  // namespace

std::optional<std::string> key_of_assignments(const std::string& text) {
  if (text.empty() || text.size() > 200 || is_key(text)) return std::nullopt;
  std::string key = lower(text);
  for (const auto& [from, to] : spellings()) key = std::regex_replace(key, from, to);
  while (key.ends_with('.')) key.pop_back();
  if (key.empty() || !is_key(key)) return std::nullopt;
  return key;
}

}  // namespace sextant

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
      {std::regex("[()\\[\\]{}\"']|--|\\.(?=[^a-z0-9]|$)"), ""},
      {std::regex(",? no recomputation"), ""},
      {std::regex("[-_., ]*(full[-_ ]recompute|recompute[-_ ]*[=: ]*full|full[-_ ]recomputation)"), ".full"},
      // DeepSpeed's, "offload_optimizer=cpu"; "offload" alone may be of activations.
      {std::regex("offload[-_ ]?param(eter)?s?([=: ]*(cpu|true|host))?"), "po"},
      {std::regex("(offload[-_ ]?optimizer|optimizer[-_ ]?offload)([=: ]*(cpu|true|host))?(?![-=: ]*[0-9])"),
       "oo100"},
      {std::regex("(cpu[-_ ]?)?offload[=: ]*(cpu|true|host)"), "oo100"},
      // Options of frameworks, and Megatron's letters.
      {std::regex(
           "(tensor|pipeline|context|data)([-_ ]model)?[-_ ]parallel(ism)?([-_ ](size|degree))?(?=[=: 0-9])"),
       "@$1"},
      {std::regex("([0-9]+)[- ]?way (tensor|pipeline|context|data)[- ]parallel(ism)?"), "@$2$1"},
      {std::regex("@([tpcd])[a-z]*"), "$1p"},
      {std::regex("^t([0-9]+)[-_. ]?p([0-9]+)([-_. ]?d([0-9]+))?$"), "tp$1.pp$2.dp$4"},
      {std::regex("\\bmp(?=[-=: 0-9])"), "tp"},
      {std::regex("([0-9]+)[- ]?way (tp|pp|cp|dp)"), "$2$1"},
      {std::regex("\\bfsdp2?\\b(?![-=: ]*[0-9])"), "z3"},
      {std::regex("\\bfsdp[-=: ]*([0-9]+)"), "dp$1.z3"},
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
  if (text.find("..") != text.npos) return std::nullopt;  // a slip in a key
  std::string key = lower(text);
  // So are lists that are not finished, and whatever else a sign joins to nothing: "ga8-", "L8-,pp4", "tp4+".
  static const std::regex kUnfinished("[a-z0-9][-+*/|_=:]+ *($|[.,;])");
  if (std::regex_search(key, kUnfinished)) return std::nullopt;
  for (const auto& [from, to] : spellings()) key = std::regex_replace(key, from, to);
  while (key.ends_with('.')) key.pop_back();
  while (key.starts_with('.')) key.erase(0, 1);
  if (key.ends_with(".dp")) key.erase(key.size() - 3);  // of letters without replicas
  if (key.empty() || !is_key(key)) return std::nullopt;
  return key;
}

}  // namespace sextant

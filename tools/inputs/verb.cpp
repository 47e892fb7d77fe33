#include "tools/inputs/verb.hpp"

#include <ostream>

#include <nlohmann/json.hpp>

#include "tools/inputs/preset_files.hpp"

namespace sextant {

std::filesystem::path Session::presets() const { return find_presets(common.presets); }

void print_json(Session& session, const std::string& verb, const nlohmann::ordered_json& fields) {
  // docs/json.md says what the second versions changed.
  const char* version = verb == "plan" || verb == "explain" ? "/2" : "/1";
  nlohmann::ordered_json answer = {{"schema", "sextant." + verb + version}};
  answer.update(fields);
  session.terminal.out << answer.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
                       << '\n';
}

}  // namespace sextant

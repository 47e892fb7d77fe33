#include "tools/verbs.hpp"

#include <ostream>

#include <nlohmann/json.hpp>

#include "tools/preset_files.hpp"

namespace sextant {

const std::vector<Verb>& verbs() {
  static const std::vector<Verb> table = {
      plan_verb(),    simulate_verb(), explain_verb(),  data_verb(),       run_verb(),
      compare_verb(), profile_verb(),  validate_verb(), calibrate_verb(),  weights_verb(),
      sample_verb(),  presets_verb(),  doctor_verb(),   completion_verb(),
  };
  return table;
}

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

#include "tools/verbs/verbs.hpp"

namespace sextant {

const std::vector<Verb>& verbs() {
  static const std::vector<Verb> table = {
      plan_verb(),    simulate_verb(), explain_verb(),  export_verb(),     data_verb(),   run_verb(),
      compare_verb(), profile_verb(),  validate_verb(), calibrate_verb(),  report_verb(), weights_verb(),
      sample_verb(),  presets_verb(),  doctor_verb(),   completion_verb(),
  };
  return table;
}

}  // namespace sextant

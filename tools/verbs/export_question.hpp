// What does `sextant export` write without a plan file? The layout that `sextant plan` recommends.
#pragma once

#include <optional>

#include "tools/inputs/inputs.hpp"
#include "tools/inputs/verb.hpp"

namespace sextant {

struct PlannedExport {
  std::optional<Question>
      question;                  // with the plan and its file; nothing where no layout fits, or after Ctrl-C
  ExitCode code = ExitCode::ok;  // of the answer that was printed then
};

// Searches as `sextant plan` does without further options. Prints what was asked and the layout that it found; where it found
// none, why. Throws ConfigError and UsageError as `sextant plan` does.
PlannedExport plan_to_export(Session&, const QuestionOptions&);

}  // namespace sextant

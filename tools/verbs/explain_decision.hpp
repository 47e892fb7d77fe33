// `sextant explain RUN --decision N`: why did a run that adapts do what it did, and what came of it?
#pragma once

#include <string>

#include "tools/inputs/verb.hpp"

namespace sextant {

// `run`: the folder of the run. Decision 0 is that of the start. Throws ConfigError when there is no such run or decision.
ExitCode explain_decision(Session&, const std::string& run, int decision);

}  // namespace sextant

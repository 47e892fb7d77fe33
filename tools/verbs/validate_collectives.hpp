// `sextant validate --collectives FILE`: a table of collectives instead of runs, with the error per source.
#pragma once

#include <string>

#include "tools/inputs/verb.hpp"

namespace sextant {

// Exit code 6 when the mean error of large or of small messages is above `max_error` percent; 0 tolerates all.
// `calibration`: file whose constants stand in the place of the presets', or empty.
ExitCode validate_collectives(Session&, const std::string& file, const std::string& calibration,
                              double max_error);

}  // namespace sextant

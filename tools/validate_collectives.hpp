// `sextant validate --collectives FILE`: a table of collectives instead of runs, with the error per source.
#pragma once

#include <string>

#include "tools/verbs.hpp"

namespace sextant {

// Exit code 6 when the mean error of large or of small messages is above `max_error` percent; 0 tolerates all.
ExitCode validate_collectives(Session&, const std::string& file, double max_error);

}  // namespace sextant

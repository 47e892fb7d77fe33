// The secret by which the processes of one job (--comm env) know each other; never sent, never printed.
#pragma once

#include <string>

#include "tools/inputs/launch_environment.hpp"

namespace sextant {

struct JobSecret {
  std::string text;
  std::string source;  // a variable or a file, for messages
};

// SEXTANT_SECRET; or the content of the file SEXTANT_SECRET_FILE; or of sextant/secret in XDG_CONFIG_HOME (~/.config), which is
// made with 256 random bits where it is not there: machines that share a home folder then need nothing. A file must be of this
// user and closed to others (mode 600). Throws ConfigError naming what is wrong with it.
JobSecret job_secret(const Environment& = process_environment);

}  // namespace sextant

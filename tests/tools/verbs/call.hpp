// The whole command called in this process: what it printed and how it ended.
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "tools/verbs/command.hpp"

namespace sextant {

// Of a command.
using Words = std::vector<std::string>;

inline Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

struct Called {
  ExitCode code;
  std::string out, err;
};

inline Called call(const std::vector<std::string>& arguments, int columns = 80,
                   int err_columns = kUnlimitedColumns) {
  std::ostringstream out, err;
  const ExitCode code =
      run_command(arguments, {.out = out, .err = err, .columns = columns, .err_columns = err_columns});
  return {code, out.str(), err.str()};
}

// In what was printed, on either stream.
inline bool says(const Called& c, const std::string& text) {
  return (c.out + c.err).find(text) != std::string::npos;
}

// `sextant plan` with the whole ranking printed and the fastest on paper in its files: what tests of the search look at. Other
// verbs as they are.
inline Called call_in_full(std::vector<std::string> arguments, int columns = 80,
                           int err_columns = kUnlimitedColumns) {
  if (!arguments.empty() && arguments.front() == "plan")
    arguments.insert(arguments.end(), {"--details", "--daring"});
  return call(arguments, columns, err_columns);
}

}  // namespace sextant

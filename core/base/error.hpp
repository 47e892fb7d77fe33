// Errors by what they end. ConfigError: a bad file, flag or spec ends the command (exit 3, or 2 for a flag).
// BackendError: a device, communicator or system call failed (exit 7). An infeasible plan is not an error: it
// is a Rejection value (core/base/rejection.hpp). SEXTANT_CHECK guards our own invariants and stays on in release.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace sextant {

// Documented process exit codes.
enum class ExitCode : int {
  ok = 0,
  internal_error = 1,
  usage = 2,
  bad_input = 3,
  no_feasible_plan = 4,
  export_cannot_express = 5,
  outside_tolerance = 6,
  run_failed = 7,
  interrupted = 130,
};

// One thing that is wrong with an input, in the words its user needs.
struct Problem {
  std::string file;      // path or "--flag"; empty when not from a file
  std::string key;       // JSON path such as "fabric.bandwidth_GBps"
  std::string value;     // what was found
  std::string expected;  // what is accepted, with its unit
  std::string hint;      // what to do, or a suggestion ("did you mean ...?")
};

std::string to_string(const Problem&);

// Bad input. Holds every problem found, not only the first.
class ConfigError : public std::runtime_error {
 public:
  explicit ConfigError(Problem problem) : ConfigError(std::vector<Problem>{std::move(problem)}) {}
  explicit ConfigError(std::vector<Problem> problems);
  const std::vector<Problem>& problems() const { return problems_; }

 private:
  std::vector<Problem> problems_;
};

// A wrong command line: unknown flag, missing argument (exit 2).
class UsageError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A device, communicator or operating-system call failed at run time (exit 7).
class BackendError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] void check_failed(std::string_view condition, std::string_view message, std::string_view file,
                               int line);

// The candidate closest to `word` by edit distance; empty when nothing is near.
std::string closest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace sextant

#define SEXTANT_CHECK(condition, message)                                 \
  do {                                                                    \
    if (!(condition)) [[unlikely]]                                        \
      ::sextant::check_failed(#condition, (message), __FILE__, __LINE__); \
  } while (false)

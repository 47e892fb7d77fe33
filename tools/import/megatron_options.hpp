// Options of a Megatron-LM command line: values that are checked when asked for, and the names of those that nobody asked for.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tools/import/command_flags.hpp"

namespace sextant {

class MegatronOptions {
 public:
  MegatronOptions(const CommandFlags& command, std::string file)
      : command_(command), file_(std::move(file)) {}

  bool flag(const std::string& name);
  // The first value; nothing where the option is absent, or its value is not known (which is then named). What is no number
  // where one is wanted throws ConfigError.
  std::optional<std::string> text(const std::string& name);
  std::optional<int> number(const std::string& name, int least = 1);
  std::optional<double> real(const std::string& name);
  int required(const std::string& name);
  const std::vector<std::string>& values(const std::string& name);  // of an option that is there

  [[noreturn]] void wrong(const std::string& key, const std::string& value, const std::string& expected,
                          const std::string& hint = "") const;

  // As written, of those that may change the step and nobody asked for.
  std::vector<std::string> unread() const;

 private:
  const CommandFlags& command_;
  std::string file_;
  std::set<std::string> asked_;
  std::vector<std::string> unknown_;
};

}  // namespace sextant

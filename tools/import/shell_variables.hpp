// Variables of a bash script and the words that they become: "$TP", ${ARGS[@]}, ${NODES:-1}, $((NODES * 8)). No command is
// run: what one prints is not known, nor the value of a variable that the script does not set; such a place is marked in the word.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tools/import/shell_unknown.hpp"

namespace sextant {

// The value of a variable that a script does not set, or nothing.
using ShellEnvironment = std::function<std::optional<std::string>(const std::string& name)>;

class ShellVariables {
 public:
  ShellVariables(ShellEnvironment environment, std::filesystem::path script);

  // Of what following the script may take in all, in bytes that are looked at or kept: a few lines can double a value again and
  // again, or call each other without an end. False where nothing is left; what is expanded from then on is empty.
  bool spend(std::size_t bytes);
  bool spent() const { return bytes_left_ == 0; }

  void set(const std::string& name, std::string value);
  void set_array(const std::string& name, std::vector<std::string> values);
  void append(const std::string& name, const std::string& value);
  void append_array(const std::string& name, const std::vector<std::string>& values);
  void set_positional(std::vector<std::string> values) { positional_ = std::move(values); }
  const std::vector<std::string>& positional() const { return positional_; }

  // One written word: split at blanks where an unquoted variable has some.
  std::vector<std::string> fields(std::string_view written);
  // The same as one text, as on the right of "=".
  std::string text(std::string_view written);
  // (( expression )): nothing where a name has no value. Assigns with "name = value", "name += value", name++.
  std::optional<long long> arithmetic(std::string_view expression);

  const std::map<std::string, std::vector<std::string>>& arrays() const { return values_; }
  const std::set<std::string>& from_environment() const { return from_environment_; }

 private:
  struct Pieces;
  struct Parameter;
  const std::vector<std::string>* find(const std::string& name);
  void expand(std::string_view written, Pieces&);
  void expand_dollar(std::string_view written, bool quoted, Pieces&);
  void expand_braces(std::string_view inside, bool quoted, Pieces&);
  std::optional<std::vector<std::string>> values_of(const Parameter&);
  std::string one_value(const Parameter&, const std::vector<std::string>& values);
  std::string edited(const Parameter&, std::string value);
  std::string command_output(std::string_view command, std::string_view written);

  std::map<std::string, std::vector<std::string>> values_;  // a plain variable has one
  ShellEnvironment environment_;
  std::set<std::string> from_environment_;
  std::vector<std::string> positional_;
  std::filesystem::path script_;
  int depth_ = 0;
  std::size_t bytes_left_ = 32 << 20;
};

}  // namespace sextant

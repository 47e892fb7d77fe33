// The conditions of bash: [ ... ] and [[ ... ]] on variables and numbers.
#pragma once

#include <string>
#include <vector>

namespace sextant {

// Whether a file exists, or what a command prints, is not known.
enum class ShellTruth { no, yes, unknown };
ShellTruth negated(ShellTruth);

// The expanded words of a test, without its brackets, joined by || && ! -o -a.
ShellTruth shell_test(const std::vector<std::string>& words);

}  // namespace sextant

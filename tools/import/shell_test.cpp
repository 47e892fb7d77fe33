#include "tools/import/shell_test.hpp"

#include <optional>
#include <stdexcept>
#include <string_view>

#include <fnmatch.h>

#include "tools/import/shell_variables.hpp"

namespace sextant {

namespace {

constexpr std::size_t kMostTestWords = 100;

ShellTruth truth(bool b) { return b ? ShellTruth::yes : ShellTruth::no; }

ShellTruth either(ShellTruth a, ShellTruth b) {
  if (a == ShellTruth::yes || b == ShellTruth::yes) return ShellTruth::yes;
  return a == ShellTruth::no && b == ShellTruth::no ? ShellTruth::no : ShellTruth::unknown;
}

ShellTruth test_numbers(const std::string& a, const std::string& op, const std::string& b) {
  const auto number = [](const std::string& text) -> std::optional<long long> {
    try {
      std::size_t end = 0;
      const long long n = std::stoll(text, &end);
      return end == text.size() ? std::optional(n) : std::nullopt;
    } catch (const std::exception&) {
      return std::nullopt;
    }
  };
  const auto x = number(a), y = number(b);
  if (!x || !y) return ShellTruth::unknown;
  if (op == "-eq") return truth(*x == *y);
  if (op == "-ne") return truth(*x != *y);
  if (op == "-gt") return truth(*x > *y);
  if (op == "-ge") return truth(*x >= *y);
  if (op == "-lt") return truth(*x < *y);
  if (op == "-le") return truth(*x <= *y);
  return ShellTruth::unknown;
}

ShellTruth test_one(const std::vector<std::string>& words) {
  const auto plain = [&](std::size_t i) { return without_unknown(words[i]); };
  if (words.empty()) return ShellTruth::no;
  if (words.size() == 1) return truth(!plain(0).empty());
  if (words.size() == 2) {
    const std::string value = plain(1);
    if (words[0] == "-z" || words[0] == "-n") {
      const bool command = words[1].find("$(") != std::string::npos;
      if (command && value.empty()) return ShellTruth::unknown;
      return truth(value.empty() == (words[0] == "-z"));
    }
    return ShellTruth::unknown;  // of a file
  }
  if (words.size() != 3) return ShellTruth::unknown;
  const std::string& op = words[1];
  if (has_unknown(words[0]) && words[0].find("$(") != std::string::npos) return ShellTruth::unknown;
  const std::string a = plain(0), b = plain(2);
  if (op == "=" || op == "==") return truth(fnmatch(b.c_str(), a.c_str(), 0) == 0);
  if (op == "!=") return truth(fnmatch(b.c_str(), a.c_str(), 0) != 0);
  return test_numbers(a, op, b);
}

}  // namespace

ShellTruth negated(ShellTruth t) {
  return t == ShellTruth::unknown ? t : t == ShellTruth::yes ? ShellTruth::no : ShellTruth::yes;
}

ShellTruth shell_test(const std::vector<std::string>& words) {
  if (words.size() > kMostTestWords) return ShellTruth::unknown;
  for (const auto& [op, alternative] : {std::pair{"||", "-o"}, {"&&", "-a"}})
    for (std::size_t i = 0; i < words.size(); ++i)
      if (words[i] == op || (words[i] == alternative && i > 1)) {
        const ShellTruth a = shell_test({words.begin(), words.begin() + static_cast<std::ptrdiff_t>(i)}),
                         b = shell_test({words.begin() + static_cast<std::ptrdiff_t>(i) + 1, words.end()});
        return std::string_view(op) == "||" ? either(a, b) : negated(either(negated(a), negated(b)));
      }
  if (!words.empty() && words[0] == "!") return negated(shell_test({words.begin() + 1, words.end()}));
  if (words.size() > 2 && words.front() == "(" && words.back() == ")")
    return shell_test({words.begin() + 1, words.end() - 1});
  return test_one(words);
}

}  // namespace sextant

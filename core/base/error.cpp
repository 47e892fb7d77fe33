#include "core/base/error.hpp"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

namespace sextant {

namespace {
constexpr std::size_t kLongestShown = 160;

// What came from outside, fit for a terminal: one line, nothing that it would obey, not endless.
std::string shown(std::string_view text, std::size_t most = kLongestShown) {
  std::string out;
  for (const char c : text.substr(0, most)) {
    if (c == '\n')
      out += "\\n";
    else
      out += static_cast<unsigned char>(c) < 0x20 || c == 0x7F ? '?' : c;
  }
  return text.size() > most ? out + "..." : out;
}
}  // namespace

std::string to_string(const Problem& p) {
  std::string out;
  if (!p.file.empty()) out += shown(p.file, p.file.size()) + ": ";
  if (!p.key.empty()) out += shown(p.key) + ": ";
  if (!p.value.empty()) out += fmt::format("found {}, ", shown(p.value));
  out += p.value.empty() && p.expected.empty() ? "" : fmt::format("expected {}", p.expected);
  if (!p.hint.empty()) out += (out.empty() || out.ends_with(": ") ? "" : "; ") + p.hint;
  return out;
}

namespace {
std::string join(const std::vector<Problem>& problems) {
  std::string out;
  for (const auto& p : problems) out += (out.empty() ? "" : "\n") + to_string(p);
  return out;
}
}  // namespace

ConfigError::ConfigError(std::vector<Problem> problems)
    : std::runtime_error(join(problems)), problems_(std::move(problems)) {}

void check_failed(std::string_view condition, std::string_view message, std::string_view file, int line) {
  throw std::logic_error(
      fmt::format("internal check failed: {} ({}) at {}:{}", message, condition, file, line));
}

namespace {
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t up = row[j];
      row[j] = std::min({up + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = up;
    }
  }
  return row[b.size()];
}
}  // namespace

std::string closest(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  // One slip in a short word, two in a longer one, a third of a long one.
  const std::size_t allowed = word.size() <= 3 ? 1 : std::max<std::size_t>(2, word.size() / 3);
  const auto same_start = [&](const std::string& c) {
    return std::mismatch(word.begin(), word.end(), c.begin(), c.end()).first - word.begin();
  };
  std::size_t best_distance = allowed + 1;
  for (const auto& c : candidates) {
    const std::size_t d = edit_distance(word, c);
    // Of two as near, slips are likelier at the end.
    if (d < best_distance || (d == best_distance && d <= allowed && same_start(c) > same_start(best))) {
      best_distance = d;
      best = c;
    }
  }
  return best;
}

}  // namespace sextant

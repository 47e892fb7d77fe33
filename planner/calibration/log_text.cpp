#include "planner/calibration/log_text.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <string>

#include "core/base/utf8.hpp"

namespace sextant {

std::string in_utf8(std::string_view text) {
  if (text.starts_with("\xef\xbb\xbf")) return std::string(text.substr(3));
  const bool low_first = text.starts_with("\xff\xfe");
  if (!low_first && !text.starts_with("\xfe\xff")) return std::string(text);
  const auto unit = [&](std::size_t at) {
    const auto a = static_cast<unsigned char>(text[at]), b = static_cast<unsigned char>(text[at + 1]);
    return static_cast<char32_t>(low_first ? b << 8 | a : a << 8 | b);
  };
  std::string out;
  for (std::size_t at = 2; at + 1 < text.size(); at += 2) {
    char32_t c = unit(at);
    const bool pair = c >= 0xD800 && c < 0xDC00 && at + 3 < text.size();
    if (const char32_t second = pair ? unit(at + 2) : 0; second >= 0xDC00 && second < 0xE000) {
      c = 0x10000 + ((c - 0xD800) << 10) + (second - 0xDC00);
      at += 2;
    }
    append_utf8(out, c >= 0xD800 && c < 0xE000 ? U'?' : c);
  }
  return out;
}

std::optional<double> number_after(std::string_view line, std::string_view label) {
  const std::size_t at = line.find(label);
  if (at == std::string_view::npos) return std::nullopt;
  std::size_t i = at + label.size();
  while (i < line.size() && line[i] == ' ') ++i;
  std::string digits;
  for (; i < line.size() &&
         (std::isdigit(static_cast<unsigned char>(line[i])) != 0 || line[i] == '.' || line[i] == ',' ||
          line[i] == 'e' || line[i] == 'E' || line[i] == '+' || (line[i] == '-' && !digits.empty()));
       ++i)
    if (line[i] != ',') digits += line[i];
  double x = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), x);
  if (error != std::errc() || end != digits.data() + digits.size() || !std::isfinite(x)) return std::nullopt;
  // "11.5K" is thousands and "8.03B" billions, "47.66GiB" is not a suffix but a unit.
  constexpr std::string_view kSuffixes = "KMGT";
  const bool ends = i + 1 >= line.size() || std::isalpha(static_cast<unsigned char>(line[i + 1])) == 0;
  const char suffix = i < line.size() ? line[i] == 'B' ? 'G' : line[i] : ' ';
  if (const std::size_t power = kSuffixes.find(suffix); ends && power != std::string_view::npos)
    x *= std::pow(1000.0, static_cast<double>(power + 1));
  return x;
}

std::optional<int> count_after(std::string_view line, std::string_view label) {
  constexpr double kMost = 1e9;
  const auto n = number_after(line, label);
  if (!n || *n < 0 || *n > kMost || *n != std::floor(*n)) return std::nullopt;
  return static_cast<int>(*n);
}

std::optional<long long> whole_number(std::string_view text) {
  long long x = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), x);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return x;
}

void each_line(std::string_view text, const std::function<void(std::string_view, int)>& visit) {
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    visit(text.substr(0, end), number);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

std::string_view last_word(std::string_view text) {
  text.remove_prefix(std::min(text.find_last_of(" \t") + 1, text.size()));
  return text;
}

std::string_view without_blanks(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  return text.substr(0, text.find_last_not_of(" \r") + 1);
}

void keep_largest(std::optional<double>& largest, double x) { largest = std::max(largest.value_or(0), x); }

}  // namespace sextant

#include "core/base/decimal.hpp"

#include <array>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

namespace sextant {

std::string decimal(double value, int shift) {
  if (!std::isfinite(value)) return fmt::format("{}", value);
  // Shortest digits that read back: "d.ddde+xx".
  std::array<char, 64> buffer{};
  const auto end =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::scientific).ptr;
  const std::string_view text(buffer.data(), static_cast<std::size_t>(end - buffer.data()));
  const auto e = text.find('e');
  int exponent = 0;
  const auto exponent_text = text.substr(text[e + 1] == '+' ? e + 2 : e + 1);
  std::from_chars(exponent_text.data(), exponent_text.data() + exponent_text.size(), exponent);
  std::string digits, sign;
  for (const char c : text.substr(0, e)) {
    if (c == '-') sign = "-";
    if (c >= '0' && c <= '9') digits += c;
  }
  if (digits == "0") return sign + "0";
  const int point = exponent + shift + 1;  // digits before the decimal point
  const int count = static_cast<int>(digits.size());
  if (point > 21 || point < -9) return fmt::format("{}{}e{}", sign, digits, point - count);
  if (point <= 0) return sign + "0." + std::string(static_cast<std::size_t>(-point), '0') + digits;
  if (point >= count) return sign + digits + std::string(static_cast<std::size_t>(point - count), '0');
  return sign + digits.substr(0, static_cast<std::size_t>(point)) + "." +
         digits.substr(static_cast<std::size_t>(point));
}

std::optional<double> parse_decimal(std::string_view text, int shift) {
  // The exponent is joined into the text, so that one correctly rounded conversion does all.
  int exponent = 0;
  const auto e = text.find_first_of("eE");
  if (e != std::string_view::npos) {
    auto exponent_text = text.substr(e + 1);
    if (exponent_text.starts_with('+')) exponent_text.remove_prefix(1);
    const auto end = exponent_text.data() + exponent_text.size();
    const auto r = std::from_chars(exponent_text.data(), end, exponent);
    if (r.ec != std::errc{} || r.ptr != end || exponent > 100000 || exponent < -100000) return std::nullopt;
    text = text.substr(0, e);
  }
  const auto first_digit = text.substr(text.starts_with('-') ? 1 : 0);
  if (first_digit.empty() || first_digit.front() < '0' || first_digit.front() > '9') return std::nullopt;
  const std::string whole = fmt::format("{}e{}", text, exponent - shift);
  double value = 0;
  const auto r = std::from_chars(whole.data(), whole.data() + whole.size(), value);
  if (r.ec != std::errc{} || r.ptr != whole.data() + whole.size() || !std::isfinite(value))
    return std::nullopt;
  return value;
}

std::optional<long long> parse_count(std::string_view text, long long max) {
  if (text.empty() || text.front() < '0' || text.front() > '9') return std::nullopt;
  long long value = 0;
  const auto r = std::from_chars(text.data(), text.data() + text.size(), value);
  if (r.ec != std::errc{} || r.ptr != text.data() + text.size() || value > max) return std::nullopt;
  return value;
}

}  // namespace sextant

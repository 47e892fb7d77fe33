// Numbers as the shortest decimal text that reads back to the same double, with the decimal point moved:
// 3e11 shifted by -9 is "300" and reads back as exactly 3e11. Text in readable units without rounding.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace sextant {

// Numbers in files are 0, or their size lies between these: beyond them, times and sums would be infinite, or zero.
inline constexpr double kSmallestNumber = 1e-100, kLargestNumber = 1e100;

// value * 10^shift as plain decimal digits ("0.0125", "300"); scientific when that would be very long.
// Infinities and NaN give "inf", "-inf", "nan".
std::string decimal(double value, int shift = 0);

// The double nearest to text * 10^-shift; nothing when the text is not a finite number as a whole.
std::optional<double> parse_decimal(std::string_view text, int shift = 0);

// A whole number without sign or blanks, at most `max`.
std::optional<long long> parse_count(std::string_view text, long long max);

}  // namespace sextant

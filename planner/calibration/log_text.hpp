// How numbers and words stand in the lines of logs. Used by the readers of logs and of nccl-tests alone.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace sextant {

// Text in UTF-16, as PowerShell's `>` writes it, told by its first two bytes; other text as it is, without UTF-8's mark of order.
std::string in_utf8(std::string_view text);

// The number that stands right after `label`; suffixes K, M, G, T multiply ("11.5K"), commas are skipped ("6,094").
std::optional<double> number_after(std::string_view line, std::string_view label);

// The same of ranks, stages and layers: a whole number up to a billion, so that it is an int and so are its neighbours.
std::optional<int> count_after(std::string_view line, std::string_view label);

// The whole number that `text` is.
std::optional<long long> whole_number(std::string_view text);

// Without blanks and a carriage return at either end; what stands behind its last blank.
std::string_view without_blanks(std::string_view text);
std::string_view last_word(std::string_view text);

void keep_largest(std::optional<double>& largest, double x);

// Each line with its number, from 1 on.
void each_line(std::string_view text, const std::function<void(std::string_view, int)>& visit);

}  // namespace sextant

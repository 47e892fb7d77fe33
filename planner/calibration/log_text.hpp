// How numbers stand in the lines of logs. Used by planner/calibration/run_log and planner/calibration/nccl_table alone.
#pragma once

#include <functional>
#include <optional>
#include <string_view>

namespace sextant {

// The number that stands right after `label`; suffixes K, M, G, T multiply ("11.5K"), commas are skipped ("6,094").
std::optional<double> number_after(std::string_view line, std::string_view label);

// The whole number that `text` is.
std::optional<long long> whole_number(std::string_view text);

// Each line with its number, from 1 on.
void each_line(std::string_view text, const std::function<void(std::string_view, int)>& visit);

}  // namespace sextant

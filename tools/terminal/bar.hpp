// Compact bars beside numbers, in eighths of a column: of Unicode's blocks on a terminal that shows UTF-8, of ASCII elsewhere
// (another locale; a pipe or a file whose width is not stated).
#pragma once

#include <string>
#include <vector>

#include "tools/terminal/terminal.hpp"

namespace sextant {

// `share` of `columns`: from 0 to 1, what is outside counts as the nearer end.
std::string bar_text(const Terminal&, double share, int columns);

// A curve in one line, from the least value to the largest, `columns` wide at most (means of stretches where there are more values):
// "▇▅▃▂▁", or "#+=-_" without UTF-8. Values that are not finite are left out; empty where none is left.
std::string curve_text(const Terminal&, const std::vector<double>& values, int columns);

}  // namespace sextant

#include "tools/terminal/bar.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <string_view>

namespace sextant {
namespace {

constexpr std::array<std::string_view, 8> kEighths = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
constexpr std::array<std::string_view, 8> kHeights = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
constexpr std::array<std::string_view, 8> kAsciiHeights = {"_", ".", "-", "~", "=", "+", "*", "#"};

bool shows_blocks(const Terminal& terminal) { return terminal.utf8 && terminal.columns < kUnlimitedColumns; }

}  // namespace

std::string bar_text(const Terminal& terminal, double share, int columns) {
  const double filled = std::isfinite(share) ? std::clamp(share, 0.0, 1.0) * columns : 0;
  std::string out;
  if (!shows_blocks(terminal)) return std::string(static_cast<std::size_t>(std::lround(filled)), '#');
  const auto eighths = static_cast<std::size_t>(std::lround(8 * filled));
  for (std::size_t i = 0; i < eighths / 8; ++i) out += "█";
  return out + std::string(kEighths[eighths % 8]);
}

std::string curve_text(const Terminal& terminal, const std::vector<double>& values, int columns) {
  std::vector<double> finite;
  std::ranges::copy_if(values, std::back_inserter(finite), [](double x) { return std::isfinite(x); });
  if (finite.empty() || columns <= 0) return "";
  const std::size_t n = std::min(finite.size(), static_cast<std::size_t>(columns));
  std::vector<double> means;
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t begin = i * finite.size() / n, end = (i + 1) * finite.size() / n;
    double sum = 0;
    for (std::size_t k = begin; k < end; ++k) sum += finite[k];
    means.push_back(sum / static_cast<double>(end - begin));
  }
  const auto [least, most] = std::ranges::minmax(means);
  const auto& heights = shows_blocks(terminal) ? kHeights : kAsciiHeights;
  std::string out;
  for (const double mean : means) {
    const double share = most > least ? (mean - least) / (most - least) : 0;
    out += heights[static_cast<std::size_t>(std::lround(7 * share))];
  }
  return out;
}

}  // namespace sextant

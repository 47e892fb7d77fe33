// The middle of some numbers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

namespace sextant {

// The number of this place in ascending order; there are more than `place`.
inline double ordered_at(std::vector<double> x, std::size_t place) {
  const auto at = x.begin() + static_cast<std::ptrdiff_t>(place);
  std::nth_element(x.begin(), at, x.end());
  return *at;
}

// Of two in the middle the upper one, and the lower one; `x` is not empty.
inline double median(std::vector<double> x) {
  const std::size_t middle = x.size() / 2;
  return ordered_at(std::move(x), middle);
}
inline double lower_median(std::vector<double> x) {
  const std::size_t middle = (x.size() - 1) / 2;
  return ordered_at(std::move(x), middle);
}

// Their sum over their number; 0 of none.
inline double mean(const std::vector<double>& x) {
  return x.empty() ? 0 : std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
}

}  // namespace sextant

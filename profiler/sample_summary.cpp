#include "profiler/sample_summary.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace sextant {
namespace {

constexpr double kFarOut = 3.0, kLeastShare = 0.01;

// Between neighbours in proportion.
double quantile(const std::vector<double>& sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

}  // namespace

SampleSummary summarize(std::vector<double> samples) {
  SampleSummary s;
  if (samples.empty()) return s;
  std::ranges::sort(samples);
  const double low = quantile(samples, 0.25), high = quantile(samples, 0.75);
  s.samples = static_cast<int>(samples.size());
  s.mean = std::accumulate(samples.begin(), samples.end(), 0.0) / s.samples;
  s.median = quantile(samples, 0.5);
  s.spread = high - low;
  const double far = std::max(kFarOut * s.spread, kLeastShare * std::abs(s.median));
  s.outliers = static_cast<int>(
      std::ranges::count_if(samples, [&](double x) { return x < low - far || x > high + far; }));
  return s;
}

}  // namespace sextant

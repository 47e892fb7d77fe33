#include "tools/output/time_rows.hpp"

#include <numeric>

#include "core/base/words.hpp"

namespace sextant {

std::vector<TimeRow> time_rows(const TimeSplit& mean, Seconds step, Seconds jitter) {
  std::vector<TimeRow> rows;
  const auto add = [&](std::string what, double seconds) {
    rows.push_back({std::move(what), seconds, seconds / step.v});
  };
  for (std::size_t i = 0; i < mean.size(); ++i) add(words(name(static_cast<TimeCategory>(i))), mean[i]);
  if (jitter > Seconds(0)) add("jitter", jitter.v);
  add("stragglers and host", step.v - jitter.v - std::accumulate(mean.begin(), mean.end(), 0.0));
  return rows;
}

}  // namespace sextant

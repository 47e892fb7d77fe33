#include "profiler/stream_bench.hpp"

#include <algorithm>
#include <cmath>

namespace sextant {
namespace {

// The events around calls of one stream: n calls, n + 1 events.
std::vector<double> times_of(const Device& device, const std::vector<Event>& events) {
  std::vector<double> at;
  for (const Event& event : events) at.push_back(device.reached(event)->v);
  return at;
}

// Calls of one stream during which the other was busy.
void add_covered(const std::vector<double>& own, const std::vector<double>& other, std::vector<double>& out) {
  for (std::size_t i = 0; i + 1 < own.size(); ++i)
    if (own[i] >= other.front() && own[i + 1] <= other.back()) out.push_back(own[i + 1] - own[i]);
}

}  // namespace

StreamBench::StreamBench(Device& device)
    : device_(device), first_(device.create_stream("first")), second_(device.create_stream("second")) {}

std::vector<double> StreamBench::alone(const StreamCall& call, int repetitions,
                                       const std::function<void()>& before) {
  if (before) before();
  device_.rehearse(true);
  call(first_);
  device_.rehearse(false);
  device_.synchronize(device_.record(first_));
  std::vector<double> seconds;
  for (int r = 0; r <= repetitions; ++r) {
    if (before) before();
    const Event begin = device_.record(first_);
    call(first_);
    const Event end = device_.record(first_);
    device_.synchronize(end);
    if (r > 0) seconds.push_back((*device_.reached(end) - *device_.reached(begin)).v);
  }
  return seconds;
}

std::pair<int, int> StreamBench::counts(double first_s, double second_s) {
  const double window = kLeast * std::max(first_s, second_s);
  const auto count = [&](double s) {
    return s > 0 ? static_cast<int>(std::clamp(std::ceil(window / s), 1.0 * kLeast, 1.0 * kMost)) : kLeast;
  };
  return {count(first_s), count(second_s)};
}

StreamBench::Concurrent StreamBench::concurrent(const StreamCall& first, const StreamCall& second,
                                                std::pair<int, int> counts, int repetitions,
                                                const std::function<void()>& before) {
  Concurrent out;
  for (int r = 0; r <= repetitions; ++r) {
    if (before) before();
    std::vector<Event> own = {device_.record(first_)}, other = {device_.record(second_)};
    // In turns, so that neither stream waits for the host to come to it.
    for (int i = 0; i < std::max(counts.first, counts.second); ++i) {
      if (i < counts.first) {
        first(first_);
        own.push_back(device_.record(first_));
      }
      if (i < counts.second) {
        second(second_);
        other.push_back(device_.record(second_));
      }
    }
    device_.synchronize(own.back());
    device_.synchronize(other.back());
    if (r == 0) continue;
    const auto a = times_of(device_, own), b = times_of(device_, other);
    add_covered(a, b, out.first);
    add_covered(b, a, out.second);
  }
  return out;
}

}  // namespace sextant

// How long does a call take on a stream, alone and while another call runs on another stream all the while? By events
// of the device, whatever it is.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "runtime/devices/device.hpp"

namespace sextant {

// Enqueues the call on the stream it is given, with Device::launch or Device::copy.
using StreamCall = std::function<void(StreamId)>;

class StreamBench {
 public:
  explicit StreamBench(Device&);  // makes two streams

  // Seconds of `repetitions` calls one after another, each waited for, behind one that is rehearsed and one that is
  // dropped. `before` each: the place to meet other ranks.
  std::vector<double> alone(const StreamCall&, int repetitions, const std::function<void()>& before = {});

  // How often each of two calls is made so that both streams are busy for about as long: at least kLeast times, at
  // most kMost.
  static std::pair<int, int> counts(double first_s, double second_s);

  struct Concurrent {
    std::vector<double> first,
        second;  // seconds of one call while the other's stream was busy from before to after
  };
  // Both calls at the same time, `counts` of each, `repetitions` times, of which the first is dropped.
  Concurrent concurrent(const StreamCall& first, const StreamCall& second, std::pair<int, int> counts,
                        int repetitions, const std::function<void()>& before = {});

  Device& device() { return device_; }
  StreamId stream() const { return first_; }
  static constexpr int kLeast = 6, kMost = 400;

 private:
  Device& device_;
  StreamId first_, second_;
};

}  // namespace sextant

// A link of stated bandwidth and latency that all transfers under way share fairly (processor sharing): with
// n of equal weight each gets 1/n. Emulates NICs, node links and host links on CPU ranks: a transfer is a
// wait that burns no CPU. Ignores packet sizes and congestion control.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "core/base/units.hpp"

namespace sextant {

class SharedLink {
 public:
  using Clock = std::chrono::steady_clock;

  // Bandwidth 0 means infinitely fast.
  explicit SharedLink(BytesPerSecond bandwidth) : bandwidth_(bandwidth) {}
  BytesPerSecond bandwidth() const { return bandwidth_; }

  // A transfer under way. It claims its share from the moment it begins until it is finished or dropped.
  class Transfer {
   public:
    Transfer(SharedLink& link, Bytes bytes, double weight = 1.0);
    ~Transfer();
    Transfer(const Transfer&) = delete;
    Transfer& operator=(const Transfer&) = delete;
    // Waits until all bytes are through, or until `stop` says so (looked at every 10 ms). Gives the moment
    // the last byte went through, which is a little before the wait could notice.
    template <class Stop>
    Clock::time_point finish(Stop stop) {
      while (!wait_some() && !stop()) {
      }
      return through_;
    }
    Clock::time_point finish() {
      return finish([] { return false; });
    }

   private:
    bool wait_some();  // true when through
    SharedLink& link_;
    const double weight_;
    double end_ = 0;
    bool active_ = false;
    Clock::time_point through_ = Clock::now();
  };

 private:
  void advance(Clock::time_point now);  // brings served_ up to date; mutex held

  const BytesPerSecond bandwidth_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Bytes served to a transfer of weight 1 that was always there. A transfer of w weight and b bytes is
  // through once served_ has grown by b / w.
  double served_ = 0;
  double weights_ = 0;
  Clock::time_point last_ = Clock::now();
};

}  // namespace sextant

// A thread that finds its work instead of being woken for it: who begins it makes no system call and loses no turn on a
// busy processor. The thread looks all the oftener the sooner work is expected.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "core/base/units.hpp"

namespace sextant {

class BackgroundThread {
 public:
  explicit BackgroundThread(std::function<void()> work);  // which throws nothing
  ~BackgroundThread();  // ends when the work that has begun is done; what has not begun is left
  BackgroundThread(const BackgroundThread&) = delete;

  // From now on work may be found this much later than it was begun: 0.2 to 50 ms; before the first call, 1 ms.
  void look_every(Seconds);
  // Of one thread, and only when the work before is done. What it has written before, the work sees.
  void begin() { begun_.store(true, std::memory_order_release); }
  void hurry();  // looks now: by a system call

 private:
  void loop();

  std::function<void()> work_;
  std::atomic<bool> begun_ = false;
  std::atomic<double> nap_s_;
  std::mutex mutex_;
  std::condition_variable called_;
  bool hurried_ = false, closing_ = false;
  std::jthread thread_;  // last: joined before the rest goes
};

}  // namespace sextant

#include "runtime/checkpoint/background_thread.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace sextant {
namespace {

constexpr double kShortestNap_s = 2e-4, kFirstNap_s = 1e-3, kLongestNap_s = 0.05;

}  // namespace

BackgroundThread::BackgroundThread(std::function<void()> work)
    : work_(std::move(work)), nap_s_(kFirstNap_s), thread_([this] { loop(); }) {}

BackgroundThread::~BackgroundThread() {
  const std::lock_guard lock(mutex_);
  closing_ = true;
  called_.notify_one();
}

void BackgroundThread::look_every(Seconds nap) {
  nap_s_.store(std::clamp(nap.v, kShortestNap_s, kLongestNap_s), std::memory_order_relaxed);
}

void BackgroundThread::hurry() {
  const std::lock_guard lock(mutex_);
  hurried_ = true;
  called_.notify_one();
}

void BackgroundThread::loop() {
  std::unique_lock lock(mutex_);
  while (!closing_) {
    if (begun_.exchange(false, std::memory_order_acquire)) {
      lock.unlock();
      work_();
      lock.lock();
      continue;
    }
    const std::chrono::duration<double> nap(nap_s_.load(std::memory_order_relaxed));
    called_.wait_for(lock, nap, [&] { return closing_ || std::exchange(hurried_, false); });
  }
}

}  // namespace sextant

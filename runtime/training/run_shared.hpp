// What the ranks of one process share during a training run. Internal to runtime/training.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>

#include "runtime/execution/watchdog.hpp"
#include "runtime/training/training_run.hpp"

namespace sextant {

struct RunShared {
  std::mutex mutex;
  RunResult result;
  std::unique_ptr<Watchdog> watchdog;
  const std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();
  std::atomic<bool> all_throw{false};  // what ends this rank ends the others too, without being told
};

}  // namespace sextant

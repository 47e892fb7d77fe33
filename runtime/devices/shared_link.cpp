#include "runtime/devices/shared_link.hpp"

#include <algorithm>

namespace sextant {

namespace {
// Below this many bytes a transfer counts as through: keeps rounding from costing another wait.
constexpr double kSlack_bytes = 0.5;
constexpr std::chrono::milliseconds kLookUp{10};
}  // namespace

void SharedLink::advance(Clock::time_point now) {
  if (weights_ > 0) served_ += std::chrono::duration<double>(now - last_).count() * bandwidth_.v / weights_;
  last_ = now;
}

SharedLink::Transfer::Transfer(SharedLink& link, Bytes bytes, double weight) : link_(link), weight_(weight) {
  if (link.bandwidth_.v <= 0 || bytes.v <= 0) return;
  const std::lock_guard lock(link.mutex_);
  link.advance(Clock::now());
  end_ = link.served_ + static_cast<double>(bytes.v) / weight;
  link.weights_ += weight;
  active_ = true;
  link.changed_.notify_all();
}

SharedLink::Transfer::~Transfer() {
  if (!active_) return;
  const std::lock_guard lock(link_.mutex_);
  link_.advance(Clock::now());
  link_.weights_ -= weight_;
  if (link_.weights_ < 1e-9) link_.weights_ = 0;
  link_.changed_.notify_all();
}

bool SharedLink::Transfer::wait_some() {
  if (!active_) return true;
  std::unique_lock lock(link_.mutex_);
  link_.advance(Clock::now());
  const double left = end_ - link_.served_;
  if (left <= kSlack_bytes) {
    through_ = link_.last_ + std::chrono::duration_cast<Clock::duration>(
                                 std::chrono::duration<double>(left * link_.weights_ / link_.bandwidth_.v));
    link_.weights_ -= weight_;
    if (link_.weights_ < 1e-9) link_.weights_ = 0;
    active_ = false;
    link_.changed_.notify_all();
    return true;
  }
  const std::chrono::duration<double> until(left * link_.weights_ / link_.bandwidth_.v);
  link_.changed_.wait_for(lock, std::min<std::chrono::duration<double>>(until, kLookUp));
  return false;
}

}  // namespace sextant

#include "tools/adaptation/rank_processes.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace sextant {

RankProcesses::RankProcesses(std::unique_ptr<Communicator> world, Seconds patience)
    : world_(std::move(world)),
      own_(everyone(*world_)),
      patience_(patience),
      watch_([this](const std::stop_token& stop) { watch(stop); }) {}

void RankProcesses::waits_since(std::chrono::steady_clock::time_point since) {
  const std::lock_guard lock(mutex_);
  since_ = since;
}

void RankProcesses::watch(const std::stop_token& stop) {
  using Clock = std::chrono::steady_clock;
  const auto patience =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(patience_.v));
  while (!stop.stop_requested()) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, stop, patience / 4, [] { return false; });
    }
    const std::lock_guard asking(asking_);
    const auto late = [&] {
      const std::lock_guard lock(mutex_);
      return since_ != Clock::time_point{} && Clock::now() - since_ > patience;
    };
    if (stop.stop_requested() || !late()) continue;
    const Stalls who = world_->stalls();
    if (who.over || who.silent.empty()) continue;
    const std::string why = fmt::format(
        "rank {} gives no sign of life, and the others wait between two steps", fmt::join(who.silent, ", "));
    if (!world_->lose(who.silent, why)) world_->abort(why);
  }
}

bool RankProcesses::share(StepView& view, bool tells) {
  const Waiting waiting(*this);
  // The shortest is the largest of what is negative, and a work that is not another's is the only one above zero.
  std::vector<double> values = {decides() && tells ? 1.0 : 0.0};
  values.insert(values.end(), view.compute.begin(), view.compute.end());
  std::ranges::transform(view.collectives, std::back_inserter(values), std::negate());
  own_->all_reduce(values.data(), values.data(), std::ssize(values), Dtype::fp64, Reduction::max, {});
  const auto collectives = values.begin() + 1 + std::ssize(view.compute);
  std::copy(values.begin() + 1, collectives, view.compute.begin());
  std::transform(collectives, values.end(), view.collectives.begin(), std::negate());
  return values.front() > 0;
}

std::vector<int> RankProcesses::regroup() {
  Regrouped left = world_->regroup(patience_);
  const std::lock_guard none_asks(asking_);
  own_ = everyone(*left.world);
  world_ = std::move(left.world);
  return std::move(left.before);
}

std::int64_t RankProcesses::least(std::int64_t mine) {
  const Waiting waiting(*this);
  auto value = -static_cast<double>(mine);
  own_->all_reduce(&value, &value, 1, Dtype::fp64, Reduction::max, {});
  return static_cast<std::int64_t>(-value);
}

std::string RankProcesses::hear(const std::string& text) {
  const Waiting waiting(*this);
  auto length = static_cast<std::int64_t>(text.size());
  own_->broadcast(&length, sizeof length, 0, {});
  std::string heard = text;
  heard.resize(static_cast<std::size_t>(length));
  own_->broadcast(heard.data(), length, 0, {});
  return heard;
}

}  // namespace sextant

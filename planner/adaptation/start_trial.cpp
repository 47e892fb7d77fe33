#include "planner/adaptation/start_trial.hpp"

#include <algorithm>

#include "core/base/median.hpp"

namespace sextant {

StartTrial::StartTrial(std::vector<Forecast> layouts, std::int64_t steps, const TrialBudget& budget)
    : layouts_(std::move(layouts)),
      measured_(layouts_.size()),
      steps_each_(budget.steps_each),
      pause_(budget.pause) {
  std::stable_sort(layouts_.begin() + 1, layouts_.end(),
                   [](const Forecast& a, const Forecast& b) { return a.step < b.step; });
  budget_ = best() * (static_cast<double>(steps) * budget.share);
}

void StartTrial::took(Seconds step) { measured_[now_].push_back(step.v); }

void StartTrial::paused(Seconds pause) {
  pause_ = std::max(pause_, pause);
  pauses_ = pauses_ + pause;
}

bool StartTrial::present_done() const { return static_cast<int>(measured_[now_].size()) >= steps_each_; }

Seconds StartTrial::best() const {
  if (const auto tried = results(); !tried.empty()) return tried.front().measured;
  return std::ranges::min_element(layouts_, {}, [](const Forecast& f) { return f.step.v; })->step;
}

std::int64_t StartTrial::steps() const {
  std::int64_t n = 0;
  for (const auto& of_one : measured_) n += std::ssize(of_one);
  return n;
}

Seconds StartTrial::spent() const {
  const Seconds least = best();
  Seconds spent = pauses_;
  for (const auto& steps : measured_)
    for (const double step : steps) spent = spent + std::max(Seconds(0), Seconds(step) - least);
  return spent;
}

std::optional<Layout> StartTrial::next() const {
  if (now_ + 1 >= layouts_.size()) return std::nullopt;
  const Forecast& next = layouts_[now_ + 1];
  // What is predicted is as far off as it was of the first layout.
  const auto tried = results();
  const auto first = std::ranges::find_if(
      tried, [&](const Result& r) { return r.layout.layout == layouts_.front().layout; });
  const double off = first == tried.end() ? 1 : first->measured / first->layout.step;
  const Seconds slower = std::max(Seconds(0), next.step * off - best());
  return spent() + slower * steps_each_ + pause_ * 2.0 <= budget_ ? std::optional(next.layout) : std::nullopt;
}

std::vector<StartTrial::Result> StartTrial::results() const {
  std::vector<Result> results;
  for (std::size_t i = 0; i < layouts_.size(); ++i)
    if (measured_[i].size() > 1)
      results.push_back({layouts_[i], Seconds(median({measured_[i].begin() + 1, measured_[i].end()}))});
  std::ranges::stable_sort(results, {}, [](const Result& r) { return r.measured.v; });
  return results;
}

}  // namespace sextant

#include "planner/adaptation/start_trial.hpp"

#include <algorithm>

namespace sextant {

StartTrial::StartTrial(std::vector<Forecast> layouts, std::int64_t steps, const TrialBudget& budget)
    : layouts_(std::move(layouts)), steps_each_(budget.steps_each) {
  Seconds best = layouts_.front().step;
  for (const Forecast& f : layouts_) best = std::min(best, f.step);
  budget_ = best * static_cast<double>(steps) * budget.share;
  // Whatever is tried, the run may have to move once more, to the best of them.
  Seconds cost = (layouts_.front().step - best) * steps_each_ + budget.move;
  std::stable_sort(layouts_.begin() + 1, layouts_.end(),
                   [](const Forecast& a, const Forecast& b) { return a.step < b.step; });
  std::size_t kept = 1;
  for (; kept < layouts_.size(); ++kept) {
    cost = cost + (layouts_[kept].step - best) * steps_each_ + budget.move;
    if (cost > budget_) break;
  }
  left_out_ = layouts_.size() - kept;
  layouts_.resize(kept);
  measured_.resize(kept);
}

void StartTrial::took(Seconds step) { measured_[now_].push_back(step.v); }

bool StartTrial::present_done() const { return static_cast<int>(measured_[now_].size()) >= steps_each_; }

std::optional<Layout> StartTrial::next() {
  if (now_ + 1 >= layouts_.size()) return std::nullopt;
  return layouts_[++now_].layout;
}

std::vector<StartTrial::Result> StartTrial::results() const {
  std::vector<Result> results;
  for (std::size_t i = 0; i < layouts_.size(); ++i) {
    std::vector<double> counted(measured_[i].begin() + std::min<std::ptrdiff_t>(1, static_cast<std::ptrdiff_t>(measured_[i].size())),
                                measured_[i].end());
    if (counted.empty()) continue;
    const auto middle = counted.begin() + static_cast<std::ptrdiff_t>(counted.size() / 2);
    std::ranges::nth_element(counted, middle);
    results.push_back({layouts_[i], Seconds(*middle)});
  }
  std::ranges::stable_sort(results, {}, [](const Result& r) { return r.measured.v; });
  return results;
}

}  // namespace sextant

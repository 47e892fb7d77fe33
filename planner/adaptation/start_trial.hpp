// The first steps of a run under each of a few layouts: nothing is thrown away, all of them train. What a trial costs is what
// its steps take beyond those of the best, and the moves; layouts that would cost more than the budget are not tried.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "planner/adaptation/adaptation_policy.hpp"

namespace sextant {

struct TrialBudget {
  double share = 0.02;  // of the run's time
  int steps_each = 4;   // the first of which connects and allocates, and is not counted
  Seconds pause;        // of a change, until one was made
};

class StartTrial {
 public:
  // `layouts`: the present one and others; these are tried by their predicted step.
  StartTrial(std::vector<Forecast> layouts, std::int64_t steps, const TrialBudget&);

  const Layout& present() const { return layouts_[now_].layout; }
  void took(Seconds step);     // one of the present layout
  void paused(Seconds pause);  // training stood still for the change to it
  bool present_done() const;
  // The layout that would be tried next, as long as the budget pays for it and for going on under the best afterwards.
  std::optional<Layout> next() const;
  void go_on() { ++now_; }  // to the next

  struct Result {
    Forecast layout;
    Seconds measured;
  };
  std::vector<Result> results() const;  // of those tried, best first
  std::int64_t steps() const;           // that were taken
  std::size_t left_out() const { return layouts_.size() - 1 - now_; }
  Seconds budget() const { return budget_; }
  Seconds spent() const;  // beyond what as many steps of the best would have taken

 private:
  Seconds best() const;  // measured, or predicted as long as nothing is

  std::vector<Forecast> layouts_;
  std::vector<std::vector<double>> measured_;
  std::size_t now_ = 0;
  int steps_each_;
  Seconds budget_, pause_, pauses_;
};

}  // namespace sextant

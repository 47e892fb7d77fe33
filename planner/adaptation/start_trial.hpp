// The first steps of a run under each of a few layouts: nothing is thrown away, all of them train. What a trial costs is what
// its steps take beyond those of the best, and the moves; layouts that would cost more than the budget are not tried.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "planner/adaptation/adaptation_policy.hpp"

namespace sextant {

struct TrialBudget {
  double share = 0.02;      // of the run's time
  int steps_each = 4;       // the first of which connects and allocates, and is not counted
  Seconds move;             // what a change costs
};

class StartTrial {
 public:
  // `layouts`: the present one first, then others by their predicted step. Those that the budget does not pay for are left
  // out, from the slowest on.
  StartTrial(std::vector<Forecast> layouts, std::int64_t steps, const TrialBudget&);

  bool worth_it() const { return layouts_.size() > 1; }
  const Layout& present() const { return layouts_[now_].layout; }
  std::size_t left_out() const { return left_out_; }
  void took(Seconds);  // a step of the present layout
  bool present_done() const;
  // The next layout; nothing when all were tried.
  std::optional<Layout> next();

  struct Result {
    Forecast layout;
    Seconds measured;
  };
  std::vector<Result> results() const;  // best first
  Seconds budget() const { return budget_; }

 private:
  std::vector<Forecast> layouts_;
  std::vector<std::vector<double>> measured_;
  std::size_t now_ = 0, left_out_ = 0;
  int steps_each_;
  Seconds budget_;
};

}  // namespace sextant

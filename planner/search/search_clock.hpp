// When does one search stop? When it is cancelled, or when it has spent the part of its budget that it may use so far.
// Internal to planner/search; planner/search/search_budget.hpp is of several searches.
#pragma once

#include <algorithm>
#include <chrono>

#include "planner/search/search.hpp"

namespace sextant {

class SearchClock {
 public:
  explicit SearchClock(const SearchOptions& options) : options_(options) {}

  double spent_s() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }
  bool cancelled() const { return options_.cancel && options_.cancel->load(); }
  bool stop_asked() const {
    return cancelled() || (options_.budget_s > 0 && spent_s() > options_.budget_s * budget_share_);
  }
  // A search with hardly any time looks for a first layout all the same, for half as long as the following gives it at least.
  bool guessed_enough(bool found) const {
    return cancelled() || (stop_asked() && (found || spent_s() > kLeast_s / 2));
  }
  // Until then a search that was asked to stop with nothing to show looks for a first layout.
  double first_layout_until_s() const {
    return cancelled() ? spent_s() + kAfterCancel_s : std::max(kLeast_s, options_.budget_s);
  }
  // From now on, of the budget.
  void allow(double share) { budget_share_ = share; }

 private:
  using Clock = std::chrono::steady_clock;
  // With nothing to show, whoever gives a search less time, or has lost patience, gets what these can find.
  static constexpr double kLeast_s = 1, kAfterCancel_s = 0.5;
  const SearchOptions& options_;
  Clock::time_point begin_ = Clock::now();
  double budget_share_ = 0.85;  // what comes beside the space, or the first layout at all, has the rest
};

}  // namespace sextant

// Several searches that answer one question share its budget of time, and stop together.
#pragma once

#include <algorithm>
#include <chrono>

#include "planner/search/search.hpp"

namespace sextant {

// Of a search that ends early. How many seconds it had is no use to whoever gave all of them together.
inline constexpr const char* kTimeSpent = "the time for the search is spent";

class SearchBudget {
 public:
  explicit SearchBudget(const SearchOptions& options) : options_(options) {}

  // Nothing more should be asked: cancelled, or the time is spent.
  bool over() const {
    return (options_.cancel && options_.cancel->load()) ||
           (options_.budget_s > 0 && spent_s() >= options_.budget_s);
  }
  SearchOptions next(int top = 1) const {
    SearchOptions one = options_;
    one.top = top;
    if (options_.budget_s > 0) one.budget_s = std::max(kAtOnce_s, options_.budget_s - spent_s());
    return one;
  }

 private:
  static constexpr double kAtOnce_s = 1e-9;
  double spent_s() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }
  SearchOptions options_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace sextant

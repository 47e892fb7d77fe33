// Layouts ranked anew by a table of measured works. The search's bounds rest on properties of the analytic model (a
// collective costs no more than its parts, a longer chunk no less than a shorter one) that measured times need not have:
// so the search runs, and proves what it proves, under the analytic model, and the best of its families are simulated
// again with the table. Which of them is the fastest then is known; whether a family not among them is faster still is not.
#pragma once

#include "core/plan/rank_by.hpp"
#include "planner/search/search.hpp"

namespace sextant {

// Families that a search is asked for, to be ranked anew.
inline constexpr int kRankedAnew = 30;

// What the search said, under its own model.
struct RankedAnew {
  RankedPlan first;  // its best
  bool proved = false;
  std::string stopped;  // why, when not proved
  Seconds best_bound;
  std::size_t layouts = 0;  // ranked anew
};

// `table`: the job with the costs to rank by. The first `top` of the report's layouts by these remain, with predictions under
// them; the report proves nothing any more, and says so.
RankedAnew rank_anew(const Job& table, RankBy, int top, double tie_share, SearchReport&);

}  // namespace sextant

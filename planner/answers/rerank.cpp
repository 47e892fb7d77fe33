#include "planner/answers/rerank.hpp"

#include <algorithm>
#include <utility>

#include <tbb/parallel_for.h>

#include "planner/simulation/robust.hpp"

namespace sextant {

RankedAnew rank_anew(const Job& table, RankBy by, int top, double tie_share, SearchReport& report) {
  std::vector<RankedPlan>& ranked = report.ranked;
  RankedAnew before;
  before.proved = report.exact;
  before.stopped = report.stopped;
  before.best_bound = report.best_bound;
  before.layouts = ranked.size();
  if (ranked.empty()) return before;
  before.first = ranked.front();
  tbb::parallel_for(std::size_t{0}, ranked.size(),
                    [&](std::size_t i) { ranked[i].prediction = predict_under(table, ranked[i].plan, by); });
  std::ranges::stable_sort(ranked, {}, [&](const RankedPlan& r) { return ranked_step(r.prediction, by); });
  if (ranked.size() > static_cast<std::size_t>(std::max(1, top)))
    ranked.erase(ranked.begin() + std::max(1, top), ranked.end());
  const Seconds best = ranked_step(ranked.front().prediction, by);
  for (RankedPlan& r : ranked) {
    r.slower = ranked_step(r.prediction, by) / best - 1;
    r.tie = &r != &ranked.front() && r.slower < tie_share;
  }
  report.best_bound = Seconds(0);
  report.others_share = 0;
  if (std::exchange(report.exact, false))
    report.stopped = "ranked anew by measured times, for which no bound holds";
  return before;
}

}  // namespace sextant

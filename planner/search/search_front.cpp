#include "planner/search/search_front.hpp"

#include "planner/simulation/predict.hpp"

namespace sextant {

Bytes SearchFront::push(MovedMember point) {
  const auto peak = static_cast<double>(plan_memory(job_, point.found.plan).peak.v);
  limit_ = Bytes(static_cast<std::int64_t>(peak * (1 - std::max(share_, kSame))));
  // Moved, it may be faster than what needs more. The first is the one answer, though the next be as fast and smaller.
  const auto of_use = [&] {
    const double step = points_.back().found.step;
    return points_.size() == 1 ? step <= as_fast(point.found.step) : as_fast(step) < point.found.step;
  };
  while (!points_.empty() && !of_use()) points_.pop_back();
  points_.push_back(std::move(point));
  best_.reset();
  const double slowest = slowest_step();
  for (const Simulated& seen : seen_) consider(seen, slowest);
  return limit_;
}

double SearchFront::slowest_step() const {
  if (points_.empty() && !best_) return INFINITY;
  const RefinedPlan first =
      points_.empty() ? RefinedPlan{plan_of(space_, best_->choice), best_->step} : points_.front().found;
  const Seconds step = measured_step(job_, first.plan, Seconds(first.step));
  return simulated_of(job_, space_.world, step * slowest_).v;
}

Ranking SearchFront::fastest(int families) const {
  Ranking out(space_, families);
  for (const Simulated& seen : seen_)
    if (seen.peak <= limit_.v) out.add(seen);
  return out;
}

void SearchFront::consider(const Simulated& seen, double slowest) {
  if (seen.peak <= limit_.v && seen.step <= slowest && (!best_ || better_(seen, *best_))) best_ = seen;
}

}  // namespace sextant

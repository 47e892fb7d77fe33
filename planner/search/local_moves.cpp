#include "planner/search/local_moves.hpp"

#include <algorithm>
#include <cmath>

#include "planner/simulation/parallel_for.hpp"

namespace sextant {
namespace {

// Shares of the step that a move must gain; that one must which puts something of another kind on the host.
constexpr double kWorth = 1e-4, kWorthAnotherKind = 1e-3;
constexpr double kAsked =
    4000;  // slots walked in the time in which buckets are laid out, or memory is asked for
constexpr double kSimulation = 40;  // slots walked by a bound in the time of a slot simulated

}  // namespace

std::optional<RefinedPlan> LocalMoves::fastest(const RefinedPlan& at, const std::vector<ParallelPlan>& next) {
  const double slots = 2.0 * at.plan.pp * at.plan.vp * microbatches(at.plan, job_.training);
  slots_left_ -= static_cast<double>(next.size()) * (kAsked + slots);
  if (slots_left_ < 0) return std::nullopt;
  struct Move {
    const ParallelPlan* plan;
    std::optional<double> bound;
  };
  std::vector<Move> moves;
  for (const ParallelPlan& plan : next) moves.push_back({&plan, std::nullopt});
  const auto limit_of = [&](const ParallelPlan& plan) {
    const bool another = (plan.optimizer_offload > 0 && at.plan.optimizer_offload == 0) ||
                         (plan.activation_offload > 0 && at.plan.activation_offload == 0);
    return at.step * (1 - (another ? kWorthAnotherKind : kWorth));
  };
  parallel_for(moves.size(), [&](std::size_t i) {
    Move& move = moves[i];
    if (means_.stopped()) return;
    move.bound = tree_.bound(*move.plan, limit_of(*move.plan), means_.cache());
    if (move.bound && extent_.fits_first && !tree_.fits(*move.plan)) move.bound.reset();
  });
  std::erase_if(moves, [](const Move& move) { return !move.bound; });
  std::ranges::stable_sort(moves, {}, [](const Move& move) { return *move.bound; });

  for (std::size_t begin = 0; begin < std::min(moves.size(), extent_.tried * extent_.batch);
       begin += extent_.batch) {
    const std::size_t n = std::min({extent_.batch, moves.size() - begin, static_cast<std::size_t>(left_)});
    const double work = static_cast<double>(n) * slots * kSimulation;
    if (n == 0 || means_.stopped() || slots_left_ < work) return std::nullopt;
    slots_left_ -= work;
    simulated_ += n;
    left_ -= n;
    std::vector<double> steps(n, INFINITY);
    parallel_for(n, [&](std::size_t i) {
      const ParallelPlan& plan = *moves[begin + i].plan;
      if (extent_.fits_first || tree_.fits(plan)) steps[i] = means_.simulated(plan);
      if (steps[i] >= limit_of(plan)) steps[i] = INFINITY;
    });
    const auto best = static_cast<std::size_t>(std::ranges::min_element(steps) - steps.begin());
    if (std::isfinite(steps[best])) return RefinedPlan{*moves[begin + best].plan, steps[best]};
  }
  return std::nullopt;
}

}  // namespace sextant

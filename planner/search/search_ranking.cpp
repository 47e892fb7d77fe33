#include "planner/search/search_ranking.hpp"

#include <iterator>

namespace sextant {

bool Better::operator()(const Simulated& a, const Simulated& b) const {
  const double x = std::floor(std::log(a.step) / kSame), y = std::floor(std::log(b.step) / kSame);
  if (x != y) return x < y;
  const auto effort = effort_of(plan_of(*space_, a.choice)), other = effort_of(plan_of(*space_, b.choice));
  if (effort != other) return effort < other;
  return a.step != b.step ? a.step < b.step : a.choice < b.choice;
}

bool Ranking::add(const Simulated& result) {
  const Family family = family_of(plan_of(space_, result.choice));
  const auto found = best_of_family_.find(family);
  if (found != best_of_family_.end()) {
    if (!better_(result, found->second)) return false;
    shown_.erase(found->second);
  }
  best_of_family_.insert_or_assign(family, result);
  shown_.insert(result);
  if (shown_.size() > top_) shown_.erase(std::prev(shown_.end()));
  return true;
}

std::vector<Simulated> Ranking::families() const {
  std::vector<Simulated> out;
  for (const auto& [family, best] : best_of_family_) out.push_back(best);
  std::ranges::sort(out, better_);
  return out;
}

double Ranking::limit() const {
  if (shown_.size() < top_) return INFINITY;
  return std::max(as_fast(best().step), nearly(shown_.rbegin()->step));
}

double Ranking::limit_of(const Choice& choice) const {
  const auto found = best_of_family_.find(family_of(plan_of(space_, choice)));
  if (found == best_of_family_.end()) return INFINITY;
  return std::max(as_fast(best().step), nearly(found->second.step));
}

RankedPlan ranked_plan(const Job& job, const MovedMember& m) {
  RankedPlan out;
  out.prediction = predict(job, m.found.plan);
  out.plan = m.found.plan;
  out.simulated = Seconds(m.found.step);
  if (m.off_grid) out.before_refinement = Seconds(m.member.step);
  if (m.before_layers) out.before_moves = Seconds(*m.before_layers);
  return out;
}

std::vector<RankedPlan> ranked_plans(const Job& job, const Ranking& ranking, const Moved& moved,
                                     std::size_t top, double tie_share,
                                     const std::function<ParallelPlan(const Simulated&)>& plan) {
  std::vector<RankedPlan> out;
  for (const Simulated& member : ranking.shown())
    out.push_back(ranked_plan(job, {member, {plan(member), member.step}}));
  for (const MovedMember& m : moved) out.push_back(ranked_plan(job, m));
  std::ranges::stable_sort(out, {},
                           [](const RankedPlan& r) { return std::floor(std::log(r.simulated.v) / kSame); });
  std::vector<Family> seen;  // what was moved stands before what it was, unless that led into another family
  std::erase_if(out, [&](const RankedPlan& r) {
    const Family family = family_of(r.plan);
    if (std::ranges::count(seen, family) > 0) return true;
    seen.push_back(family);
    return false;
  });
  if (out.size() > top) out.resize(top);
  for (RankedPlan& r : out) {
    const RankedPlan& best = out.front();
    r.slower = std::max(0.0, r.prediction.step / best.prediction.step - 1);
    r.tie = &r != &best && r.slower < tie_share;
  }
  return out;
}

}  // namespace sextant

// What a search has simulated, best first, and from which bound on nothing can change that. Internal to planner/search.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "planner/search/local_moves.hpp"
#include "planner/search/search.hpp"

namespace sextant {

// Steps that differ by less than this share are the same: far below what any model tells apart.
inline constexpr double kSame = 1e-6;

struct Simulated {
  double step = 0;
  Choice choice;
  std::int64_t peak = 0;  // bytes
};

// Faster; as fast and simpler.
class Better {
 public:
  explicit Better(const SearchSpace& space) : space_(&space) {}
  bool operator()(const Simulated& a, const Simulated& b) const;

 private:
  const SearchSpace* space_;
};

// What has a bound up to here may turn out to be as fast, and simpler.
inline double as_fast(double step) { return step * (1 + 2 * kSame); }

// The best of each family, and those of the best families.
class Ranking {
 public:
  Ranking(const SearchSpace& space, int top)
      : space_(space), top_(static_cast<std::size_t>(std::max(1, top))) {}

  // From now on, behind the first, what can be only `share` faster is not looked for.
  void look_less(double share) { others_share_ = share; }

  bool add(const Simulated&);  // false: no better than what its family has
  bool empty() const { return shown_.empty(); }
  const Simulated& best() const { return *shown_.begin(); }
  const std::set<Simulated, Better>& shown() const { return shown_; }
  std::vector<Simulated> families() const;  // the best of all of them
  const Better& better() const { return better_; }
  // A bound above is of no use: to any layout; to those of the family of one.
  double limit() const;
  double limit_of(const Choice&) const;

 private:
  double nearly(double step) const { return as_fast(step) * (1 - others_share_); }

  const SearchSpace& space_;
  std::size_t top_;
  double others_share_ = 0;
  Better better_{space_};
  std::map<Family, Simulated> best_of_family_;
  std::set<Simulated, Better> shown_{better_};
};

// What is shown, what was moved in place of the member it was; `plan` is a member's.
struct MovedMember {
  Simulated member;
  RefinedPlan found;
  std::optional<double> before_layers = {};  // seconds; all that moved layers gained is behind it
  bool off_grid = false;
};
using Moved = std::vector<MovedMember>;
RankedPlan ranked_plan(const Job&, const MovedMember&);
std::vector<RankedPlan> ranked_plans(const Job&, const Ranking&, const Moved&, std::size_t top,
                                     double tie_share,
                                     const std::function<ParallelPlan(const Simulated&)>& plan);

}  // namespace sextant

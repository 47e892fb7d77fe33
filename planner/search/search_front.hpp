// Time against memory: points, each the fastest within a limit of memory that falls from one to the next. Used by search.cpp
// alone.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "planner/search/search_ranking.hpp"

namespace sextant {

class SearchFront {
 public:
  // Each point needs at least `share` less memory than the one before, and takes at most `slowest` times the first's step.
  SearchFront(const Job& job, const SearchSpace& space, double share, double slowest, Bytes limit)
      : job_(job), space_(space), share_(share), slowest_(slowest), limit_(limit), better_(space) {}

  void add(const Simulated& result) {
    seen_.push_back(result);
    consider(result, slowest_step());
  }
  // From here on only what needs less memory is of interest. Returns the new limit.
  Bytes push(MovedMember point);

  const std::optional<Simulated>& best() const { return best_; }  // of those within the limit
  Ranking fastest(int families) const;                            // of those within the limit
  const std::vector<MovedMember>& points() const { return points_; }
  double slowest_step() const;  // seconds of the simulated step; what takes longer is no point

 private:
  void consider(const Simulated& seen, double slowest);

  const Job& job_;
  const SearchSpace& space_;
  double share_, slowest_;
  Bytes limit_;
  Better better_;
  std::vector<Simulated> seen_;
  std::vector<MovedMember> points_;
  std::optional<Simulated> best_;
};

}  // namespace sextant

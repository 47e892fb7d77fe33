// What does the same job do on more or fewer GPUs of the same kind? One exact search per size: the scaling curve, the
// fewest GPUs that hold a deadline, the cheapest tokens. And on one size: the layouts that need least memory.
#pragma once

#include <optional>
#include <vector>

#include "planner/answers/goodput.hpp"
#include "planner/answers/recommend.hpp"
#include "planner/search/search.hpp"

namespace sextant {

struct ScalePoint {
  int gpus = 0;
  SearchReport report;    // empty ranking: nothing fits
  double efficiency = 0;  // tokens/s/GPU relative to the smallest size that fits
  std::optional<RankedPlan> recommended = {};
  // The recommended layout, where one was asked for, else the fastest; there must be some.
  const RankedPlan& best() const { return recommended ? *recommended : report.ranked.front(); }
};

// Sizes after the budget is spent, or a cancellation, are left out. With a `basis` each size has its recommended layout.
std::vector<ScalePoint> scaling_curve(const Job&, const std::vector<int>& gpus, const PlanLimits&,
                                      const SearchOptions& = {}, const DecisionBasis* basis = nullptr);

// A number of GPUs that divides badly may lose to a smaller one, and slow nodes to none: the fastest of the next multiples
// below of every power of two and of whole nodes, and of what is left without the slowest nodes (planner/answers/sub_cluster.hpp), when
// it is faster than `step`.
std::optional<ScalePoint> faster_on_fewer(const Job&, Seconds step, const PlanLimits&,
                                          const SearchOptions& = {});

// The smallest number of GPUs whose best plan takes at most `deadline` a step; without a deadline, on which anything
// fits. Every number is asked in turn during `every_s` seconds; where these do not do, whole nodes from there on: doubled
// until they hold, then in at most 32 equal strides between.
struct FewestGpus {
  std::optional<ScalePoint> found;  // nothing when `most` GPUs do not suffice
  std::optional<ScalePoint> most;   // then: the best on all of them, when anything fits
  int next_smaller = 0;             // the largest size below that was tried and does not do; 0: none
  int every_to = 0;                 // every number of GPUs up to here was asked, and does not do
  bool exact = true;                // no smaller number does, by layouts on the search grid
  bool usual = false;   // no layout with unusual features was looked for, and what was found has none
  bool in_time = true;  // of all that were tried it is known whether they do
};
FewestGpus fewest_gpus(const Job&, std::optional<Seconds> deadline, int most, const PlanLimits&,
                       const SearchOptions& = {}, double every_s = 2);

// The same of layouts without unusual features, as the framework advises. Nothing is found where these do not hold it.
FewestGpus fewest_usual_gpus(const Job&, std::optional<Seconds> deadline, int most, const PlanLimits&,
                             const EvidenceTable&, const SearchOptions& = {});

// Of the points of a curve, the one whose best plan costs least per token. Nothing without a price.
const ScalePoint* cheapest(const std::vector<ScalePoint>&);

// Of the points of a curve, the one whose best plan has the most lasting tokens per second (planner/answers/goodput.hpp). Exact
// where the points are: at one size the fastest plan is the one. Nothing where failures or storage are not stated.
const ScalePoint* most_lasting(const Job&, const std::vector<ScalePoint>&, SaveKind);

// The layouts that need least memory, the fastest of them first: these are looked for during ten seconds at most. `exact`
// of the report says that nothing is smaller, and nothing as lean is faster than the first.
struct LowestMemoryPlans {
  SearchReport report;  // of the layouts that need `limit`; the others of the space are out of memory
  Bytes limit;          // what the lowest-memory one found needs
  Bytes needs_more;     // no layout does with this
  bool proved = true;   // nothing needs less than `limit`
};
LowestMemoryPlans lowest_memory_plans(const Job&, const SearchSpace&, const SearchOptions& = {});

}  // namespace sextant

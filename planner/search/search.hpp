// Which layout is best? Exact best-first search: layouts are simulated in the order of their lower bounds until no bound
// is below the best step found; parts of the space are rejected or bounded at once and counted. Deterministic: the
// result and its counts do not depend on the number of threads. Of layouts whose steps differ by less than a millionth
// the simplest comes first (see effort_of).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "planner/search/search_space.hpp"
#include "planner/simulation/predict.hpp"

namespace sextant {

// What became of a member of the space. The first five need no figures of time or memory.
enum class Outcome : std::uint8_t {
  not_divisible,         // ranks, heads, batch or layers do not divide
  inconsistent,          // fields exclude each other
  unsupported_by_stack,  // the software stack has no such feature
  outside_limits,        // the user excluded it (effective dp or shard degree)
  duplicate,             // the same graph as another member
  out_of_memory,
  pruned_by_bound,  // its lower bound is above what was found
  simulated,
  unvisited,  // the search was stopped before
};
inline constexpr std::array<std::string_view, 9> kOutcomeNames = {
    "not divisible",   "inconsistent", "unsupported by stack", "outside limits", "duplicate", "out of memory",
    "pruned by bound", "simulated",    "not visited"};
constexpr std::string_view name(Outcome f) { return kOutcomeNames[static_cast<std::size_t>(f)]; }

struct OutcomeCounts {
  std::array<std::uint64_t, kOutcomeNames.size()> by_outcome{};
  std::uint64_t& operator[](Outcome f) { return by_outcome[static_cast<std::size_t>(f)]; }
  std::uint64_t operator[](Outcome f) const { return by_outcome[static_cast<std::size_t>(f)]; }
  std::uint64_t total() const;
  OutcomeCounts& operator+=(const OutcomeCounts&);
};

// One example of each kind of refusal, with its numbers.
struct OutcomeExample {
  Outcome outcome = Outcome::not_divisible;
  std::string plan_key, text;
};

struct RankedPlan {
  ParallelPlan plan;
  Prediction prediction;
  Seconds simulated;
  // Simulated. Of the member that was moved off the search grid (planner/search/grid_refinement.hpp); before its layers were moved
  // (planner/search/layer_moves.hpp). Where either is stated, the plan is no member of the space.
  std::optional<Seconds> before_refinement, before_moves;
  bool off_grid() const { return before_refinement || before_moves; }
  double slower = 0;  // than the first, as a share
  bool tie = false;   // closer to the first than the model's own error
};

// A search is long from so many bounds on: some tenths of a second.
inline constexpr std::uint64_t kThoroughBounds = 200'000;

struct SearchOptions {
  int top = 5;          // layouts reported: the best of each family (see family_of)
  double budget_s = 0;  // wall clock; 0 = none
  const std::atomic<bool>* cancel = nullptr;
  int threads = 0;                    // 0 = all cores
  std::optional<Bytes> memory_limit;  // instead of the device's
  std::optional<Seconds> at_most;     // layouts whose simulated step is longer need not be found
  double tie_share = 0.01;            // of the step; plans of one model and cluster share most of their error
  bool move_layers = true;  // in the end, look beside the space: between grid values, and for better cuts
  // The first is the best; once the search has computed so many bounds, families behind it may be so much faster than shown.
  double others_share = 0;
  std::uint64_t thorough_bounds = 0;
  // Stops after so many rounds over the tree, which is no proof but the same on every machine; 0 = until proved.
  int most_rounds = 0;
  std::function<void(std::uint64_t simulated, Seconds best)> progress;
};

struct SearchReport {
  std::vector<RankedPlan> ranked;  // best first; empty when nothing fits
  OutcomeCounts outcomes;
  std::vector<OutcomeExample> examples;
  std::uint64_t space = 0;
  std::uint64_t bounds = 0;  // lower bounds computed, of members or of parts of the space
  bool exact = true;         // false: stopped before the proof was complete
  std::string stopped;       // why, when not exact
  double others_share = 0;   // what is shown behind the first may be so far from the best of its kind
  // No layout of the space has a faster `prediction.step`; one that was moved out of it may have. 0 when there is none.
  Seconds best_bound;
  // Layouts simulated whose layers were moved, and between grid values: none of the space.
  std::uint64_t moved = 0, refined = 0;
  double wall_s = 0;
};

// Members that differ in nothing a reader would call another layout (axes order, buckets, overlap, offload horizon ...)
// are one family; the ranking shows each family's best.
struct Family {
  int tp, cp, pp, vp, zero_stage, micro_batch;
  PipelineSchedule schedule;
  RecomputeKind recompute;
  auto operator<=>(const Family&) const = default;
};
Family family_of(const ParallelPlan&);

// What is simpler comes first: fewer of tp, cp and pp in use, lower ZeRO stage, no offload, no recomputation, then smaller
// tp, pp, cp and vp, 1F1B, equal stages, and defaults for all that remains.
std::array<int, 14> effort_of(const ParallelPlan&);

SearchReport search(const Job&, const SearchSpace&, const SearchOptions& = {});

// From the fastest plan on, each time the fastest one that needs at least `step` (a share) less memory than the one
// before, until nothing fits that takes at most `slowest` times the fastest one's step. One pass over the space: once a
// plan is proved, the limit falls and the search goes on where it stands. Each is then moved beside the space within its
// limit, the first as the answer of `search` is; what needs more than a point and is no faster is left out.
struct ParetoFront {
  std::vector<RankedPlan> plans;
  SearchReport
      report;  // outcomes of the whole space; what is out of memory was so when its turn came. Nothing is ranked
  Bytes needs_more;   // no layout within that step does with this
  bool exact = true;  // false: stopped before the end
};
ParetoFront pareto_front(const Job&, const SearchSpace&, const SearchOptions& = {}, double step = 0.1,
                         double slowest = 1.5);

}  // namespace sextant

// Why this layout and not that one? Compares two layouts category by category of time, says what is wrong with one that
// cannot run, finds the smallest change that makes one fit, and asks whether the choice would be another on a slightly
// different machine. Text for people beside the numbers that it states.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/breakdown.hpp"
#include "planner/scale.hpp"
#include "planner/search.hpp"

namespace sextant {

// Where the step of `other` is longer than that of `best`; terms sum to the difference of their simulated steps.
struct TimeTerm {
  TimeCategory category = TimeCategory::compute;
  double seconds = 0;
  std::string cause;  // "TP all-reduce crosses nodes", empty when nothing is to add
};
struct Comparison {
  Seconds best_step, other_step;
  double slower = 0;            // share of the best step
  std::vector<TimeTerm> terms;  // largest first
  std::string text;             // "slower by 14 %: exposed tp +1.2 s (TP crosses nodes); bubble -0.1 s"
};
Comparison compare(const Job&, const ParallelPlan& best, const ParallelPlan& other);

// One or two fields changed.
struct Change {
  ParallelPlan plan;
  std::string text;  // "full recomputation"
  int fields = 1;
  Prediction prediction;
};
// The change of fewest fields that makes the plan lawful and small enough; the fastest of those. Nothing when no change
// of up to two fields does.
std::optional<Change> smallest_fitting_change(const Job&, const ParallelPlan&);

enum class Verdict : std::uint8_t { unlawful, too_large, slower, tie, best };
struct WhyNot {
  Verdict verdict = Verdict::best;
  std::optional<Rejection> rejection;    // unlawful, too_large
  std::optional<Comparison> comparison;  // slower, tie
  std::optional<Change> fix;             // what would make it possible
  std::vector<std::string> lines;
};
WhyNot why_not(const Job&, const ParallelPlan& plan, const ParallelPlan& best, double tie_share = 0.01);

// The winner's own time, and what the next ones lose. One line each.
std::vector<std::string> why_best(const Job&, const SearchReport&);

// Would the choice be another one if the machine were a little worse than stated?
struct Sensitivity {
  std::string what;  // "memory -5 %"
  bool same = true;
  ParallelPlan plan;     // best then
  double regret = 0;     // of staying with the original: its step there over the best step there, less 1
  bool possible = true;  // the original still fits
  std::string text;
};
std::vector<Sensitivity> sensitivities(const Job&, const SearchSpace&, const ParallelPlan& best,
                                       const SearchOptions& = {});

// When no member fits: the layout that comes closest, what it lacks, and the fewest GPUs that would do.
struct NothingFits {
  std::optional<ParallelPlan> closest;
  Bytes needed, available;
  std::optional<ScalePoint> more_gpus;
  std::vector<std::string> lines;
};
NothingFits why_nothing_fits(const Job&, const SearchSpace&, int most_gpus, const SearchOptions& = {});

}  // namespace sextant

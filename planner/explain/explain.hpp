// Why this layout and not that one? Compares two layouts category by category of time, says what is wrong with one that
// cannot run, finds the smallest change that makes one fit, and asks whether the choice would be another on a slightly
// different machine. Text for people beside the numbers that it states.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/plan/plan_key.hpp"
#include "core/timeline/breakdown.hpp"
#include "planner/answers/scale.hpp"
#include "planner/search/search.hpp"

namespace sextant {

// Steps closer than this share are a tie: of measured pairs of runs (same model, cluster, batch and framework) whose
// predicted steps differ by less than 2 %, the order was right in 51 of 100; from 2 to 5 % in 72, from 5 to 12 % in 82,
// above 20 % in 98 (15,055 pairs of `sextant validate --json` over the measured runs, 2026-11-20).
inline constexpr double kTieShare = 0.02;

// Where the step of `other` is longer than that of `best`; terms sum to the difference of their simulated steps, without
// jitter.
struct TimeTerm {
  TimeCategory category = TimeCategory::compute;
  double seconds = 0;
  std::string cause;  // "TP all-reduce crosses nodes", empty when nothing is to add
};
struct Comparison {
  Seconds best_step, other_step;      // by what they are ranked
  Seconds best_jitter, other_jitter;  // the part of them that jitter adds
  double slower = 0;                  // share of the best step
  std::vector<TimeTerm> terms;        // largest first
  TimeSplit best{}, other{};          // seconds of the simulated step by category, mean over stages
  std::string text;                   // "slower by 14 %: exposed tp +1.2 s (TP crosses nodes); bubble -0.1 s"
};
// RankBy here and below: with jitter in the cluster, steps are compared as plans are ranked by it.
Comparison compare(const Job&, const ParallelPlan& best, const ParallelPlan& other,
                   RankBy = RankBy::undisturbed);

// One or two fields changed.
struct Change {
  ParallelPlan plan;
  std::string text;  // "full recomputation"
  int fields = 1;
  Prediction prediction;
};
// The change of fewest fields that makes the plan lawful and small enough; of those the nearest (a degree doubled or halved
// is nearer than one changed by four, any ZeRO stage nearer than another grid of ranks, a part of the optimizer on the host
// or of the layers recomputed nearer than all), then the fastest. Nothing when no change of up to two fields does.
std::optional<Change> smallest_fitting_change(const Job&, const ParallelPlan&, RankBy = RankBy::undisturbed);

enum class Verdict : std::uint8_t { unlawful, too_large, slower, tie, best, faster };
std::string_view name(Verdict);

// What the heaviest stages hold, by category: bytes of the best layout's and of the other's.
struct MemoryTerm {
  std::string what;  // "activations"
  Bytes best, other;
};
struct WhyNot {
  Verdict verdict = Verdict::best;
  Bytes short_by;                        // too_large
  std::optional<Rejection> rejection;    // unlawful, too_large
  std::optional<Comparison> comparison;  // slower, tie, faster
  std::vector<MemoryTerm> memory;        // too_large
  std::optional<Change> fix;             // what would make it possible
  std::vector<std::string> lines;
};
WhyNot why_not(const Job&, const ParallelPlan& plan, const ParallelPlan& best, RankBy = RankBy::undisturbed,
               double tie_share = kTieShare);
// Of a plan key: one without dp that does not fill the cluster is no layout.
WhyNot why_not(const Job&, const FilledPlan&, const ParallelPlan& best, RankBy = RankBy::undisturbed);

// Among which layouts others are looked for.
struct Others {
  PlanLimits limits;
  double most_oom_chance = 1;  // (0, 1]; 1 = whatever fits
  bool off_grid = true;        // layers moved, and between the values of the search grid
};

// Had one field of the choice been another: the best layout of the space in which it is. A field that the limits pin,
// or without another value, has no entry; `plan` is empty when nothing else fits.
struct Alternative {
  std::string field, other;  // "tp", "not 1"
  std::optional<RankedPlan> plan;
  std::optional<Comparison> comparison;
  bool exact = true;
};
std::vector<Alternative> alternatives(const Job&, const Others&, const ParallelPlan& best,
                                      const SearchOptions& = {}, RankBy = RankBy::undisturbed);

// Would the choice be another one if the machine were a little worse than stated?
struct Sensitivity {
  std::string what;  // "memory -5 %"
  bool same = true;
  std::optional<ParallelPlan> plan;  // best then; nothing when nothing fits
  double regret = 0;                 // of staying: the choice's step there over the best step there, less 1
  bool as_today = false;  // the best there is as much faster than the choice on the machine as stated
  bool possible = true;   // the choice still fits
  double oom_chance = 0;  // of the choice there, where that is more than is looked for
  double slower = 0;      // the best step there over the choice's now, less 1
  bool exact = true;
  std::string text;
  bool may_stay() const { return possible && oom_chance == 0; }
  double gain() const { return regret / (1 + regret); }  // of the best there, share of the choice's step
};
std::vector<Sensitivity> sensitivities(const Job&, const Others&, const ParallelPlan& best,
                                       const SearchOptions& = {}, RankBy = RankBy::undisturbed);

// Why a search over the space cannot find anything, whatever the sizes: limits that no listed value satisfies, or a
// field whose every value the stack refuses. Nothing when that is not so.
std::optional<std::string> never_possible(const Job&, const SearchSpace&);

// When no member fits: the layout that comes closest, what it lacks, the fewest GPUs that would do, and, where nothing
// divides or these are less than all, the fastest on fewer.
struct NothingFits {
  std::optional<ParallelPlan> closest;  // nothing: no layout is possible with any memory
  Bytes needed, available;
  Seconds step;               // of the closest one: it may be too slow to be of use
  bool beside_stack = false;  // the framework itself takes more than there is: nothing more is asked
  // That the framework itself takes too much, or where nothing divides a field none of whose values does; empty where it is not
  // one alone.
  std::string cause;
  FewestGpus fewest;
  std::optional<ScalePoint> fewer_gpus;
  std::vector<std::string> lines;
};
NothingFits why_nothing_fits(const Job&, const SearchSpace&, int most_gpus, const SearchOptions& = {});

}  // namespace sextant

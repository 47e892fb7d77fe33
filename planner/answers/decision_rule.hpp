// By which rule is one layout recommended before others? The search is exact and the model is not, so that the fastest of
// millions of predictions lies where the model is least known (the winner's curse). A layout costs
//
//   cost = ln(step) + optimism * ln(1 + half width of its interval),
//
// an upper confidence bound whose width is what measured runs of its class were off (planner/simulation/uncertainty.hpp), some
// times as wide where only other stacks were measured with the same kinds of parallelism, and once more as many times where none
// was (core/runs/evidence.hpp). Only layouts count whose chance of running out of memory is below a limit; of these, where that
// costs little, those that leave room in the host's memory; and none that is much slower than the fastest of them. The one of the
// least cost is recommended; of those that cannot be told apart from it, the simplest. A layout with an unusual feature
// (offload, uneven stages, own buckets or order of axes, TP across nodes, what the framework advises against) is recommended
// only where it gains more than two such layouts are wrong against each other: by the pairwise error of measured groups where
// a measured run did the like, else by the intervals of both. Each further feature must gain as much again.
//
// The constants stand in tools/presets/calibration/decision.json; `sextant validate --fit-decision` fits them.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/cluster/cluster_spec.hpp"
#include "core/model/model_spec.hpp"
#include "core/plan/parallel_plan.hpp"
#include "core/plan/stack_spec.hpp"
#include "core/runs/evidence.hpp"

namespace sextant {

struct DecisionRule {
  double most_oom_chance = 0;  // [0, 1]: a layout at or above is not recommended while another is below
  double optimism = 0;         // half widths that a layout's logarithm of time is raised by
  double extrapolation =
      1;  // times as wide an interval where no measured run of its code is like the layout; squared, none
  double extrapolation_per_doubling =
      1;                  // and for each doubling of a degree beyond what its code was measured with
  double told_apart = 0;  // share of the cost: layouts closer than this are ordered by simplicity
  double feature_pays =
      0;  // share of the step that an unusual feature must gain over the best layout without
  double most_given_up =
      0;  // share of the step of the fastest safe layout that safety and simplicity may cost
  double host_room_pays = 0;  // ... that leaving kHostShare's room in the host's memory may cost
};

// Throws ConfigError naming file, key and what is expected.
DecisionRule load_decision_rule(const std::filesystem::path& preset_dir);

// What of a layout is unusual, in words: "activation offload", "uneven stages". Empty: nothing.
std::vector<std::string> unusual_features(const ParallelPlan&, int n_layers, const ClusterSpec&,
                                          const StackCapabilities&);
// Equal chunks, or the first and the last with a layer less each: embedding and LM head counted as one layer.
bool equal_stages(const ParallelPlan&, int n_layers);
// A chunk without a layer: of equal stages embedding or LM head alone, else a stage on paper, which frameworks refuse or leave idle.
bool empty_chunk(const ParallelPlan&);

// What the rule knows of a layout.
struct Judged {
  double step = 0;        // seconds, or seconds per sequence: the same unit for all
  double half_width = 0;  // relative, of the step's interval: [step / (1 + u), step (1 + u)]
  double oom_chance = 0;
  bool offered = true;       // false: predicted not to fit, or possible on paper alone
  bool room_on_host = true;  // what it keeps on the host leaves room there
  LikeRuns like_runs = LikeRuns::of_family;
  bool well_known = true;  // many measured runs of its code are like it
  double doublings = 0;    // of degrees beyond what was measured
  int unusual = 0;         // how many unusual features
  int kinds = 0;           // of parallelism beside data parallelism; an optimizer in two places is one more
};
// What the plan alone says: `offered`, `unusual` and `kinds`.
Judged judged(const ParallelPlan&, int n_layers, const ClusterSpec&, const StackCapabilities&);

// Below the limit of OOM risk, and no layout on paper alone.
bool surely_fits(const Judged&, const DecisionRule&);
// Whether room on the host is asked for: the fastest with room, of those that surely fit, costs little.
bool asks_for_room(std::span<const Judged>, const DecisionRule&);
// Share of its step that an unusual layout must gain over the best usual one.
double must_gain(const Judged& unusual, const Judged& usual, const DecisionRule&);
// The recommended one; `layouts` must not be empty.
std::size_t recommended(std::span<const Judged> layouts, const DecisionRule&);
double decision_cost(const Judged&, const DecisionRule&);

}  // namespace sextant

// The same policy on the virtual clock: a run of any size on a cluster to which events happen, step by step, with and without
// adapting. Steps are what the model predicts for the cluster as it is, times noise; what the policy sees of them is what a
// real run would measure, rank by rank.
//
// Long stretches in which nothing happens are not played step by step: from kPlayed steps behind the last event, or change, to
// the next event every step is the same.
//
// Without adapting, a slow part slows every step, and a lost one ends the run: it begins again from its newest checkpoint, on
// a spare in its place, as launchers that restart everybody do.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/cluster/cluster_events.hpp"
#include "planner/adaptation/adaptation_policy.hpp"

namespace sextant {

struct VirtualRunOptions {
  std::int64_t steps = 1000;
  std::int64_t save_every = 0;  // steps; 0: a lost state is lost from the first step on
  Seconds restart;              // of the whole job from a checkpoint
  double noise = 0.01;          // spread of what each rank takes, as a share
  std::uint64_t seed = 1;
  bool adapt = true;
  std::function<void(std::int64_t step)> progress = {};
};

struct VirtualRun {
  std::int64_t steps = 0;   // that count
  std::int64_t redone = 0;  // that were lost with a rank's state and made again
  Seconds wall;             // of which:
  Seconds sound;            // what as many steps take on the sound cluster under the first layout
  Seconds moving;           // standing still for a change of layout
  Seconds redoing, restarting;
  std::vector<Decision> decisions;
  Layout last;
  bool ended = false;  // no layout was possible any more: at `steps`
  double goodput() const { return wall.v > 0 ? sound / wall : 0; }
};

// `given`: the cluster without events. `start`: the first layout, on its GPUs.
VirtualRun run_virtually(const ClusterSpec& given, const ClusterEvents&, const Layout& start,
                         const AdaptationTools&, const VirtualRunOptions&);

}  // namespace sextant

// Measures the works of a plan on this machine, by running it: some steps of the plan itself, so that every work is timed
// beside whatever the plan runs beside it. A collective's time has in it what equal ranks wait for each other, which no
// simulation of one rank a stage knows, but not what stages wait for each other. Transfers are timed alone, both ends
// starting together, and collectives once more so. The first step and the first repetition are dropped.
#pragma once

#include <functional>

#include "core/timeline/work_profile.hpp"
#include "runtime/training/training_run.hpp"

namespace sextant {

struct ProfileOptions {
  int steps = 4;  // of which the first is dropped
  // Steps that are run first, and dropped, until they have taken this long: a GPU that comes from idling is cooler and clocks
  // higher than at work. Of one process; 0: none but the first.
  Seconds warm_up = {};
  int repetitions = 12;                            // of an exchange alone
  const OpTimer* timer = nullptr;                  // of ops in a step; nullptr: events around them
  std::function<void(double done)> progress = {};  // 0..1
};

// Adds to `profile`, in the place of works that it has already; on every process of an MPI job what all have measured.
// `run` states how the plan is run; its hooks and steps are not used. Returns whether world rank 0 is of this process.
bool profile_plan(const TrainingRun& run, const ProfileOptions&, WorkProfile& profile);

}  // namespace sextant

// Measures the works of a plan on this machine, by running it: some steps of the plan itself for what each rank does by
// itself, beside whatever the plan runs beside it, and collectives and transfers once more alone, all members starting
// together. The first step and the first repetition are dropped.
#pragma once

#include <functional>

#include "core/work_profile.hpp"
#include "runtime/training_run.hpp"

namespace sextant {

struct ProfileOptions {
  int steps = 4;                                   // of which the first is dropped
  int repetitions = 12;                            // of a collective
  std::function<void(double done)> progress = {};  // 0..1
};

// Adds to `profile`, in the place of works that it has already. `run` states how the plan is run; its hooks and steps are not used.
void profile_plan(const TrainingRun& run, const ProfileOptions&, WorkProfile& profile);

}  // namespace sextant

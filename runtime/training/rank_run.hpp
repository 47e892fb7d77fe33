// One rank of a training run, from its device to its last state: what is set up once around the steps of step_loop.hpp. A rank
// that cannot begin ends all of them. Internal to runtime/training.
#pragma once

#include "runtime/communicators/communicator.hpp"
#include "runtime/training/run_shared.hpp"
#include "runtime/training/training_run.hpp"

namespace sextant {

void train_rank(const TrainingRun&, Communicator& world, RunShared&);

}  // namespace sextant

// Lines of DeepSpeed: its configuration as it prints it, "  train_batch_size ............. 32", where long names have no dots; and
// the engine's steps, "global_step=10, ..., CurrSamplesPerSec=52.1" or "steps: 10 ... iter time (s): 0.502".
// Source: deepspeedai/DeepSpeed edaa722, deepspeed/utils/timer.py, runtime/config.py, runtime/pipe/engine.py.
#pragma once

#include <string_view>

#include "planner/calibration/log_steps.hpp"
#include "planner/calibration/run_log.hpp"

namespace sextant {

// Line `at` of the log. Throws ConfigError on a step of no time.
void read_deepspeed(std::string_view line, int at, StepLines&, RunLog&);

}  // namespace sextant

// Lines of torchtitan: its device mesh, what it applied to the model, and its steps, "step: 10 loss: 7.1 memory: 30.2GiB tps: 5,210".
// Source: pytorch/torchtitan, torchtitan/components/metrics.py, distributed/parallel_dims.py, models/*/infra/parallelize.py.
#pragma once

#include <string_view>

#include "planner/calibration/log_steps.hpp"
#include "planner/calibration/run_log.hpp"

namespace sextant {

// Line `at` of the log. Throws ConfigError on a step of no time.
void read_torchtitan(std::string_view line, int at, StepLines&, RunLog&);

}  // namespace sextant

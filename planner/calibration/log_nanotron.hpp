// Lines of nanotron: its configuration as YAML or as a printed dataclass, and its steps, "iteration: 5 / 20 | consumed_tokens: 5.24M |
// time_per_iteration_ms: 4.2K | ...", where numbers have three digits.
// Source: huggingface/nanotron 2411b02, src/nanotron/trainer.py (train_step_logs), config/config.py, logging/base.py.
#pragma once

#include <string_view>

#include "planner/calibration/log_steps.hpp"
#include "planner/calibration/run_log.hpp"

namespace sextant {

// Line `at` of the log. Throws ConfigError on a step of no time.
void read_nanotron(std::string_view line, int at, StepLines&, RunLog&);

}  // namespace sextant

// Lines of Megatron-LM: its arguments as it prints them, "  hidden_size ..... 4096", and its steps, "iteration 3/ 50 | ... | elapsed
// time per iteration (ms): 190.2 |"; of Megatron-Bridge, which prints a configuration as YAML, too.
// Source: NVIDIA/Megatron-LM d98e8a6, megatron/training/arguments.py, training.py, utils/common_utils.py (report_memory).
#pragma once

#include <string_view>

#include "planner/calibration/log_steps.hpp"
#include "planner/calibration/run_log.hpp"

namespace sextant {

// Line `at` of the log. Throws ConfigError on a step of no time.
void read_megatron(std::string_view line, int at, StepLines&, RunLog&);

// "  tensor_model_parallel_size: 2" of a configuration that is printed as YAML (Megatron-Bridge, NeMo).
void read_yaml_setting(std::string_view line, RunLog&);

}  // namespace sextant

// Lines of DeepSpeed: its configuration as it prints it, "  train_batch_size ............. 32", where long names have no dots; and
// the engine's steps, "global_step=10, ..., CurrSamplesPerSec=52.1" or "steps: 10 ... iter time (s): 0.502". Offload stands in the
// configuration of ZeRO, as a dataclass or JSON, in the dump of the user's own JSON, and in what the optimizer prints.
// Source: deepspeedai/DeepSpeed edaa722, deepspeed/utils/timer.py, runtime/config.py (print, print_user_config), runtime/pipe/engine.py,
// runtime/zero/config.py, offload_config.py, stage_1_and_2.py.
#pragma once

#include <string>
#include <string_view>

#include "planner/calibration/log_steps.hpp"
#include "planner/calibration/run_log.hpp"

namespace sextant {

class DeepSpeedLines {
 public:
  // Line `at` of the log. Throws ConfigError on a step of no time.
  void read(std::string_view line, int at, StepLines&, RunLog&);

  // What it says of DeepSpeed's configuration, which Megatron-DeepSpeed prints too.
  void read_configuration(std::string_view line, RunLog&);

 private:
  void collect(std::string_view line, RunLog&);

  // Its JSON goes over several lines, "json = {" and, until 2023, "zero_config .......... {".
  std::string json_;
  bool whole_configuration_ = false;  // json_ is that, not its zero_optimization alone
  int depth_ = 0;
};

}  // namespace sextant

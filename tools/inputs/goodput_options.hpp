// What `plan` and `simulate` are told about saving and failures.
#pragma once

#include <CLI/CLI.hpp>

#include "planner/answers/goodput.hpp"
#include "tools/inputs/inputs.hpp"

namespace sextant {

struct GoodputOptions {
  double node_mtbf_hours = 0, storage_GBps = 0, restart_s = 0;  // 0: the cluster's
  bool blocking = false;
  SaveKind kind() const { return blocking ? SaveKind::blocking : SaveKind::asynchronous; }
};
void add_goodput_options(CLI::App&, GoodputOptions&);
void settle(const GoodputOptions&, QuestionOptions&);  // as settings of the cluster

}  // namespace sextant

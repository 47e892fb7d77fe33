// What saving and failures leave of a run, in the answers of `plan` and `simulate`: options, text and JSON.
#pragma once

#include <optional>
#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json_fwd.hpp>

#include "planner/goodput.hpp"
#include "tools/inputs.hpp"

namespace sextant {

struct GoodputOptions {
  double node_mtbf_hours = 0, storage_GBps = 0, restart_s = 0;  // 0: the cluster's
  bool blocking = false;
  SaveKind kind() const { return blocking ? SaveKind::blocking : SaveKind::asynchronous; }
};
void add_goodput_options(CLI::App&, GoodputOptions&);
void settle(const GoodputOptions&, QuestionOptions&);  // as settings of the cluster

// "checkpoints: 5.67 TB in ..."; empty where storage or failures are not stated.
std::string goodput_text(const Job&, const ParallelPlan&, Seconds step, SaveKind);

// "checkpoint_GB", and "goodput": an object, or null where storage or failures are not stated.
void add_goodput(nlohmann::ordered_json&, const Job&, const ParallelPlan&, Seconds step, SaveKind);

}  // namespace sextant

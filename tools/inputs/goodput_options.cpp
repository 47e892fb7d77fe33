#include "tools/inputs/goodput_options.hpp"

#include <fmt/format.h>

#include "core/base/decimal.hpp"

namespace sextant {

void add_goodput_options(CLI::App& app, GoodputOptions& o) {
  add_number(app,
             {.flag = "--node-mtbf-hours",
              .metavar = "H",
              .text = "mean time between failures of one node; 0 = the cluster's (failures.node_mtbf_hours)",
              .unit = "hours",
              .min = 0,
              .max = 1e9},
             o.node_mtbf_hours);
  add_number(
      app,
      {.flag = "--storage-GBps",
       .metavar = "X",
       .text = "rate at which all nodes together write checkpoints; 0 = the cluster's (storage.write_GBps)",
       .unit = "GB/s",
       .min = 0,
       .max = 1e7},
      o.storage_GBps);
  add_number(app,
             {.flag = "--restart-s",
              .metavar = "S",
              .text = "from a failure to the next step, without reading the checkpoint; 0 = the cluster's "
                      "(failures.restart_s)",
              .unit = "seconds",
              .min = 0,
              .max = 1e7},
             o.restart_s);
  add_flag(
      app,
      {.flag = "--blocking-saves",
       .metavar = "",
       .text =
           "training waits until a checkpoint is written; otherwise only until it is copied to host memory"},
      o.blocking);
}

void settle(const GoodputOptions& o, QuestionOptions& question) {
  const auto set = [&](const char* key, double value) {
    if (value > 0) question.set.push_back(fmt::format("{}={}", key, decimal(value)));
  };
  set("failures.node_mtbf_hours", o.node_mtbf_hours);
  set("storage.write_GBps", o.storage_GBps);
  set("failures.restart_s", o.restart_s);
}

}  // namespace sextant

#include "tools/adaptation/adapt_options.hpp"

#include "tools/inputs/options.hpp"

namespace sextant {

void add_adapt_options(CLI::App& app, AdaptOptions& o) {
  add_flag(
      app,
      {.flag = "--adapt",
       .metavar = "",
       .text = "try a few layouts in the first steps and keep the best measured; then watch every step, and "
               "change the layout when the machine has changed and a change pays (adaptation.jsonl gives the "
               "reason)"},
      o.adapt);
  add_number(app,
             {.flag = "--adapt-budget",
              .metavar = "X",
              .text = "of the run's time that the layouts tried at the start may cost; 0 = none are tried",
              .unit = "%",
              .min = 0,
              .max = 100},
             o.budget);
  app.get_option("--adapt-budget")->needs(app.get_option("--adapt"));
  add_flag(
      app,
      {.flag = "--emulate",
       .metavar = "",
       .text =
           "CPU ranks compute and communicate as slowly as the cluster of the plan: a trial of that cluster "
           "with real steps"},
      o.emulate);
  add_text(app,
           {.flag = "--inject",
            .metavar = "FILE",
            .text = "with --emulate: what happens to the cluster, a line such as 'step 40 rank 3 compute x2 "
                    "until 120', "
                    "'step 60 node 1 network x0.25', 'step 90 kill rank 5' or 'step 150 join 1'"},
           o.inject);
}

void settle(const AdaptOptions& o, RunningOptions& running) {
  if (!o.asked()) return;
  if (!o.inject.empty() && !o.emulate)
    throw UsageError("--inject acts on an emulated cluster: add --emulate");
  if (o.emulate && running.device != "cpu")
    throw ConfigError(Problem{"--device", "", running.device, "cpu with --emulate",
                              "GPUs compute as fast as they are; --adapt alone acts on them"});
  if (o.adapt && running.cuda_graphs == "on")
    throw UsageError(
        "--adapt looks at every operation of every step, which graphs do not show: leave --cuda-graphs on "
        "out");
  if (o.emulate) running.shaped = true;
}

}  // namespace sextant

// `sextant profile`: measures this machine on the works of plans.
#include <ctime>
#include <memory>
#include <ostream>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/file_io.hpp"
#include "kernels/cuda/cuda_kernels.hpp"
#include "profiler/profile_plan.hpp"
#include "tools/command.hpp"
#include "tools/inputs.hpp"
#include "tools/machine.hpp"
#include "tools/progress.hpp"
#include "tools/running.hpp"
#include "tools/table.hpp"

namespace sextant {
namespace {

using Json = nlohmann::ordered_json;

struct ProfileVerbOptions {
  RunningOptions running;
  std::vector<std::string> plans;
  std::string output;
  int steps = 4;
};

ExitCode run(Session& session, const ProfileVerbOptions& o) {
  if (o.plans.empty())
    throw UsageError(
        "--for is missing: the plan whose works are to be measured\n  for example: sextant profile --for "
        "plan.json -o profile.json");
  check_output("--output", o.output, o.plans);
  WorkProfile profile;
  const HostMachine machine = inspect_machine();
  profile.machine = fmt::format("{}, {} threads", machine.cpu, machine.cpu_threads);
  if (std::string why; o.running.device == "cuda")
    if (const auto gpus = cuda_gpus(why); !gpus.empty())
      profile.machine =
          fmt::format("{}, {}, {}", gpus.front().name, cuda_libraries().gemm, cuda_libraries().attention);
  profile.date = fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr)));
  profile.sextant = version_text();
  {
    Progress progress(session.terminal, "measuring", static_cast<double>(o.plans.size()) * o.steps, "steps");
    for (std::size_t i = 0; i < o.plans.size(); ++i) {
      RunningOptions running = o.running;
      running.plan = o.plans[i];
      const Runnable runnable(running, "", session.presets());
      if (runnable.on_gpu() && runnable.file().plan.world() > 1)
        throw ConfigError(Problem{"--device", "", "cuda with several ranks", "a plan of one rank, or cpu",
                                  "exchanges between GPUs are not measured yet"});
      ProfileOptions options;
      options.steps = o.steps;
      options.progress = [&](double done) { progress.update((static_cast<double>(i) + done) * o.steps); };
      profile_plan(runnable.training(), options, profile);
    }
  }
  if (!o.output.empty()) {
    const nlohmann::json j = profile;
    write_file_atomic(o.output, j.dump(2) + "\n");
  }
  if (session.common.json) {
    const nlohmann::json j = profile;
    print_json(session, "profile", Json::parse(j.dump()));
    return ExitCode::ok;
  }
  session.terminal.out << fmt::format("{}: {} works, {} ranks at once\n\n", profile.machine,
                                      profile.works.size(), profile.ranks);
  Table table({{"work", Align::left},
               {"mean us", Align::right},
               {"median us", Align::right},
               {"quartiles +- %", Align::right, 1},
               {"alone us", Align::right, 3},
               {"samples", Align::right, 2}});
  for (const auto& [key, w] : profile.works)
    table.add_row({key, fmt::format("{:.1f}", w.mean_us), fmt::format("{:.1f}", w.median_us),
                   w.median_us > 0 ? fmt::format("{:.0f}", 50 * w.spread_us / w.median_us) : "",
                   w.alone_us > 0 ? fmt::format("{:.1f}", w.alone_us) : "", fmt::format("{}", w.samples)});
  session.terminal.out << table.render(session.terminal, session.common.wide);
  if (o.output.empty())
    session.terminal.out << "\nnext: -o profile.json keeps it\n";
  else
    session.terminal.out << fmt::format("\nwritten: {}\nnext: sextant run {} --profile {}\n", o.output,
                                        o.plans.front(), o.output);
  return ExitCode::ok;
}

}  // namespace

Verb profile_verb() {
  return {
      .name = "profile",
      .summary = "measure this machine on the works of a plan",
      .description =
          "Runs a few steps of each plan and times every kind of operation in it, beside what runs beside "
          "it; "
          "collectives and transfers once more alone, all ranks starting together. The first repetition is "
          "dropped. sextant run and compare predict with such a profile.",
      .examples = {{"a plan",
                    "sextant plan --model stories-260k --cluster laptop --stack sextant --seq-len 64 "
                    "--global-batch 8 -o tiny.json"},
                   {"its works on this machine", "sextant profile --for tiny.json -o profile.json"}},
      .define = [](CLI::App& app) -> Run {
        auto o = std::make_shared<ProfileVerbOptions>();
        add_list(app, {.flag = "--for", .metavar = "FILE", .text = "plan file; may be repeated"}, o->plans);
        add_text(app, {.flag = "-o,--output", .metavar = "FILE", .text = "where the profile is written"},
                 o->output);
        add_number(app,
                   {.flag = "--steps",
                    .metavar = "N",
                    .text = "steps of each plan; the first is dropped",
                    .min = 2,
                    .max = 1000},
                   o->steps);
        add_rank_options(app, o->running);
        return [o](Session& session) { return run(session, *o); };
      }};
}

}  // namespace sextant

// `sextant profile`: measures this machine, on the works of plans or of a ladder of models, and by itself.
#include <algorithm>
#include <atomic>
#include <ctime>
#include <exception>
#include <memory>
#include <ostream>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/file_io.hpp"
#include "profiler/kernel_trace.hpp"
#include "profiler/profile_plan.hpp"
#include "profiler/traced_steps.hpp"
#include "tools/inputs/inputs.hpp"
#include "tools/inputs/planning.hpp"
#include "tools/inputs/running.hpp"
#include "tools/inputs/version.hpp"
#include "tools/output/profile_text.hpp"
#include "tools/terminal/interrupt.hpp"
#include "tools/terminal/progress.hpp"
#include "tools/verbs/profile_ladder.hpp"
#include "tools/verbs/profile_machine.hpp"
#include "tools/verbs/verbs.hpp"

namespace sextant {
namespace {

using Json = nlohmann::ordered_json;

struct ProfileVerbOptions {
  RunningOptions running;
  std::vector<std::string> plans;
  std::string output;
  bool machine = false, quick = false;
  int steps = 4, ranks = 0;
};

// Folders are of this machine, and a table may be passed on.
std::vector<std::string> last_parts(std::vector<std::string> words) {
  for (std::string& word : words)
    if (const auto at = word.rfind('/'); at != word.npos && at + 1 < word.size()) word.erase(0, at + 1);
  return words;
}

// A job of processes serves one measurement: MPI starts once in a process.
void check_options(const ProfileVerbOptions& o) {
  if (o.ranks > 0 && !o.plans.empty() && !o.machine)
    throw UsageError(
        "--ranks is of the machine's own measurements, of which --for makes none: the ranks of a plan are "
        "its own\n  for example: sextant profile --for plan.json --machine --ranks 4");
  if (o.ranks > 0 && o.running.processes())
    throw UsageError(fmt::format(
        "--ranks is of threads; with --comm {} the ranks are the processes that were started\n  for "
        "example: mpirun -n 4 sextant profile --comm mpi -o machine.json",
        o.running.comm));
  if (!o.running.processes()) return;
  if (o.plans.size() > 1 || (o.plans.size() == 1 && o.machine))
    throw UsageError(
        "--comm mpi and env measure one thing in a job: one plan (--for), or the machine (no --for)\n  for "
        "example: "
        "mpirun -n 2 sextant profile --comm mpi --for plan.json -o profile.json");
  if (o.running.comm == "mpi" && !mpi_available())
    throw ConfigError(Problem{"--comm", "", "mpi", "local", "this sextant was built without MPI"});
}

class Profiling {
 public:
  // Reads and checks every plan, before anything is measured.
  Profiling(Session& session, const ProfileVerbOptions& o)
      : session_(session), options_(o), watch_(o.running) {
    profile_.machine = machine_of(o.running);
    profile_.date = fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr)));
    profile_.sextant = version_text();
    profile_.command = last_parts(session.arguments);
    profile_.timed_by = "events";
    if (!watch_.missing().empty())
      note("clocks, temperature and power of the GPU are not known: " + watch_.missing());
    if (o.quick)
      note("--quick: small copies, GEMMs and models, whose figures are not those of a machine under load");
    for (const std::string& plan : o.plans) {
      PlanFile file = load_plan_file(plan);
      tell_former(session, file.former);
      add(plan, std::move(file));
    }
    if (!o.plans.empty() || o.running.processes()) return;
    for (PlanFile& grid_value :
         profile_ladder(o.running.device == "cuda" ? profile_.machine : "", o.quick, session.presets())) {
      const std::string name = grid_value.model.name;
      add(name, std::move(grid_value));
    }
  }

  void machine() {
    Progress progress(session_.terminal, "measuring", 0, "parts");
    const int ranks = options_.ranks > 0 ? options_.ranks : options_.running.device == "cuda" ? 1 : 2;
    double parts = 0;
    const MeasuredBy by = measure_machine(options_.running, ranks, options_.quick, watch_,
                                          [&](const std::string& part) { progress.update(parts++, part); });
    first_rank_ = by.first_rank;
    profile_.ranks = std::max(profile_.ranks, by.ranks);
    if (by.ranks == 1 && options_.plans.empty())
      note(
          "no collective was measured, as one rank has nobody to talk to: predictions take collectives "
          "from the cluster file; mpirun -n N sextant profile --comm mpi measures those of N GPUs, with "
          "--for plan.json those of a plan of N ranks");
  }

  // Until all are measured, or somebody asks for the end; `keep` behind each.
  void works(const std::atomic<bool>& stopped, const std::function<void()>& keep) {
    Progress progress(session_.terminal, "measuring", static_cast<double>(plans_.size()) * options_.steps,
                      "steps");
    for (std::size_t i = 0; i < plans_.size() && !stopped; ++i) {
      const Runnable& runnable = *plans_[i];
      ProfileOptions options;
      options.steps = options_.steps;
      if (runnable.on_gpu() && !options_.quick) options.warm_up = Seconds(1.5);
      Bytes taken;
      options.progress = [&](double done) {
        taken = std::max(taken, watch_.taken());
        progress.update((static_cast<double>(i) + done) * options_.steps);
      };
      const std::string name = options_.plans.empty() ? runnable.file().model.name : options_.plans[i];
      std::string timed_by = "events";
      const auto traced = trace(runnable, timed_by);
      if (traced) options.timer = &traced->timer();
      watch_.note("before " + name);
      first_rank_ = profile_plan(runnable.training(), options, profile_);
      const bool own_gpu = options_.running.processes() || runnable.graph().plan.world() == 1;
      if (double& outside = watch_.facts().outside_GiB; own_gpu && taken > runnable.account())
        outside = std::max(outside, gib(taken - runnable.account()));
      if (traced) tell(*traced, timed_by);
      if (i == 0) profile_.timed_by = timed_by;
      if (timed_by != profile_.timed_by)
        note(fmt::format("operations of {} are timed by {}", name, timed_by));
      if (runnable.on_gpu() && !options_.running.processes() && runnable.graph().plan.world() > 1)
        note("ranks shared one GPU: their collectives are copies within its memory, not over links");
      for (const SlowKernels& slow : slow_kernels(options_.running)) note(slow.why);
      measured_ = i + 1;
      if (first_rank_) keep();
    }
    if (measured_ < plans_.size()) tell_cut_short("it was asked to end");
  }
  void tell_cut_short(const std::string& why) {
    note(fmt::format("{} of {} plans were measured: {}", measured_, plans_.size(), why));
  }

  // What has been measured so far.
  WorkProfile profile() {
    WorkProfile so_far = profile_;
    so_far.facts = watch_.facts();
    if (auto now = watch_.condition("at the end")) so_far.facts->conditions.push_back(std::move(*now));
    return so_far;
  }
  bool has_measured() { return measured_ > 0 || !watch_.facts().measurements.empty(); }
  bool first_rank() const { return first_rank_; }

 private:
  void add(const std::string& name, PlanFile file) {
    RunningOptions running = options_.running;
    running.plan = name;
    plans_.push_back(std::make_unique<Runnable>(running, std::move(file), "", session_.presets()));
    plans_.back()->require_room();
  }
  void note(const std::string& what) {
    if (std::ranges::find(profile_.notes, what) == profile_.notes.end()) profile_.notes.push_back(what);
  }
  // Kernels are timed one by one where CUPTI is at hand.
  std::unique_ptr<TracedSteps> trace(const Runnable& runnable, std::string& timed_by) {
    if (!runnable.on_gpu()) return nullptr;
    if (const std::string missing = kernel_trace_missing(); !missing.empty()) {
      timed_by = fmt::format("events, not kernels: {}", missing);
      return nullptr;
    }
    try {
      auto traced = std::make_unique<TracedSteps>(runnable.graph().plan.world());
      timed_by = fmt::format("kernels, with {}", kernel_trace_library());
      return traced;
    } catch (const BackendError& refused) {  // by a driver that keeps its counters to itself, say
      timed_by = fmt::format("events, not kernels: {}", refused.what());
      return nullptr;
    }
  }
  static void tell(const TracedSteps& traced, std::string& timed_by) {
    const KernelTrace::Losses lost = traced.losses();
    if (lost.dropped + lost.untimed > 0)
      timed_by += fmt::format("; {} records were dropped and {} had no times", lost.dropped, lost.untimed);
    if (traced.traced() == 0) timed_by = "events: no kernel was seen by " + kernel_trace_library();
  }

  Session& session_;
  const ProfileVerbOptions& options_;
  MachineWatch watch_;
  WorkProfile profile_;
  std::vector<std::unique_ptr<Runnable>> plans_;
  std::size_t measured_ = 0;  // plans
  bool first_rank_ = true;
};

ExitCode run(Session& session, const ProfileVerbOptions& o) {
  check_options(o);
  check_output("--output", o.output, o.plans);
  Profiling profiling(session, o);
  const InterruptGuard interrupt("sextant profile: ending behind this plan; Ctrl-C again ends at once\n");
  const auto keep = [&] {
    WorkProfile profile = profiling.profile();
    if (!o.output.empty()) write_file_atomic(o.output, nlohmann::json(profile).dump(2) + "\n");
    return profile;
  };
  try {
    if (o.machine || o.plans.empty()) profiling.machine();
    if (!o.plans.empty() || !o.running.processes()) profiling.works(interrupt.stopped(), keep);
  } catch (const std::exception& failed) {
    if (profiling.has_measured() && profiling.first_rank()) {
      profiling.tell_cut_short(failed.what());
      keep();
    }
    throw;
  }
  if (!profiling.first_rank()) return ExitCode::ok;
  const WorkProfile profile = keep();
  const nlohmann::json j = profile;
  const ExitCode ended = interrupt.stopped() ? ExitCode::interrupted : ExitCode::ok;
  if (session.common.json) {
    Json answer = Json::parse(j.dump());
    answer["works"] = answer.at("operations");  // its name in version 0.1, until version 0.3
    print_json(session, "profile", answer);
    return ended;
  }
  auto& out = session.terminal.out;
  out << fmt::format("{}: {} operations, {} ranks at once\n", profile.machine, profile.works.size(),
                     profile.ranks);
  print_wrapped(out, session.terminal, "operations are timed by " + profile.timed_by);
  for (const std::string& note : profile.notes) print_wrapped(out, session.terminal, "note: " + note);
  out << '\n';
  if (profile.facts) print_facts(session, *profile.facts);
  if (!profile.works.empty()) print_works(session, profile);
  if (o.output.empty())
    out << "\nnext: -o profile.json keeps it\n";
  else if (profile.works.empty())
    out << fmt::format(
        "\nwritten: {0}\nnext: sextant plan ... --profile {0} predicts with what the machine does by itself\n"
        "      mpirun -n N sextant profile --comm mpi --for plan.json -o profile.json measures a plan's "
        "operations\n",
        o.output);
  else
    out << fmt::format(
        "\nwritten: {0}\nnext: sextant run {1} --profile {0}{2}\n      sextant simulate --plan {1} --profile "
        "{0}\n",
        o.output, o.plans.empty() ? "plan.json" : o.plans.front(), o.running.shaped ? " --shaped" : "");
  return ended;
}

}  // namespace

Verb profile_verb() {
  return {
      .name = "profile",
      .summary = "measure this machine, and time a plan's operations on it",
      .description =
          "Runs a few steps of each plan (--for) and times every kind of operation in it, overlapped as in "
          "training, on a GPU by its kernels; collectives and transfers once more alone, all ranks starting "
          "together. Without --for, LLaMA models at usual widths and the machine itself (--machine): copies, "
          "also in both directions at once, GEMMs, launches, collectives by size and group, and a "
          "GEMM concurrent with a copy and with a collective. The first repetition is dropped. sextant plan, "
          "simulate, "
          "explain, run and compare predict with such a profile, sextant calibrate starts from it.",
      .examples = {{"a plan",
                    "sextant plan --model stories-260k --cluster laptop --stack sextant --seq-len 64 "
                    "--global-batch 8 -o tiny.json"},
                   {"its operations on this machine", "sextant profile --for tiny.json -o profile.json"}},
      .define = [](CLI::App& app) -> Run {
        auto o = std::make_shared<ProfileVerbOptions>();
        add_list(app, {.flag = "--for", .metavar = "FILE", .text = "plan file; may be repeated"}, o->plans);
        add_flag(app, {.flag = "--machine", .metavar = "", .text = "with --for: the machine itself too"},
                 o->machine);
        add_number(
            app,
            {.flag = "--ranks",
             .metavar = "N",
             .text = "threads in collectives when the machine is measured; 0 = two on the CPU, one on a GPU, "
                     "which they would share",
             .min = 0,
             .max = 64},
            o->ranks);
        add_flag(app,
                 {.flag = "--quick",
                  .metavar = "",
                  .text = "a rehearsal in seconds: small copies, GEMMs and models"},
                 o->quick);
        add_text(app,
                 {.flag = "-o,--output,--out", .metavar = "FILE", .text = "where the profile is written"},
                 o->output);
        add_number(app,
                   {.flag = "--steps",
                    .metavar = "N",
                    .text = "steps of each plan; the first is dropped, and on a GPU what warms it up",
                    .min = 2,
                    .max = 1000},
                   o->steps);
        add_comm_option(app, o->running);
        add_rank_options(app, o->running);
        return [o](Session& session) { return run(session, *o); };
      }};
}

}  // namespace sextant

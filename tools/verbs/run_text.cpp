#include "tools/verbs/run_text.hpp"

#include <ostream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tools/inputs/planning.hpp"
#include "tools/output/comparison_text.hpp"

namespace sextant {
namespace {

using Json = nlohmann::ordered_json;

std::string heading(const Runnable& runnable) {
  const PlanFile& f = runnable.file();
  const std::size_t works = runnable.works_needed();
  return fmt::format("{} on {} {} rank{} under {}: {} operations a step; {}", f.model.name, f.plan.world(),
                     runnable.on_gpu() ? "GPU" : "CPU", f.plan.world() == 1 ? "" : "s", plan_key(f.plan),
                     runnable.graph().ops.size(),
                     !runnable.profile()
                         ? "predicted from the cluster file alone"
                         : fmt::format("{} of {} kinds predicted from {}{}; the expected step: {}",
                                       runnable.works_measured(), works, runnable.profile()->file,
                                       runnable.works_measured() > 0 ? "" : ", a profile of other plans",
                                       shares_text(*runnable.predicted_from())));
}

// What was given and is not read, and which options are those of the run so far.
void tell_options(const RunJob& job, const RunStart& start) {
  const AdoptedOptions& adopted = start.adopted;
  const auto tell = [&](const std::string& what) { job.log.tell(what); };
  if (start.own && !start.own->note.empty()) tell(start.own->note);
  if (start.own && start.model_given) tell("--model is not read: the plan is that of the run so far");
  if (const std::string unused = unused_fields(job.options); !unused.empty()) tell(unused);
  if (!adopted.problem.empty()) tell(adopted.problem);
  if (!adopted.as_before.empty()) tell("as in the run so far: " + adopted.as_before);
  if (!adopted.changed.empty()) tell("other than in the run so far: " + adopted.changed);
  if (!adopted.not_kept.empty()) tell("not kept in the folder of this run, and now: " + adopted.not_kept);
  if (job.options.checkpoints.keep_all)
    tell("no checkpoint is dropped, as it is not known which the run keeps: --keep-every N sets it");
  if (start.from && start.init_given) tell("--init is not read: the weights are those of the checkpoint");
  if (start.from && !job.data.same_as(start.from->manifest().data))
    tell("the tokens are others than those of the run so far");
}

// `plan`: what the next command calls it.
std::string next_text(const RunVerbOptions& o, const std::string& plan, bool planned) {
  if (planned && o.output.empty()) return "next: -o DIR keeps the plan and the run\n";
  if (o.profile.empty())
    return fmt::format(
        "next: sextant profile --for {0} -o profile.json\n      sextant run {0} --profile profile.json\n",
        plan);
  if (o.output.empty()) return "";
  return fmt::format("next: sextant compare {} {} --profile {}\n", plan, o.output, o.profile);
}

}  // namespace

void tell_start(const RunJob& job, const RunStart& start, const Runnable& runnable) {
  const Terminal& terminal = job.session.terminal;
  for (const std::string& former : job.session.former) tell_former(job.session, former);
  tell_former(job.session, runnable.file().former);
  if (runnable.profile()) tell_former(job.session, runnable.profile()->table.former);
  tell_former(job.session, start.adopted.former);
  for (const SlowKernels& slow : slow_kernels(job.options.running)) warn_of_run(terminal, slow.why);
  if (job.session.common.json) return;
  auto& out = terminal.out;
  print_wrapped(out, terminal, heading(runnable));
  if (job.data.given()) print_wrapped(out, terminal, job.data.heading(job.options.steps));
  if (job.options.checkpoints.resume)
    job.log.tell(start.from ? fmt::format("resuming from {}", start.from->path().string())
                            : "no checkpoint is there yet: starting with step 0");
  if (!runnable.misfit().empty())
    print_wrapped(
        out, terminal,
        fmt::format("note: the plan does not fit its cluster: {}; context and libraries are counted, "
                    "which its ranks here may not need",
                    runnable.misfit()));
  tell_options(job, start);
}

void answer_in_json(const RunJob& job, const RunEnd& end, const DecisionLog& decisions) {
  const RunResult& result = end.result;
  Json answer = {
      {"plan", plan_key(end.runnable.file().plan)},
      {"steps", job.log.steps()},
      {"stopped", result.stopped},
      {"start_time_s", result.starting.v},
      {"memory",
       {{"planned_bytes", result.planned_memory.v}, {"allocated_bytes", result.allocated_memory.v}}},
      {"comparison", comparison_json(end.comparison)}};
  if (end.runnable.predicted_from()) answer["predicted_from"] = shares_json(*end.runnable.predicted_from());
  if (!end.runnable.misfit().empty()) answer["misfit"] = end.runnable.misfit();
  if (const std::string unused = unused_fields(job.options); !unused.empty())
    answer["unused_fields"] = unused;
  for (const SlowKernels& slow : slow_kernels(job.options.running)) answer[slow.key] = slow.why;
  if (job.adapt.adapt) answer["adaptation"] = decisions.lines();
  if (job.data.given()) {
    answer["data"] = job.data.identity();
    answer["evaluations"] = job.log.evaluations();
  }
  print_json(job.session, "run", answer);
}

void answer_in_text(const RunJob& job, const RunEnd& end, bool planned) {
  const RunVerbOptions& o = job.options;
  auto& out = job.session.terminal.out;
  job.log.print_curves();
  out << "\nthe last step, predicted and measured:\n\n";
  print_comparison(job.session, end.comparison);
  if (end.result.stopped) {
    const std::string reason = job.folder.end_reason();
    out << fmt::format("\nstopped: {}\n", reason.empty() ? "asked to" : reason);
  }
  out << '\n';
  if (!o.output.empty()) out << "written: " << o.output << '\n';
  out << next_text(o, planned && !o.output.empty() ? o.output + "/plan.json" : o.running.plan, planned);
}

void answer_without_steps(const RunJob& job, const Runnable& runnable, const RunResult& result) {
  if (job.session.common.json)
    print_json(
        job.session, "run",
        {{"plan", plan_key(runnable.file().plan)}, {"steps", job.log.steps()}, {"stopped", result.stopped}});
  else
    job.session.terminal.out << (result.stopped
                                     ? "stopped before the first step\n"
                                     : "nothing to do: all steps are done; --steps N asks for more\n");
}

}  // namespace sextant

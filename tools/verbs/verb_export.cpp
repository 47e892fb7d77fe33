// `sextant export`: a plan as what another framework is started with.
#include <algorithm>
#include <array>
#include <memory>
#include <ostream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tools/export/export_folder.hpp"
#include "tools/export/export_target.hpp"
#include "tools/export/launch.hpp"
#include "tools/export/nearest.hpp"
#include "tools/inputs/planning.hpp"
#include "tools/verbs/export_question.hpp"
#include "tools/verbs/verbs.hpp"

namespace sextant {

namespace {

using Json = nlohmann::ordered_json;

struct ExportVerbOptions {
  std::string plan, to, output;
  QuestionOptions question;  // in place of a plan file
  LaunchOptions launch;
  bool nearest = false, check = false;
};

// What is exported, and how it came from what was asked.
struct Exported {
  PlanFile file;
  std::vector<Inexpressible> missing;  // of the plan as asked
  std::optional<NearestPlan> nearest;
  std::vector<std::string> notes;
};

PlanFile predicted_file(const Session& session, const Question& q, const Prediction& prediction) {
  const Planning planning(q, session.presets());
  return plan_file_of(session, q, *q.plan, prediction,
                      step_breakdown(planning.predicted_job(), *q.plan).mean);
}

std::string estimate_text(double step_s, double memory_GiB) {
  return fmt::format("{:.3f} s a step, {:.1f} GiB", step_s, memory_GiB);
}

std::string estimate_text(const PlanFile& file) {
  return estimate_text(file.prediction.step_time_s.value, file.prediction.peak_memory_GiB.value);
}

// "predicted as nemo-2024: 25.1 s a step, 60.2 GiB; megatron-lm is predicted as megatron-core: ..."; empty where stacks agree.
std::string stack_note(const PlanFile& asked, const PlanFile& exported, const ExportTarget& target) {
  if (asked.stack.name == exported.stack.name) return "";
  return fmt::format("the plan was made for {} ({}); {} is predicted as {}: {}", asked.stack.name,
                     estimate_text(asked), target.title, exported.stack.name, estimate_text(exported));
}

void print_missing(Session& session, const ChosenTarget& chosen, const std::vector<Inexpressible>& missing) {
  auto& out = session.terminal.out;
  print_wrapped(out, session.terminal,
                fmt::format("{} {} cannot express {} of this plan:", chosen.target->title, chosen.version,
                            missing.size() == 1 ? "one field" : fmt::format("{} fields", missing.size())));
  for (const Inexpressible& m : missing)
    print_wrapped(out, session.terminal, fmt::format("{} {}: {}", m.field, m.value, m.reason), 2);
}

Json missing_json(const std::vector<Inexpressible>& missing) {
  Json all = Json::array();
  for (const Inexpressible& m : missing)
    all.push_back({{"field", m.field}, {"value", m.value}, {"reason", m.reason}});
  return all;
}

Json base_json(const ChosenTarget& chosen, const ParallelPlan& asked,
               const std::vector<Inexpressible>& missing) {
  return {{"target", chosen.target->name},
          {"version", chosen.version},
          {"asked", plan_key(asked)},
          {"inexpressible", missing_json(missing)}};
}

ExitCode refuse_target(Session& session, const ChosenTarget& chosen, const Exported& e,
                       const ParallelPlan& asked, bool nearest_asked) {
  if (session.common.json) {
    print_json(session, "export", base_json(chosen, asked, e.missing));
    return ExitCode::export_cannot_express;
  }
  print_missing(session, chosen, e.missing);
  const auto fixed =
      std::ranges::find_if(e.missing, [](const Inexpressible& m) { return m.changes.empty(); });
  if (fixed != e.missing.end())
    print_wrapped(session.terminal.out, session.terminal,
                  fmt::format("no plan near it can be expressed: {} has no substitute", fixed->field));
  else
    session.terminal.out << (nearest_asked
                                 ? "no plan near it can be expressed: its substitutes cannot be combined\n"
                                 : "next: --nearest takes the nearest plan that it can express\n");
  return ExitCode::export_cannot_express;
}

ExitCode refuse_nearest(Session& session, const ChosenTarget& chosen, const Exported& e,
                        const ParallelPlan& asked) {
  const Prediction& p = e.nearest->prediction;
  const std::string text =
      fmt::format("the nearest plan that it can express, {}, needs {:.1f} GiB of {:.1f} GiB",
                  plan_key(*e.nearest->question.plan), gib(p.memory.peak), gib(p.memory_available));
  if (session.common.json) {
    Json answer = base_json(chosen, asked, e.missing);
    answer["nearest"] = {
        {"key", plan_key(*e.nearest->question.plan)}, {"fits", false}, {"changes", e.nearest->changes}};
    print_json(session, "export", answer);
    return ExitCode::no_feasible_plan;
  }
  print_missing(session, chosen, e.missing);
  print_wrapped(session.terminal.out, session.terminal, text);
  print_wrapped(
      session.terminal.out, session.terminal,
      fmt::format("next: sextant plan --stack {} searches what the target can do", chosen.target->stack));
  return ExitCode::no_feasible_plan;
}

Json prediction_of_file(const PlanFile& file) {
  return {{"stack", file.stack.name},
          {"step_time_s", file.prediction.step_time_s.value},
          {"peak_memory_GiB", file.prediction.peak_memory_GiB.value}};
}

void print_exported(Session& session, const ChosenTarget& chosen, const Exported& e, const PlanFile& asked,
                    const ExportContent& content, const ExportVerbOptions& options, std::size_t files) {
  auto& out = session.terminal.out;
  const auto line = [&](const std::string& text) { print_wrapped(out, session.terminal, text); };
  if (e.nearest) {
    print_missing(session, chosen, e.missing);
    line("nearest plan: " + plan_key(e.file.plan));
    for (const std::string& change : e.nearest->changes) print_wrapped(out, session.terminal, change, 2);
    const double before = asked.prediction.step_time_s.value, now = e.file.prediction.step_time_s.value;
    line(fmt::format("it costs: {} as {} instead of {} as {} ({:+.1f} % time)", estimate_text(e.file),
                     e.file.stack.name, estimate_text(asked), asked.stack.name, 100 * (now / before - 1)));
  }
  line(fmt::format("written: {} ({} files for {} {})", options.output, files, chosen.target->title,
                   chosen.version));
  for (const std::string& note : e.notes) line("note: " + note);
  for (const std::string& note : content.notes) line("note: " + note);
  line("needs: " + content.needs);
  line("start: cd " + options.output + " && " + launch_command(e.file, options.launch));
  if (!content.trial.empty())
    line(fmt::format("cheapest trial ({}): bash {}/trial.sh", content.trial_needs, options.output));
}

ExitCode report_parser(Session& session, const ChosenTarget& chosen, bool own_parser,
                       const ParserAnswer& answer) {
  auto& out = session.terminal.out;
  const std::string asked =
      chosen.target->title +
      (own_parser ? "'s own parser" : "'s documents, held against its files by check.py,");
  const char* verb = own_parser ? "accepts" : "allow";
  const char* not_verb = own_parser ? "does not accept" : "do not allow";
  if (answer.outcome == ParserAnswer::accepted)
    print_wrapped(out, session.terminal, fmt::format("{} {} it: {}", asked, verb, answer.text));
  if (answer.outcome == ParserAnswer::absent)
    print_wrapped(out, session.terminal,
                  fmt::format("{} is not installed here, so that its parser was not asked ({})",
                              chosen.target->title, answer.text));
  if (answer.outcome == ParserAnswer::refused)
    print_error(session.terminal, "sextant export",
                fmt::format("{} {} it:\n{}", asked, not_verb, answer.text));
  return answer.outcome == ParserAnswer::refused ? ExitCode::run_failed : ExitCode::ok;
}

constexpr std::array<const char*, 3> kParserOutcomes = {"accepted", "refused", "not installed"};

Exported find_exported(const Session& session, const Question& asked, const ChosenTarget& chosen,
                       bool nearest) {
  Exported e;
  const Question q = question_under(asked, chosen, session.presets());
  PlanFile file = *asked.file;
  file.stack = q.stack;
  file.training = q.training;
  file.cluster = q.cluster;
  e.missing = inexpressible(chosen, q.stack, file);
  if (!e.missing.empty()) {
    if (nearest) e.nearest = nearest_plan(q, chosen, session.presets());
    if (e.nearest) e.file = predicted_file(session, e.nearest->question, e.nearest->prediction);
    return e;
  }
  e.file = q.stack.name == asked.stack.name
               ? file
               : predicted_file(session, q, predict_question(q, session.presets()));
  return e;
}

bool is_plan_key(const std::string& plan) {
  if (std::filesystem::exists(plan)) return false;
  try {
    parse_plan_key(plan);
  } catch (const ConfigError&) {
    return false;
  }
  return true;
}

bool asks(const QuestionOptions& q) {
  return q.seq_len > 0 || q.global_batch > 0 ||
         std::ranges::any_of(
             std::array{&q.model, &q.cluster, &q.stack, &q.calibration, &q.from, &q.precision},
             [](const std::string* text) { return !text->empty(); }) ||
         std::ranges::any_of(std::array{&q.set, &q.fix, &q.limit},
                             [](const std::vector<std::string>* list) { return !list->empty(); });
}

void refuse_usage(const ExportVerbOptions& options) {
  if (options.plan.empty() && !asks(options.question))
    throw UsageError(
        "the plan is missing\n  for example: sextant export plan.json --to megatron-lm -o job, or, of the "
        "plan "
        "that is recommended: --model llama-3.1-8b --cluster 4x8xh100");
  if (!options.plan.empty() && asks(options.question))
    throw UsageError(fmt::format(
        "{} has its own model, cluster and layout: name a plan file, or a model and a cluster to "
        "plan for{}",
        options.plan,
        options.question.stack.empty() ? ""
                                       : "\n  did you mean --to, the framework that it is written for?"));
  if (options.to.empty())
    throw UsageError("--to is missing\n  for example: --to megatron-lm, --to torchtitan@head");
  if (options.output.empty()) throw UsageError("--output is missing\n  for example: -o job");
  if (!options.launch.container.empty() && options.launch.launcher == "mpirun")
    throw UsageError(
        "--container goes with --launch slurm or torchrun: start mpirun's ranks in it as your site does");
  if (is_plan_key(options.plan))
    throw UsageError(
        fmt::format("{} is a plan key, and a plan file is wanted\n  for example: sextant simulate --plan {} "
                    "--model ... --cluster ... -o plan.json",
                    options.plan, options.plan));
}

ExitCode export_plan(Session& session, const ExportVerbOptions& options, const ChosenTarget& chosen,
                     const Question& asked) {
  Exported e = find_exported(session, asked, chosen, options.nearest);
  if (!e.missing.empty() && !e.nearest)
    return refuse_target(session, chosen, e, *asked.plan, options.nearest);
  if (e.nearest && !e.nearest->fits()) return refuse_nearest(session, chosen, e, *asked.plan);
  if (const auto note = stack_note(*asked.file, e.file, *chosen.target); !e.nearest && !note.empty())
    e.notes.push_back(note);
  if (e.file.prediction.peak_memory_GiB.value > gib(e.file.cluster.device.memory))
    e.notes.push_back(fmt::format("it does not fit as {}: {:.1f} GiB of {:.1f} GiB", e.file.stack.name,
                                  e.file.prediction.peak_memory_GiB.value,
                                  gib(e.file.cluster.device.memory)));

  const ExportContent content = chosen.target->write(e.file, chosen.version);
  const std::vector<ExportFile> files =
      export_files(e.file, chosen, content, options.launch, session.presets());
  write_export(options.output, files);
  std::optional<ParserAnswer> parser;
  if (options.check && !content.checker.empty()) parser = ask_parser(options.output);
  if (!session.common.json) {
    print_exported(session, chosen, e, *asked.file, content, options, files.size());
    return parser ? report_parser(session, chosen, content.own_parser, *parser) : ExitCode::ok;
  }
  Json answer = base_json(chosen, *asked.plan, e.missing);
  answer["key"] = plan_key(e.file.plan);
  answer["asked_prediction"] = prediction_of_file(*asked.file);
  answer["prediction"] = prediction_of_file(e.file);
  answer["changes"] = e.nearest ? e.nearest->changes : std::vector<std::string>();
  answer["directory"] = options.output;
  answer["files"] = Json::array();
  for (const ExportFile& f : files) answer["files"].push_back(f.name);
  answer["needs"] = content.needs;
  answer["start"] = launch_command(e.file, options.launch);
  answer["trial_needs"] = content.trial_needs;
  answer["notes"] = e.notes;
  for (const std::string& note : content.notes) answer["notes"].push_back(note);
  if (options.plan.empty())
    for (const std::string& note : asked.notes) answer["notes"].push_back(note);
  if (parser) answer["parser"] = {{"outcome", kParserOutcomes[parser->outcome]}, {"text", parser->text}};
  print_json(session, "export", answer);
  return parser && parser->outcome == ParserAnswer::refused ? ExitCode::run_failed : ExitCode::ok;
}

ExitCode run(Session& session, const ExportVerbOptions& options) {
  refuse_usage(options);
  const ChosenTarget chosen = find_export_target(options.to);
  QuestionOptions question = options.question;
  question.plan = options.plan;
  if (!options.plan.empty()) {
    const Question asked = read_question(session, question);
    check_export_folder(options.output);
    return export_plan(session, options, chosen, asked);
  }
  check_export_folder(options.output);
  if (question.stack.empty()) question.stack = chosen.target->stack;
  const PlannedExport planned = plan_to_export(session, question);
  return planned.question ? export_plan(session, options, chosen, *planned.question) : planned.code;
}

std::string target_names() {
  std::string text;
  for (const ExportTarget& t : export_targets()) text += (text.empty() ? "" : ", ") + t.name;
  return text;
}

}  // namespace

Verb export_verb() {
  return {
      .name = "export",
      .summary = "write the configuration and launch files of another framework",
      .description =
          "Writes the flags or configuration, environment and launch script of a plan file, or of the plan "
          "that "
          "sextant plan recommends for a model and a cluster under the target's stack, for " +
          target_names() +
          ". Every field of the plan is written; where the framework has no option for one, nothing is "
          "written, the fields are "
          "listed and the exit code is 5, unless --nearest asks for the nearest plan that it can express.",
      .examples = {{"flags of Megatron-LM, started by torchrun",
                    "sextant export plan.json --to megatron-lm -o job"},
                   {"nearest plan that torchtitan has, Slurm script, container",
                    "sextant export plan.json --to torchtitan -o job --nearest --launch slurm --container "
                    "image.sqsh"},
                   {"without a plan file: the plan that is recommended for torchtitan",
                    "sextant export --model llama-3.1-8b --cluster 4x8xh100 --to torchtitan -o job"},
                   {"and the framework's own parser on it, where installed",
                    "sextant export plan.json --to megatron-lm@head -o job --check"}},
      .define = [](CLI::App& app) -> Run {
        auto options = std::make_shared<ExportVerbOptions>();
        add_text(
            app,
            {.flag = "plan", .metavar = "FILE", .text = "a plan file, of sextant plan -o or simulate -o"},
            options->plan);
        add_text(app,
                 {.flag = "--to",
                  .metavar = "TARGET[@VERSION]",
                  .text = "the framework; its default version is the one tested last"},
                 options->to);
        add_text(app,
                 {.flag = "-o,--output",
                  .metavar = "DIR",
                  .text = "the folder to write, new or of an earlier export"},
                 options->output);
        add_text(app, {.flag = "--launch", .metavar = kLaunchers, .text = "what starts the ranks"},
                 options->launch.launcher);
        add_text(app,
                 {.flag = "--container", .metavar = "IMAGE", .text = "run in this image (pyxis, docker)"},
                 options->launch.container);
        add_flag(app,
                 {.flag = "--nearest",
                  .metavar = "",
                  .text = "the nearest plan that it can express, and what that costs"},
                 options->nearest);
        add_flag(app,
                 {.flag = "--check",
                  .metavar = "",
                  .text = "run the framework's own parser, where installed, on what was written"},
                 options->check);
        add_question_options(app, options->question, {.limits = true, .from = true});
        return [options](Session& session) { return run(session, *options); };
      }};
}

}  // namespace sextant

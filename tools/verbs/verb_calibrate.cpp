// `sextant calibrate`: constants of the cost models from measured runs, logs and nccl-tests.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <ostream>
#include <utility>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "planner/calibration/calibration_file.hpp"
#include "planner/calibration/fitted_count.hpp"
#include "planner/calibration/leave_out.hpp"
#include "planner/simulation/stage_memory.hpp"
#include "planner/validation/plausible.hpp"
#include "tools/inputs/calibrate_material.hpp"
#include "tools/inputs/planning.hpp"
#include "tools/inputs/run_tables.hpp"
#include "tools/inputs/version.hpp"
#include "tools/output/calibration_text.hpp"
#include "tools/verbs/refit_presets.hpp"
#include "tools/verbs/suggest_runs.hpp"
#include "tools/verbs/verbs.hpp"

namespace sextant {

namespace {

using Json = nlohmann::ordered_json;

struct CalibrateOptions {
  MaterialOptions material;
  std::string output, write_presets;
  int suggest = 0;
  bool refit = false, leave_out = false, example = false;
};

// A short log in Megatron-LM's form: LLaMA-2-13B on 64 A100.
constexpr const char* kExampleLog =
    "------------------------ arguments ------------------------\n"
    "  data_parallel_size .............................. 16\n"
    "  global_batch_size ............................... 1024\n"
    "  hidden_size ..................................... 5120\n"
    "  micro_batch_size ................................ 1\n"
    "  num_layers ...................................... 40\n"
    "  pipeline_model_parallel_size .................... 2\n"
    "  recompute_granularity ........................... selective\n"
    "  seq_length ...................................... 4096\n"
    "  sequence_parallel ............................... True\n"
    "  tensor_model_parallel_size ...................... 2\n"
    "  use_distributed_optimizer ....................... True\n"
    "-------------------- end of arguments ---------------------\n"
    " iteration        1/      50 | consumed samples:         1024 | elapsed time per iteration (ms): "
    "61204.1 | "
    "global batch size:  1024 | lm loss: 1.1E+01 |\n"
    " iteration        2/      50 | consumed samples:         2048 | elapsed time per iteration (ms): "
    "31250.7 | "
    "global batch size:  1024 | lm loss: 1.0E+01 |\n"
    " iteration        3/      50 | consumed samples:         3072 | elapsed time per iteration (ms): "
    "31190.2 | "
    "global batch size:  1024 | lm loss: 9.6E+00 |\n";

// Without runs the errors are those of tables and profiles, each by the sizes and works in it.
void use_errors_alone(const Material& m, Calibration& c) {
  double before = 0, after = 0;
  int n = 0;
  const auto add = [&](const auto& fit, int count) {
    before += count * fit.mape_before, after += count * fit.mape_after, n += count;
  };
  for (const NetworkFit& network : m.networks) add(network, network.samples);
  for (const ProfileFit& profile : m.profiles) add(profile, profile.works);
  if (n == 0) return;
  c.mape_before = before / n, c.mape_after = c.mape_left_out = after / n;
  c.taken = !c.constants.empty();
}

// What links and kernels measured by themselves say is where the fit to whole steps starts from.
Calibration fit(const Material& m, const std::filesystem::path& presets, const CalibrationRules& rules,
                FitOf fit_of) {
  std::vector<FreeConstant> calibrated = constants_of(m.runs, presets, rules, fit_of);
  const std::vector<ConstantFit> alone = m.measured_alone();
  const auto same = [](const FreeConstant& a, const FreeConstant& b) {
    return a.of == b.of && a.owner == b.owner && a.key == b.key;
  };
  for (const ConstantFit& one : alone) {
    std::erase_if(calibrated, [&](const FreeConstant& k) { return same(k, one.constant); });
    FreeConstant known = one.constant;
    known.prior = one.value, known.sigma = std::max(one.sigma, 0.03);
    calibrated.push_back(known);
  }
  Calibration c = calibrate(m.runs, presets, rules, calibrated, fit_of);
  if (m.runs.empty()) {
    for (const ConstantFit& one : alone) c.constants.push_back(one);
    use_errors_alone(m, c);
  }
  for (ConstantFit& k : c.constants)  // reported against the presets
    for (const ConstantFit& one : alone)
      if (same(k.constant, one.constant)) k.constant = one.constant;
  return c;
}

// The largest peak of the stages that were measured.
double peak_of_stages(const MeasuredRun& m) {
  const ResolvedRun& run = m.run;
  const MemoryEstimate all = estimate_memory(run.model, run.training, run.plan, run.stack);
  MemoryEstimate measured;
  for (const int stage : m.peak_stages) {
    measured.stages.push_back(all.stages.at(static_cast<std::size_t>(stage)));
    if (measured.stages.back().needed() > measured.needed())
      measured.heaviest = static_cast<int>(measured.stages.size()) - 1;
  }
  return as_measured(measured, run.plan, run.cluster, run.memory_kind);
}

// Peaks as the runs count them; nothing where none was measured.
std::vector<std::optional<double>> predicted_peaks(const Material& m, const std::filesystem::path& presets) {
  std::vector<std::optional<double>> out(m.runs.size());
  for (std::size_t i = 0; i < m.runs.size(); ++i)
    if (m.runs[i].peak_memory_GiB)
      out[i] = m.runs[i].peak_stages.empty() ? predict_resolved(m.runs[i].run, {presets}).memory_GiB
                                             : peak_of_stages(m.runs[i]);
  return out;
}

// What a fit of the presets says beside the constants of step time.
struct Refit {
  std::vector<RefittedMemory> memory;
  FittedCount count;
};

Refit refit_rest(const CalibrateOptions& options, const std::filesystem::path& presets,
                 const Calibration& c) {
  if (!options.refit) return {};
  std::vector<FreeConstant> calibrated;
  for (const ConstantFit& k : c.constants) calibrated.push_back(k.constant);
  return {refit_memory(options.material.runs, presets), fitted_count(presets, calibrated)};
}

void print_refit(Session& session, const Refit& refit) {
  print_refitted(session, refit.memory);
  const FittedCount& n = refit.count;
  session.terminal.out << fmt::format(
      "{} constants of the presets were fitted to whole runs: {} of step time and {} of memory here, and {} "
      "of "
      "earlier fits that stay as they are ({})\n",
      n.all(), n.step_time, n.memory, n.frozen.size(), fmt::join(n.frozen, ", "));
}

void check_calibration(const CalibrateOptions& options) {
  const MaterialOptions& m = options.material;
  if (m.none())
    throw UsageError(
        "nothing to calibrate from\n  for example: --runs my_runs.csv, --log train.log --model llama-2-13b "
        "--cluster 8x8xa100-80gb, or --nccl all_reduce.txt --cluster 8x8xa100-80gb");
  if (options.suggest > 0 && (m.runs.empty() || options.refit || !options.output.empty() ||
                              !(m.logs.empty() && m.nccl.empty() && m.tried.empty() && m.profiles.empty())))
    throw UsageError("--suggest reads --runs only, and prints\n  for example: --suggest 5 --runs runs.csv");
  if (options.refit && !(m.logs.empty() && m.nccl.empty() && m.tried.empty() && m.profiles.empty()))
    throw UsageError("--refit reads --runs only");
  if (!options.write_presets.empty() && !options.refit) throw UsageError("--write-presets needs --refit");
  if (options.leave_out && !options.refit) throw UsageError("--leave-out needs --refit");
}

// No run is faster than its devices' peak or fuller than their memory.
void check_possible(const Material& m) {
  std::vector<Problem> problems;
  for (const MeasuredRun& r : m.runs)
    for (Problem& p : impossible(r.run, r.at.empty() ? r.source : r.at, r.id, r.step, r.peak_memory_GiB))
      problems.push_back(std::move(p));
  if (!problems.empty()) throw ConfigError(std::move(problems));
}

// Runs that are all off by more than any machine is were written in another unit, or are of another job.
void check_units(const Material& m, const Calibration& c) {
  std::vector<TimedRun> timed;
  for (std::size_t i = 0; i < c.before.size(); ++i) {
    const MeasuredRun& r = m.runs[i];
    timed.push_back({r.at.empty() ? r.source : r.at, r.id, r.step.v, c.before[i]});
  }
  if (const auto problem = in_another_unit(timed)) throw ConfigError(*problem);
}

const std::string& first_file(const MaterialOptions& m) {
  return !m.runs.empty() ? m.runs.front() : !m.logs.empty() ? m.logs.front() : m.tried.front();
}

std::time_t now() { return std::chrono::system_clock::to_time_t(std::chrono::system_clock::now()); }

void save(const Session& session, const std::string& path, const Material& m, const Calibration& c) {
  CalibrationFile file = calibration_file_of(c);
  for (const auto& r : m.runs) file.runs.push_back(r.id);
  for (const TriedInVain& t : m.in_vain) file.out_of_memory.push_back(t.what);
  for (const auto& p : m.profiles) file.profiles.push_back(fmt::format("{}; {}", p.machine, p.date));
  file.sextant = version_text();
  file.created = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now()));
  file.command = session.arguments;
  save_calibration(path, file);
}

ExitCode run(Session& session, CalibrateOptions options) {
  if (options.example) {
    session.terminal.out << kExampleLog;
    return ExitCode::ok;
  }
  check_calibration(options);
  std::vector<std::string> left_out_files;
  options.material.runs = tables_of_runs(options.material.runs, left_out_files);
  for (const std::string& file : left_out_files)
    session.terminal.err << wrapped_message(session.terminal, "left out: " + file + '\n');
  const std::vector<std::string> files = options.material.files();
  check_output("--output", options.output, files);
  const auto presets = session.presets();
  const CalibrationRules rules = load_calibration_rules(presets);
  if (options.suggest > 0) {
    suggest_from_tables(session, options.material.runs, options.suggest, presets, rules);
    return ExitCode::ok;
  }
  Material m = read_material(options.material, presets, rules);
  for (const std::string& warning : m.warnings)
    session.terminal.err << wrapped_message(session.terminal, "warning: " + warning);
  for (const std::string& note : m.notes) session.terminal.err << fmt::format("note: {}\n", note);
  const std::vector<MeasuredRun> all = m.runs;
  if (options.refit) m.runs = balanced(all);
  if (m.runs.empty() && m.networks.empty() && m.profiles.empty() && m.in_vain.empty()) {
    const bool tried = options.material.runs.empty() && options.material.logs.empty();
    throw ConfigError(Problem{first_file(options.material), tried ? "measured_step_s" : "step_time_s", "",
                              "at least one run with a measured time", ""});
  }
  check_possible(m);
  const Calibration c = fit(m, presets, rules, options.refit ? FitOf::presets : FitOf::own_runs);
  if (!options.refit) check_units(m, c);
  // Published runs of one layout scatter, which a fit of the presets expects; one's own should not.
  const std::vector<Contradiction> pairs =
      options.refit ? std::vector<Contradiction>()
                    : contradictions(m.runs, std::hypot(rules.own_noise, rules.own_residual.sigma));
  const Refit refit = refit_rest(options, presets, c);
  std::vector<LeftOut> left_out;
  std::vector<SourceScore> memory_of_left_out;
  if (options.leave_out) {
    left_out = leave_one_source_out(all, presets, rules);
    memory_of_left_out = memory_left_out(options.material.runs, presets);
  }

  if (!options.output.empty()) save(session, options.output, m, c);
  if (!options.write_presets.empty()) {
    const std::string month = fmt::format("{:%Y-%m}", fmt::gmtime(now()));
    const int changed = write_refitted(presets, options.write_presets, c, m.runs, refit.memory, month) +
                        write_widths(options.write_presets, options.material.runs, month);
    session.terminal.err << fmt::format("written: {}, {} constant{} changed\n", options.write_presets,
                                        changed, changed == 1 ? "" : "s");
  }
  const auto peaks =
      options.refit ? std::vector<std::optional<double>>(m.runs.size()) : predicted_peaks(m, presets);
  if (session.common.json) {
    Json out = calibration_json(m, c, peaks, left_out, pairs);
    if (options.refit) {
      out["memory"] = to_json(refit.memory);
      if (options.leave_out) out["memory_left_out"] = memory_left_out_json(memory_of_left_out);
      out["frozen"] = refit.count.frozen;
    }
    print_json(session, "calibrate", out);
    return ExitCode::ok;
  }
  auto& out = session.terminal.out;
  if (!m.runs.empty()) {
    print_wrapped(out, session.terminal, calibration_summary(c));
  }
  print_contradictions(session, m, c, pairs);
  print_in_vain(session, m);
  print_measured_alone(session, m);
  print_constants(session, m, c);
  if (options.refit) print_refit(session, refit);
  if (!m.runs.empty()) print_residuals(session, m, c, peaks);
  print_fastest_tried(session, m, options.material.tried);
  if (!left_out.empty()) print_left_out(session, left_out);
  print_memory_left_out(session, memory_of_left_out);
  out << next_step(options.output, m, c);
  return ExitCode::ok;
}

}  // namespace

Verb calibrate_verb() {
  return {
      .name = "calibrate",
      .summary = "fit the cost models to your own runs",
      .description =
          "Fits the constants that the data can tell (device, software stack, network) to measured step "
          "times by "
          "least squares, each held to its preset as firmly as that is known, and says which moved, how far "
          "and how "
          "sure that is. Reads CSV files of runs (see 'sextant validate --example'), logs of Megatron-LM, "
          "Megatron-Bridge, NeMo, torchtitan, nanotron and DeepSpeed, output of nccl-tests (text or JSON), "
          "and "
          "profiles of the same device. Five runs of different "
          "layouts are enough to help, most when --suggest has chosen them.",
      .examples =
          {{"a log to start from", "sextant calibrate --example > train.log"},
           {"from a log",
            "sextant calibrate --log train.log --model llama-2-13b --cluster 8x8xa100-80gb -o "
            "calibration.json"},
           {"layouts that could be measured, without times", "sextant validate --example > candidates.csv"},
           {"which of them to measure first", "sextant calibrate --suggest 1 --runs candidates.csv"},
           {"the next plan with it",
            "sextant plan --model llama-2-13b --cluster 8x8xa100-80gb --calibration calibration.json"}},
      .define = [](CLI::App& app) -> Run {
        auto options = std::make_shared<CalibrateOptions>();
        add_list(app,
                 {.flag = "--runs",
                  .metavar = "FILE",
                  .text = "CSV file of measured runs, or a folder of them; repeatable"},
                 options->material.runs);
        add_list(app,
                 {.flag = "--log",
                  .metavar = "FILE[=PLAN]",
                  .text = "training log, with the layout's key where the log does not state it; repeatable"},
                 options->material.logs);
        add_list(app,
                 {.flag = "--nccl",
                  .metavar = "FILE[=KIND]",
                  .text = "output of an nccl-tests program; KIND where it does not say: all_reduce, "
                          "all_gather or reduce_scatter; repeatable"},
                 options->material.nccl);
        add_list(
            app,
            {.flag = "--tried",
             .metavar = "FILE",
             .text = "shortlist of 'sextant plan --shortlist' with measured steps, or \"outcome\": \"oom\", "
                     "filled in; repeatable"},
            options->material.tried);
        add_list(
            app,
            {.flag = "--profile",
             .metavar = "FILE",
             .text = "what 'sextant profile' measured on this device: where the fit starts from; repeatable"},
            options->material.profiles);
        add_question_options(app, options->material.question, {.plan = true, .limits = false});
        add_text(app,
                 {.flag = "-o,--output",
                  .metavar = "FILE",
                  .text = "write the calibration, for plan, simulate and validate --calibration"},
                 options->output);
        add_number(app,
                   {.flag = "--suggest",
                    .metavar = "N",
                    .text = "name the N rows of --runs without a step_time_s that are worth measuring first",
                    .unit = "",
                    .min = 1,
                    .max = 1000},
                   options->suggest);
        app.get_option("--suggest")->default_str("");
        add_flag(
            app,
            {.flag = "--allow-other-device",
             .metavar = "",
             .text =
                 "take logs and nccl-tests tables that name another device, node or network than --cluster"},
            options->material.allow_other_device);
        add_flag(app,
                 {.flag = "--refit",
                  .metavar = "",
                  .text = "fit the presets themselves, from cold: what kernel tables and stack classes say"},
                 options->refit);
        add_flag(app,
                 {.flag = "--leave-out",
                  .metavar = "",
                  .text = "with --refit: the error on each source when it is left out of the fit"},
                 options->leave_out);
        add_text(
            app,
            {.flag = "--write-presets",
             .metavar = "DIR",
             .text = "with --refit: a copy of the presets with the fitted values, each with the rows and "
                     "the command it comes from; the presets' own folder is written in place"},
            options->write_presets);
        add_flag(app, {.flag = "--example", .metavar = "", .text = "print a short training log, and exit"},
                 options->example);
        return [options](Session& session) { return run(session, *options); };
      }};
}

}  // namespace sextant

// `sextant calibrate`: constants of the cost models from measured runs, logs and nccl-tests.
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
#include "planner/validation/plausible.hpp"
#include "tools/inputs/calibrate_material.hpp"
#include "tools/inputs/planning.hpp"
#include "tools/inputs/run_tables.hpp"
#include "tools/inputs/version.hpp"
#include "tools/output/calibration_text.hpp"
#include "tools/verbs/fit_material.hpp"
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

// What was read and what the fit makes of it: all that is answered.
struct Fitted {
  Material material;
  Calibration constants;
  std::vector<std::optional<double>> peaks;  // predicted, by run
  std::vector<InconsistentPair> pairs;
  Refit refit;
  std::vector<LeftOut> left_out;  // of --leave-out
  std::vector<SourceScore> memory_left_out;
};

Material read_and_tell(Session& session, const CalibrateOptions& options,
                       const std::filesystem::path& presets, const CalibrationRules& rules) {
  Material m = read_material(options.material, presets, rules);
  for (const std::string& warning : m.warnings)
    session.terminal.err << wrapped_message(session.terminal, "warning: " + warning);
  for (const std::string& note : m.notes) session.terminal.err << fmt::format("note: {}\n", note);
  return m;
}

Fitted fit_all(const CalibrateOptions& options, const std::filesystem::path& presets,
               const CalibrationRules& rules, Material material) {
  Fitted f;
  f.material = std::move(material);
  Material& m = f.material;
  const std::vector<MeasuredRun> all = m.runs;
  if (options.refit) m.runs = balanced(all);
  if (m.runs.empty() && m.networks.empty() && m.profiles.empty() && m.in_vain.empty()) {
    const bool tried = options.material.runs.empty() && options.material.logs.empty();
    throw ConfigError(Problem{first_file(options.material), tried ? "measured_step_s" : "step_time_s", "",
                              "at least one run with a measured time", ""});
  }
  check_possible(m);
  f.constants = fit_material(m, presets, rules, options.refit ? FitOf::presets : FitOf::own_runs);
  if (!options.refit) {
    check_units(m, f.constants);
    // Published runs of one layout scatter, which a fit of the presets expects; one's own should not.
    f.pairs = inconsistent_pairs(m.runs, std::hypot(rules.own_noise, rules.own_residual.sigma));
  }
  f.refit = refit_rest(options, presets, f.constants);
  if (options.leave_out) {
    f.left_out = leave_one_source_out(all, presets, rules);
    f.memory_left_out = memory_left_out(options.material.runs, presets);
  }
  return f;
}

void write_files(const Session& session, const CalibrateOptions& options,
                 const std::filesystem::path& presets, const Fitted& f) {
  if (!options.output.empty()) save(session, options.output, f.material, f.constants);
  if (options.write_presets.empty()) return;
  const std::string month = fmt::format("{:%Y-%m}", fmt::gmtime(now()));
  const int changed =
      write_refitted(presets, options.write_presets, f.constants, f.material.runs, f.refit.memory, month) +
      write_widths(options.write_presets, options.material.runs, month);
  session.terminal.err << fmt::format("written: {}, {} constant{} changed\n", options.write_presets, changed,
                                      changed == 1 ? "" : "s");
}

Json fitted_json(const CalibrateOptions& options, const Fitted& f) {
  Json out = calibration_json(f.material, f.constants, f.peaks, f.left_out, f.pairs);
  if (!options.refit) return out;
  out["memory"] = to_json(f.refit.memory);
  if (options.leave_out) out["memory_left_out"] = memory_left_out_json(f.memory_left_out);
  out["frozen"] = f.refit.count.frozen;
  return out;
}

void print_fitted(Session& session, const CalibrateOptions& options, const Fitted& f) {
  const Material& m = f.material;
  auto& out = session.terminal.out;
  if (!m.runs.empty()) print_wrapped(out, session.terminal, calibration_summary(f.constants));
  print_inconsistent_pairs(session, m, f.constants, f.pairs);
  print_in_vain(session, m);
  print_measured_alone(session, m);
  print_constants(session, m, f.constants);
  if (options.refit) print_refit(session, f.refit);
  if (!m.runs.empty()) print_residuals(session, m, f.constants, f.peaks);
  print_fastest_tried(session, m, options.material.tried);
  if (!f.left_out.empty()) print_left_out(session, f.left_out);
  print_memory_left_out(session, f.memory_left_out);
  out << next_step(options.output, m, f.constants);
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
  check_output("--output", options.output, options.material.files());
  const auto presets = session.presets();
  const CalibrationRules rules = load_calibration_rules(presets);
  if (options.suggest > 0) {
    suggest_from_tables(session, options.material.runs, options.suggest, presets, rules);
    return ExitCode::ok;
  }
  Fitted fitted = fit_all(options, presets, rules, read_and_tell(session, options, presets, rules));
  write_files(session, options, presets, fitted);
  const std::vector<MeasuredRun>& runs = fitted.material.runs;
  fitted.peaks = options.refit ? std::vector<std::optional<double>>(runs.size())
                               : predicted_peaks(fitted.material, presets);
  if (session.common.json)
    print_json(session, "calibrate", fitted_json(options, fitted));
  else
    print_fitted(session, options, fitted);
  return ExitCode::ok;
}

void add_material_options(CLI::App& app, MaterialOptions& o) {
  add_list(app,
           {.flag = "--runs",
            .metavar = "FILE",
            .text = "CSV file of measured runs, or a folder of them; repeatable"},
           o.runs);
  add_list(app,
           {.flag = "--log",
            .metavar = "FILE[=PLAN]",
            .text = "training log, with the layout's key where the log does not state it; repeatable"},
           o.logs);
  add_list(app,
           {.flag = "--nccl",
            .metavar = "FILE[=KIND]",
            .text = "output of an nccl-tests program; KIND where it does not state one: all_reduce, "
                    "all_gather or reduce_scatter; repeatable"},
           o.nccl);
  add_list(app,
           {.flag = "--tried",
            .metavar = "FILE",
            .text = "shortlist of 'sextant plan --shortlist' with measured steps, or \"outcome\": \"oom\", "
                    "filled in; repeatable"},
           o.tried);
  add_list(app,
           {.flag = "--profile",
            .metavar = "FILE",
            .text = "what 'sextant profile' measured on this device: where the fit starts from; repeatable"},
           o.profiles);
}

Run define_calibrate(CLI::App& app) {
  auto options = std::make_shared<CalibrateOptions>();
  add_material_options(app, options->material);
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
       .text = "take logs and nccl-tests tables that name another device, node or network than --cluster"},
      options->material.allow_other_device);
  add_flag(app,
           {.flag = "--refit",
            .metavar = "",
            .text = "fit the presets themselves, from cold: what kernel tables and stack classes hold"},
           options->refit);
  add_flag(app,
           {.flag = "--leave-out",
            .metavar = "",
            .text = "with --refit: the error on each source when it is left out of the fit"},
           options->leave_out);
  add_text(app,
           {.flag = "--write-presets",
            .metavar = "DIR",
            .text = "with --refit: a copy of the presets with the fitted values, each with the rows and "
                    "the command it comes from; the presets' own folder is written in place"},
           options->write_presets);
  add_flag(app, {.flag = "--example", .metavar = "", .text = "print a short training log, and exit"},
           options->example);
  return [options](Session& session) { return run(session, *options); };
}

}  // namespace

Verb calibrate_verb() {
  return {
      .name = "calibrate",
      .summary = "fit the cost models to your own runs",
      .description =
          "Fits the constants that the data can determine (device, software stack, network) to measured step "
          "times by "
          "least squares, each held to its preset as firmly as that is known, and reports which moved, how "
          "far "
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
      .define = define_calibrate};
}

}  // namespace sextant

// `sextant calibrate`: constants of the cost models from measured runs, logs and nccl-tests.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <ostream>
#include <utility>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "planner/calibration_file.hpp"
#include "planner/fitted_count.hpp"
#include "planner/leave_out.hpp"
#include "tools/calibrate_material.hpp"
#include "tools/command.hpp"
#include "tools/planning.hpp"
#include "tools/refit_memory.hpp"
#include "tools/table.hpp"

namespace sextant {

namespace {

using Json = nlohmann::ordered_json;

struct CalibrateOptions {
  MaterialOptions material;
  std::string output;
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

// What links and kernels measured by themselves say is where the fit to whole steps starts from.
Calibration fit(const Material& m, const std::filesystem::path& presets, const CalibrationRules& rules,
                FitOf fit_of) {
  std::vector<Knob> knobs = knobs_of(m.runs, presets, rules, fit_of);
  const std::vector<KnobFit> alone = m.measured_alone();
  const auto same = [](const Knob& a, const Knob& b) {
    return a.of == b.of && a.owner == b.owner && a.key == b.key;
  };
  for (const KnobFit& one : alone) {
    std::erase_if(knobs, [&](const Knob& k) { return same(k, one.knob); });
    Knob known = one.knob;
    known.prior = one.value, known.sigma = std::max(one.sigma, 0.03);
    knobs.push_back(known);
  }
  Calibration c = calibrate(m.runs, presets, rules, knobs, fit_of);
  if (m.runs.empty())
    for (const KnobFit& one : alone) c.constants.push_back(one);
  for (KnobFit& k : c.constants)  // reported against the presets
    for (const KnobFit& one : alone)
      if (same(k.knob, one.knob)) k.knob = one.knob;
  return c;
}

// Peaks as the runs count them; nothing where none was measured.
std::vector<std::optional<double>> predicted_peaks(const Material& m, const std::filesystem::path& presets) {
  std::vector<std::optional<double>> out(m.runs.size());
  for (std::size_t i = 0; i < m.runs.size(); ++i)
    if (m.runs[i].peak_memory_GiB) out[i] = predict_resolved(m.runs[i].run, {presets}).memory_GiB;
  return out;
}

std::string owner_text(const Knob& k) {
  if (k.of == KnobOf::device) return k.owner.empty() ? "all devices" : k.owner;
  return k.also.empty() ? k.owner : fmt::format("{} and {} more of its class", k.owner, k.also.size());
}

void print_constants(Session& session, const Material& m, const Calibration& c) {
  constexpr double kNoticed = 0.005;
  const std::vector<KnobFit> alone = m.measured_alone();
  Table table({{"constant", Align::left},
               {"of", Align::left},
               {"preset", Align::right},
               {"fitted", Align::right},
               {"moved %", Align::right},
               {"+- %", Align::right},
               {"known", Align::left, 1}});
  std::size_t silent = 0;
  for (const KnobFit& k : c.constants) {
    const double moved = k.value / k.knob.prior - 1;
    const bool by_itself = std::any_of(alone.begin(), alone.end(), [&](const KnobFit& a) {
      return a.knob.of == k.knob.of && a.knob.owner == k.knob.owner && a.knob.key == k.knob.key;
    });
    if (!by_itself && !k.identified() && std::abs(moved) < kNoticed) {
      ++silent;
      continue;
    }
    table.add_row({k.knob.key, owner_text(k.knob), fmt::format("{:.4g}", k.knob.prior),
                   fmt::format("{:.4g}", k.value), fmt::format("{:+.1f}", 100 * moved),
                   fmt::format("{:.1f}", 100 * k.sigma),
                   by_itself        ? "measured alone"
                   : k.identified() ? "from the data"
                                    : "mostly prior"});
  }
  auto& out = session.terminal.out;
  if (!table.empty()) out << '\n' << table.render(session.terminal, session.common.wide);
  if (silent > 0)
    out << fmt::format("{} more stay{} at the presets: the data say nothing about {}\n", silent,
                       silent == 1 ? "s" : "", silent == 1 ? "it" : "them");
}

void print_residuals(Session& session, const Material& m, const Calibration& c,
                     const std::vector<std::optional<double>>& peaks) {
  constexpr std::size_t kShown = 20;
  std::vector<Column> columns = {{"run", Align::left},
                                 {"measured s", Align::right},
                                 {"before %", Align::right},
                                 {"after %", Align::right}};
  const bool memory = std::any_of(peaks.begin(), peaks.end(), [](const auto& p) { return p.has_value(); });
  if (memory)
    for (const Column& more : {Column{"peak GiB", Align::right}, Column{"off %", Align::right},
                               Column{"counted as", Align::left, 1}})
      columns.push_back(more);
  Table table(columns);
  for (std::size_t i = 0; i < m.runs.size() && i < kShown; ++i) {
    const double measured = m.runs[i].step.v;
    std::vector<std::string> cells = {m.runs[i].id, fmt::format("{:.4g}", measured),
                                      fmt::format("{:+.1f}", 100 * (c.before[i] / measured - 1)),
                                      fmt::format("{:+.1f}", 100 * (c.after[i] / measured - 1))};
    if (memory && peaks[i]) {
      const double peak = *m.runs[i].peak_memory_GiB;
      cells.insert(cells.end(),
                   {fmt::format("{:.1f}", peak), fmt::format("{:+.1f}", 100 * (*peaks[i] / peak - 1)),
                    m.runs[i].run.memory_kind});
    } else if (memory) {
      cells.insert(cells.end(), {"", "", ""});
    }
    table.add_row(std::move(cells));
  }
  session.terminal.out << '\n' << table.render(session.terminal, session.common.wide);
  if (m.runs.size() > kShown)
    session.terminal.out << fmt::format("... and {} more; --json has all\n", m.runs.size() - kShown);
  if (memory) session.terminal.out << "peaks are compared, not fitted: memory has no constants of your own\n";
}

// What was measured by itself, before any whole step.
void print_measured_alone(Session& session, const Material& m) {
  auto& out = session.terminal.out;
  for (const NetworkFit& n : m.networks)
    out << fmt::format("{} sizes of nccl-tests: mean error {:.1f} % before, {:.1f} % after\n", n.samples,
                       n.mape_before, n.mape_after);
  for (const ProfileFit& p : m.profiles) {
    out << fmt::format("{} works of {}, profiled {}: mean error {:.1f} % before, {:.1f} % after\n", p.works,
                       p.machine, p.date.empty() ? "(no date)" : p.date, p.mape_before, p.mape_after);
    if (p.constants.empty()) out << "  the profile tells no constant better than its preset\n";
    for (const KnobFit& k : p.constants)
      out << fmt::format("  {} of {}: {:.4g} -> {:.4g} ({:+.1f} %), +- {:.1f} %\n", k.knob.key,
                         owner_text(k.knob), k.knob.prior, k.value, 100 * (k.value / k.knob.prior - 1),
                         100 * k.sigma);
  }
}

void print_in_vain(Session& session, const Material& m) {
  for (const TriedInVain& t : m.in_vain)
    session.terminal.out << fmt::format(
        "{} ran out of memory, {}: {:.1f} of {:.1f} GiB predicted, {:.0f} % to run out; its time is not "
        "fitted\n",
        t.key, t.foreseen() ? "as foreseen" : "which was not foreseen", t.peak_GiB, t.available_GiB,
        100 * t.chance);
}

void print_left_out(Session& session, const std::vector<LeftOut>& scores) {
  Table table({{"source left out", Align::left},
               {"rows", Align::right},
               {"error %", Align::right},
               {"median %", Align::right},
               {"after five rows %", Align::right},
               {"median %", Align::right}});
  double all = 0, few = 0;
  for (const LeftOut& s : scores) {
    table.add_row({s.source, fmt::format("{}", s.rows), fmt::format("{:.1f}", s.mape),
                   fmt::format("{:.1f}", s.median), fmt::format("{:.1f}", s.mape_few),
                   fmt::format("{:.1f}", s.median_few)});
    all += s.mape, few += s.mape_few;
  }
  const auto n = static_cast<double>(std::max<std::size_t>(1, scores.size()));
  table.add_row(
      {"mean over sources", "", fmt::format("{:.1f}", all / n), "", fmt::format("{:.1f}", few / n), ""});
  table.emphasize_last_row();
  session.terminal.out << '\n' << table.render(session.terminal, session.common.wide);
}

// What a fit of the presets says beside the constants of step time.
struct Refit {
  std::vector<RefittedMemory> memory;
  FittedCount count;
};

Refit refit_rest(const CalibrateOptions& options, const std::filesystem::path& presets,
                 const Calibration& c) {
  if (!options.refit) return {};
  std::vector<Knob> knobs;
  for (const KnobFit& k : c.constants) knobs.push_back(k.knob);
  return {refit_memory(options.material.runs, presets), fitted_count(presets, knobs)};
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

Json to_json(const Material& m, const Calibration& c, const std::vector<std::optional<double>>& peaks,
             const std::vector<LeftOut>& left_out) {
  Json runs = Json::array(), networks = Json::array(), sources = Json::array();
  Json profiles = Json::array(), in_vain = Json::array();
  for (std::size_t i = 0; i < m.runs.size(); ++i) {
    Json run = {{"run_id", m.runs[i].id},
                {"plan", plan_key(m.runs[i].run.plan)},
                {"measured_s", m.runs[i].step.v},
                {"before_s", c.before[i]},
                {"after_s", c.after[i]}};
    if (peaks[i]) {
      run["measured_peak_GiB"] = *m.runs[i].peak_memory_GiB;
      run["predicted_peak_GiB"] = *peaks[i];
      run["memory_kind"] = m.runs[i].run.memory_kind;
    }
    runs.push_back(std::move(run));
  }
  for (const ProfileFit& p : m.profiles) {
    Json constants = Json::array();
    for (const KnobFit& k : p.constants)
      constants.push_back({{"of", kKnobOfNames[static_cast<std::size_t>(k.knob.of)]},
                           {"owner", k.knob.owner},
                           {"key", k.knob.key},
                           {"preset", k.knob.prior},
                           {"value", k.value},
                           {"sigma", k.sigma}});
    profiles.push_back({{"file", p.file},
                        {"machine", p.machine},
                        {"date", p.date},
                        {"works", p.works},
                        {"error_before_percent", p.mape_before},
                        {"error_after_percent", p.mape_after},
                        {"constants", constants}});
  }
  for (const TriedInVain& t : m.in_vain)
    in_vain.push_back({{"key", t.key},
                       {"foreseen", t.foreseen()},
                       {"predicted_peak_GiB", t.peak_GiB},
                       {"available_memory_GiB", t.available_GiB},
                       {"chance_of_overflow", t.chance}});
  for (const NetworkFit& n : m.networks)
    networks.push_back({{"sizes", n.samples},
                        {"error_before_percent", n.mape_before},
                        {"error_after_percent", n.mape_after}});
  for (const LeftOut& s : left_out)
    sources.push_back({{"source", s.source},
                       {"rows", s.rows},
                       {"error_percent", s.mape},
                       {"error_after_five_rows_percent", s.mape_few}});
  Json out = {
      {"calibration", nlohmann::json(calibration_file_of(c))}, {"runs", runs}, {"networks", networks}};
  if (!profiles.empty()) out["profiles"] = profiles;
  if (!in_vain.empty()) out["out_of_memory"] = in_vain;
  if (!m.notes.empty()) out["notes"] = m.notes;
  if (!sources.empty()) out["left_out"] = sources;
  return out;
}

void check(const CalibrateOptions& options) {
  const MaterialOptions& m = options.material;
  if (m.none())
    throw UsageError(
        "nothing to calibrate from\n  for example: --runs my_runs.csv, --log train.log --model llama-2-13b "
        "--cluster 8x8xa100-80gb, or --nccl all_reduce.txt --cluster 8x8xa100-80gb");
  if (options.refit && !(m.logs.empty() && m.nccl.empty() && m.tried.empty() && m.profiles.empty()))
    throw UsageError("--refit reads --runs only");
  if (options.leave_out && !options.refit) throw UsageError("--leave-out needs --refit");
}

const std::string& first_file(const MaterialOptions& m) {
  return !m.runs.empty() ? m.runs.front() : !m.logs.empty() ? m.logs.front() : m.tried.front();
}

void save(const Session& session, const std::string& path, const Material& m, const Calibration& c) {
  CalibrationFile file = calibration_file_of(c);
  for (const auto& r : m.runs) file.runs.push_back(r.id);
  for (const auto& p : m.profiles) file.profiles.push_back(fmt::format("{}; {}", p.machine, p.date));
  file.sextant = version_text();
  file.created =
      fmt::format("{:%Y-%m-%dT%H:%M:%SZ}",
                  fmt::gmtime(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now())));
  file.command = session.arguments;
  save_calibration(path, file);
}

ExitCode run(Session& session, const CalibrateOptions& options) {
  if (options.example) {
    session.terminal.out << kExampleLog;
    return ExitCode::ok;
  }
  check(options);
  const std::vector<std::string> files = options.material.files();
  check_output("--output", options.output, files);
  const auto presets = session.presets();
  const CalibrationRules rules = load_calibration_rules(presets);
  Material m = read_material(options.material, presets, rules);
  for (const std::string& note : m.notes) session.terminal.err << fmt::format("note: {}\n", note);
  const std::vector<MeasuredRun> all = m.runs;
  if (options.refit) m.runs = balanced(all);
  if (m.runs.empty() && m.networks.empty() && m.profiles.empty()) {
    if (!session.common.json) print_in_vain(session, m);
    throw ConfigError(Problem{first_file(options.material), "step_time_s", "",
                              "at least one run with a measured time", ""});
  }
  const Calibration c = fit(m, presets, rules, options.refit ? FitOf::presets : FitOf::own_runs);
  const Refit refit = refit_rest(options, presets, c);
  std::vector<LeftOut> left_out;
  std::vector<SourceScore> memory_of_left_out;
  if (options.leave_out) {
    left_out = leave_one_source_out(all, presets, rules);
    memory_of_left_out = memory_left_out(options.material.runs, presets);
  }

  if (!options.output.empty()) save(session, options.output, m, c);
  const auto peaks =
      options.refit ? std::vector<std::optional<double>>(m.runs.size()) : predicted_peaks(m, presets);
  if (session.common.json) {
    Json out = to_json(m, c, peaks, left_out);
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
    out << fmt::format("{} run{}: mean error {:.1f} % before, {:.1f} % after", m.runs.size(),
                       m.runs.size() == 1 ? "" : "s", c.mape_before, c.mape_after);
    if (m.runs.size() > 1) out << fmt::format("; {:.1f} % for a run that was left out", c.mape_left_out);
    out << '\n';
  }
  print_in_vain(session, m);
  print_measured_alone(session, m);
  print_constants(session, m, c);
  if (options.refit) print_refit(session, refit);
  if (!m.runs.empty()) print_residuals(session, m, c, peaks);
  if (!left_out.empty()) print_left_out(session, left_out);
  print_memory_left_out(session, memory_of_left_out);
  if (options.output.empty())
    out << "\nnext: -o calibration.json keeps it for plan, simulate and validate --calibration\n";
  else
    out << fmt::format("\nwritten: {}\nnext: sextant plan --calibration {} ...\n", options.output,
                       options.output);
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
          "torchtitan "
          "and nanotron, output of nccl-tests, and profiles of the same device. Five runs of different "
          "layouts are enough to help.",
      .examples =
          {{"a log to start from", "sextant calibrate --example > train.log"},
           {"from a log",
            "sextant calibrate --log train.log --model llama-2-13b --cluster 8x8xa100-80gb -o "
            "calibration.json"},
           {"the next plan with it",
            "sextant plan --model llama-2-13b --cluster 8x8xa100-80gb --calibration calibration.json"}},
      .define = [](CLI::App& app) -> Run {
        auto options = std::make_shared<CalibrateOptions>();
        add_list(app, {.flag = "--runs", .metavar = "FILE", .text = "CSV file of measured runs; repeatable"},
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
        add_flag(app, {.flag = "--example", .metavar = "", .text = "print a short training log, and exit"},
                 options->example);
        return [options](Session& session) { return run(session, *options); };
      }};
}

}  // namespace sextant

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
#include <nlohmann/json.hpp>

#include "core/cluster_files.hpp"
#include "core/file_io.hpp"
#include "planner/calibrate_memory.hpp"
#include "planner/calibrate_network.hpp"
#include "planner/calibration_file.hpp"
#include "planner/leave_out.hpp"
#include "planner/shortlist.hpp"
#include "tools/command.hpp"
#include "tools/planning.hpp"
#include "tools/table.hpp"

namespace sextant {

namespace {

using Json = nlohmann::ordered_json;

struct CalibrateOptions {
  QuestionOptions question;
  std::vector<std::string> runs, logs, nccl, tried;
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

// FILE or FILE=PLAN.
MeasuredRun run_of_log(const std::string& text, const CalibrateOptions& options,
                       const std::filesystem::path& presets) {
  const std::size_t equals = text.rfind('=');
  const bool own_plan = equals != std::string::npos && !std::filesystem::exists(text);
  const std::string file = own_plan ? text.substr(0, equals) : text;
  QuestionOptions asked = options.question;
  if (own_plan) asked.plan = text.substr(equals + 1);
  const RunLog log = read_run_log(file);
  if (asked.stack.empty())
    asked.stack = log.format == LogFormat::megatron_lm  ? "megatron-core"
                  : log.format == LogFormat::torchtitan ? "torchtitan"
                                                        : "nanotron";
  const bool plan_known = !asked.plan.empty();
  Question q = read_question(asked, presets);
  ParallelPlan plan = q.plan.value_or(ParallelPlan{});
  if (!plan_known) {
    const auto says = [&](const char* column) { return log.says.contains(column); };
    if (!says("tp") && !says("dp"))
      throw UsageError(fmt::format(
          "{} does not say which layout it ran\n  for example: --log {}=tp2.pp2.dp16.z1.mbs1", file, file));
    plan.overlap_grad_reduce = q.stack.can.overlap_grad_reduce;
    plan.overlap_param_gather = q.stack.can.overlap_param_gather;
  }
  const bool batch_known = asked.seq_len > 0 || asked.global_batch > 0;
  apply_log(log, q.model, q.training, plan, plan_known, batch_known);
  if (!plan_known && !log.says.contains("dp"))
    plan.dp = std::max(1, q.cluster.gpus() / (plan.tp * plan.pp * plan.cp));
  if (auto problems = validate(plan, q.model, q.training); !problems.empty()) {
    for (Problem& p : problems) p.file = file;
    throw ConfigError(std::move(problems));
  }
  if (plan.world() > q.cluster.gpus())
    throw ConfigError(Problem{file, "layout", plan_key(plan),
                              fmt::format("at most the {} GPUs of --cluster", q.cluster.gpus()), ""});
  MeasuredRun m;
  m.id = file, m.source = "log";
  m.step = steady_step(log, q.training, plan);
  m.run = {q.model, q.training, plan, q.cluster, q.stack, false, 1.0, ""};
  return m;
}

struct Material {
  std::vector<MeasuredRun> runs;
  std::vector<NetworkFit> networks;
  std::vector<std::string> files;
};

Material read_material(const CalibrateOptions& options, const std::filesystem::path& presets,
                       const CalibrationRules& rules) {
  Material m;
  const FrameworkMap map = load_framework_map(presets);
  for (const auto& file : options.runs) {
    std::vector<RunRow> rows = read_runs(file);
    std::erase_if(rows, [](const RunRow& r) { return r.quality == 'c'; });
    auto more = measured_runs(rows, map, presets);
    std::move(more.begin(), more.end(), std::back_inserter(m.runs));
    m.files.push_back(file);
  }
  for (const auto& log : options.logs) {
    m.runs.push_back(run_of_log(log, options, presets));
    m.files.push_back(log);
  }
  for (const auto& file : options.tried) {
    for (const Tried& t : load_shortlist(file).plans)
      if (t.measured_step_s)
        m.runs.push_back(
            {plan_key(t.plan.plan),
             file,
             {t.plan.model, t.plan.training, t.plan.plan, t.plan.cluster, t.plan.stack, false, 1.0, ""},
             Seconds(*t.measured_step_s)});
    m.files.push_back(file);
  }
  for (const auto& file : options.nccl) {
    if (options.question.cluster.empty())
      throw UsageError("--nccl needs --cluster\n  for example: --cluster 8x8xa100-80gb");
    const ClusterSpec cluster = load_cluster(options.question.cluster, presets);
    const auto constants = load_cost_preset(cluster.device.generation, presets / "cost").constants;
    m.networks.push_back(
        calibrate_network(parse_nccl_table(read_text_file(file), file), cluster, constants, rules));
    m.files.push_back(file);
  }
  return m;
}

// What links measured by themselves say is where the fit to whole steps starts from.
Calibration fit(const Material& m, const std::filesystem::path& presets, const CalibrationRules& rules,
                FitOf fit_of) {
  std::vector<Knob> knobs = knobs_of(m.runs, presets, rules, fit_of);
  std::vector<KnobFit> links;
  for (const NetworkFit& network : m.networks)
    links.insert(links.end(), network.constants.begin(), network.constants.end());
  const auto same = [](const Knob& a, const Knob& b) {
    return a.of == b.of && a.owner == b.owner && a.key == b.key;
  };
  for (const KnobFit& link : links) {
    std::erase_if(knobs, [&](const Knob& k) { return same(k, link.knob); });
    Knob known = link.knob;
    known.prior = link.value, known.sigma = std::max(link.sigma, 0.03);
    knobs.push_back(known);
  }
  Calibration c = calibrate(m.runs, presets, rules, knobs);
  if (m.runs.empty())
    for (const KnobFit& link : links) c.constants.push_back(link);
  for (KnobFit& k : c.constants)  // reported against the presets
    for (const KnobFit& link : links)
      if (same(k.knob, link.knob)) k.knob = link.knob;
  return c;
}

std::string owner_text(const Knob& k) {
  if (k.of == KnobOf::device) return k.owner.empty() ? "all devices" : k.owner;
  return k.also.empty() ? k.owner : fmt::format("{} and {} more of its class", k.owner, k.also.size());
}

void print_constants(Session& session, const Calibration& c) {
  constexpr double kNoticed = 0.005;
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
    if (!k.identified() && std::abs(moved) < kNoticed) {
      ++silent;
      continue;
    }
    table.add_row({k.knob.key, owner_text(k.knob), fmt::format("{:.4g}", k.knob.prior),
                   fmt::format("{:.4g}", k.value), fmt::format("{:+.1f}", 100 * moved),
                   fmt::format("{:.1f}", 100 * k.sigma), k.identified() ? "from the data" : "mostly prior"});
  }
  auto& out = session.terminal.out;
  if (!table.empty()) out << '\n' << table.render(session.terminal, session.common.wide);
  if (silent > 0)
    out << fmt::format("{} more stay{} at the presets: the data say nothing about {}\n", silent,
                       silent == 1 ? "s" : "", silent == 1 ? "it" : "them");
}

void print_residuals(Session& session, const Material& m, const Calibration& c) {
  constexpr std::size_t kShown = 20;
  Table table({{"run", Align::left},
               {"measured s", Align::right},
               {"before %", Align::right},
               {"after %", Align::right}});
  for (std::size_t i = 0; i < m.runs.size() && i < kShown; ++i) {
    const double measured = m.runs[i].step.v;
    table.add_row({m.runs[i].id, fmt::format("{:.4g}", measured),
                   fmt::format("{:+.1f}", 100 * (c.before[i] / measured - 1)),
                   fmt::format("{:+.1f}", 100 * (c.after[i] / measured - 1))});
  }
  session.terminal.out << '\n' << table.render(session.terminal, session.common.wide);
  if (m.runs.size() > kShown)
    session.terminal.out << fmt::format("... and {} more; --json has all\n", m.runs.size() - kShown);
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

Json to_json(const Material& m, const Calibration& c, const std::vector<LeftOut>& left_out) {
  Json runs = Json::array(), networks = Json::array(), sources = Json::array();
  for (std::size_t i = 0; i < m.runs.size(); ++i)
    runs.push_back({{"run_id", m.runs[i].id},
                    {"measured_s", m.runs[i].step.v},
                    {"before_s", c.before[i]},
                    {"after_s", c.after[i]}});
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
  if (!sources.empty()) out["left_out"] = sources;
  return out;
}

void check(const CalibrateOptions& options) {
  if (options.runs.empty() && options.logs.empty() && options.nccl.empty() && options.tried.empty())
    throw UsageError(
        "nothing to calibrate from\n  for example: --runs my_runs.csv, --log train.log --model llama-2-13b "
        "--cluster 8x8xa100-80gb, or --nccl all_reduce.txt --cluster 8x8xa100-80gb");
  if (options.refit && !(options.logs.empty() && options.nccl.empty() && options.tried.empty()))
    throw UsageError("--refit reads --runs only");
  if (options.leave_out && !options.refit) throw UsageError("--leave-out needs --refit");
}

ExitCode run(Session& session, const CalibrateOptions& options) {
  if (options.example) {
    session.terminal.out << kExampleLog;
    return ExitCode::ok;
  }
  check(options);
  std::vector<std::string> read = files_read(options.question);
  for (const auto* files : {&options.runs, &options.logs, &options.nccl, &options.tried})
    read.insert(read.end(), files->begin(), files->end());
  check_output("--output", options.output, read);
  const auto presets = session.presets();
  const CalibrationRules rules = load_calibration_rules(presets);
  Material m = read_material(options, presets, rules);
  const std::vector<MeasuredRun> all = m.runs;
  if (options.refit) m.runs = balanced(all);
  if (m.runs.empty() && m.networks.empty())
    throw ConfigError(
        Problem{m.files.front(), "step_time_s", "", "at least one run with a measured time", ""});
  const Calibration c = fit(m, presets, rules, options.refit ? FitOf::presets : FitOf::own_runs);
  std::vector<LeftOut> left_out;
  if (options.leave_out) left_out = leave_one_source_out(all, presets, rules);

  if (!options.output.empty()) {
    CalibrationFile file = calibration_file_of(c);
    for (const auto& r : m.runs) file.runs.push_back(r.id);
    file.sextant = version_text();
    file.created =
        fmt::format("{:%Y-%m-%dT%H:%M:%SZ}",
                    fmt::gmtime(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now())));
    file.command = session.arguments;
    save_calibration(options.output, file);
  }
  if (session.common.json) {
    print_json(session, "calibrate", to_json(m, c, left_out));
    return ExitCode::ok;
  }
  auto& out = session.terminal.out;
  if (!m.runs.empty()) {
    out << fmt::format("{} run{}: mean error {:.1f} % before, {:.1f} % after", m.runs.size(),
                       m.runs.size() == 1 ? "" : "s", c.mape_before, c.mape_after);
    if (m.runs.size() > 1) out << fmt::format("; {:.1f} % for a run that was left out", c.mape_left_out);
    out << '\n';
  }
  for (const NetworkFit& n : m.networks)
    out << fmt::format("{} sizes of nccl-tests: mean error {:.1f} % before, {:.1f} % after\n", n.samples,
                       n.mape_before, n.mape_after);
  print_constants(session, c);
  if (options.refit) {
    std::size_t memory = 0;
    for (const MemoryPlan& plan : load_memory_plans(presets)) memory += plan.constants.size();
    out << fmt::format(
        "{} constants of the presets are fitted: {} of step time, here, and {} of memory "
        "(calibration_test)\n",
        c.constants.size() + memory, c.constants.size(), memory);
  }
  if (!m.runs.empty()) print_residuals(session, m, c);
  if (!left_out.empty()) print_left_out(session, left_out);
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
          "and nanotron, and output of nccl-tests. Five runs of different layouts are enough to help.",
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
                 options->runs);
        add_list(app,
                 {.flag = "--log",
                  .metavar = "FILE[=PLAN]",
                  .text = "training log, with the layout's key where the log does not state it; repeatable"},
                 options->logs);
        add_list(app,
                 {.flag = "--nccl", .metavar = "FILE", .text = "output of an nccl-tests program; repeatable"},
                 options->nccl);
        add_list(
            app,
            {.flag = "--tried",
             .metavar = "FILE",
             .text = "shortlist of 'sextant plan --shortlist' with measured steps filled in; repeatable"},
            options->tried);
        add_question_options(app, options->question, {.plan = true, .limits = false});
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

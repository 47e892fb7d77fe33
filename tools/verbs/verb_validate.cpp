// `sextant validate RUNS.csv...`: predictions of measured runs, with the error per source.
#include <algorithm>
#include <map>
#include <memory>
#include <ostream>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/csv.hpp"
#include "core/base/error.hpp"
#include "core/base/file_io.hpp"
#include "planner/calibration/calibration_uncertainty.hpp"
#include "planner/calibration/held_out.hpp"
#include "planner/validation/plausible.hpp"
#include "planner/validation/validate.hpp"
#include "tools/inputs/inputs.hpp"
#include "tools/inputs/planning.hpp"
#include "tools/inputs/run_tables.hpp"
#include "tools/inputs/unknown_names.hpp"
#include "tools/output/validation_text.hpp"
#include "tools/verbs/validate_collectives.hpp"
#include "tools/verbs/validate_decision.hpp"
#include "tools/verbs/verbs.hpp"

namespace sextant {

namespace {

using Json = nlohmann::ordered_json;

struct ValidateOptions {
  std::vector<std::string> files;
  std::string predictions, calibration, collectives;
  std::string write_evidence;
  bool quality_c = false, example = false, held_out = false, fit_decision = false, against_experts = false;
  double max_error = 0;  // percent; 0 = any
};

std::string cell(const std::optional<double>& value) { return value ? fmt::format("{:.9g}", *value) : ""; }

std::string predictions_csv(const std::vector<RunPrediction>& predictions) {
  std::string text =
      "run_id,step_time_s,step_time_s_lower,step_time_s_upper,peak_memory_GiB,peak_memory_GiB_lower,"
      "peak_memory_GiB_upper,fits,note\n";
  for (const auto& p : predictions)
    text +=
        fmt::format("{},{},{},{},{},{},{},{},{}\n", csv_field(p.run_id), cell(p.step_s), cell(p.step_lower_s),
                    cell(p.step_upper_s), cell(p.memory_GiB), cell(p.memory_lower_GiB),
                    cell(p.memory_upper_GiB), p.fits ? (*p.fits ? "1" : "0") : "", csv_field(p.note));
  return text;
}

Json to_json(const std::vector<SourceScore>& scores, const std::vector<RunPrediction>& predictions,
             const RunTables& tables) {
  const auto number = [](const std::optional<double>& x) { return x ? Json(*x) : Json(nullptr); };
  Json sources = Json::array(), runs = Json::array();
  for (const auto& s : scores)
    sources.push_back({{"source", s.source},
                       {"rows", s.rows},
                       {"unpredicted", s.unpredicted},
                       {"mean_absolute_error_percent", s.mape},
                       {"median_absolute_error_percent", s.median},
                       {"bias_percent", s.bias},
                       {"p90_absolute_error_percent", s.p90},
                       {"inside_interval", s.covered},
                       {"groups", s.groups},
                       {"kendall_tau", s.kendall_tau},
                       {"regret_of_best_percent", {s.regret_1, s.regret_2, s.regret_3}},
                       {"oom_true", s.oom_true},
                       {"oom_false", s.oom_false},
                       {"oom_missed", s.oom_missed},
                       {"oom_unknown", s.oom_unknown},
                       {"memory_rows", s.memory_rows},
                       {"memory_inside_interval", s.memory_covered},
                       {"memory_mean_absolute_error_percent", s.memory_mape}});
  for (const auto& p : predictions)
    runs.push_back({{"run_id", p.run_id},
                    {"step_time_s", number(p.step_s)},
                    {"step_time_s_lower", number(p.step_lower_s)},
                    {"step_time_s_upper", number(p.step_upper_s)},
                    {"peak_memory_GiB", number(p.memory_GiB)},
                    {"peak_memory_GiB_lower", number(p.memory_lower_GiB)},
                    {"peak_memory_GiB_upper", number(p.memory_upper_GiB)},
                    {"fits", p.fits ? Json(*p.fits) : Json(nullptr)},
                    {"chance_of_overflow", number(p.chance_of_overflow)},
                    {"uncertainty", p.uncertainty ? Json(name(*p.uncertainty)) : Json(nullptr)},
                    {"stack", p.stack},
                    {"note", p.note}});
  Json out = {{"sources", sources}, {"runs", runs}};
  if (!tables.left_out.empty()) out["left_out"] = tables.left_out;
  for (const Problem& bad : tables.bad) out["bad"].push_back(to_string(bad));
  return out;
}

// A name that an earlier row has: the later row is not predicted and says why, like any other row that is wrong. A table
// of nothing else was given twice, which ends the command.
void refuse_repeated(std::vector<RunRow>& rows) {
  std::map<std::string, const RunRow*> first;
  std::map<std::string, std::pair<std::size_t, std::vector<Problem>>> files;  // rows, and what repeats
  std::vector<Problem> twice;
  for (RunRow& row : rows) {
    auto& [count, repeated] = files[row.file];
    ++count;
    if (row.run_id.empty()) continue;
    const auto [at, is_new] = first.emplace(row.run_id, &row);
    if (is_new) continue;
    const RunRow& other = *at->second;
    repeated.push_back(
        {.file = fmt::format("{}:{}", row.file, row.line),
         .key = "run_id",
         .value = row.run_id,
         .expected = "a name that no other row has",
         .hint = fmt::format("{}:{} has it{}; rename this row, or remove it", other.file, other.line,
                             other.unreadable.empty() ? " and is predicted" : "")});
    if (row.file == other.file && row.line == other.line) twice.push_back(repeated.back());
    if (row.unreadable.empty()) row.unreadable = to_string(repeated.back());
  }
  if (!twice.empty()) throw ConfigError(std::move(twice));
  for (auto& [file, of] : files)
    if (of.first == of.second.size()) throw ConfigError(std::move(of.second));
}

// Runs of one source that are all far off in one direction are told: the table below would not say why.
void tell_units(const Session& session, const std::vector<RunRow>& rows,
                const std::vector<RunPrediction>& predictions) {
  std::map<std::string, std::vector<TimedRun>> sources;
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (rows[i].step_time && predictions[i].step_s)
      sources[rows[i].source].push_back({fmt::format("{}:{}", rows[i].file, rows[i].line), rows[i].run_id,
                                         rows[i].step_time->v, *predictions[i].step_s});
  for (const auto& [source, timed] : sources)
    if (const auto problem = in_another_unit(timed))
      session.terminal.err << wrapped_message(session.terminal, "warning: " + to_string(*problem) + '\n');
}

// Intervals from what the calibration still leaves open; a run that it says little about is told so.
void use_covariance(const std::vector<RunRow>& rows, std::vector<RunPrediction>& predictions,
                    const CalibrationFile& file, const FrameworkMap& map,
                    const std::filesystem::path& presets) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    RunPrediction& p = predictions[i];
    if (!p.step_s || !p.uncertainty) continue;
    const ResolvedRun run = resolve(rows[i], map, presets);
    const CalibratedUncertainty d = calibrated_uncertainty(run, file, presets, p.step_half_width);
    p.step_lower_s = *p.step_s / (1 + d.half_width);
    p.step_upper_s = *p.step_s * (1 + d.half_width);
    if (d.far()) p.note += std::string(p.note.empty() ? "" : "; ") + "far from the runs of the calibration";
  }
}

std::vector<RunPrediction> predict_with_progress(Session& session, const RunTables& tables,
                                                 const FrameworkMap& map, const PredictOptions& options) {
  Progress progress(session.terminal, "predicting", static_cast<double>(tables.rows.size()), "runs");
  return predict_runs(tables.rows, map, options,
                      {tables.alike, [&](std::size_t done) { progress.update(static_cast<double>(done)); }});
}

// The files that stand for what was given, as far as it can be told.
std::vector<std::string> readable(const std::vector<std::string>& given) {
  std::vector<std::string> files;
  for (const std::string& name : given) {
    try {
      for (std::string& file : run_files({name})) files.push_back(std::move(file));
    } catch (const ConfigError&) {  // said when it is read
    }
  }
  return files;
}

Json to_json(const HeldOut& h, const RunTables& tables) {
  Json out = to_json(h.sources, h.predictions, tables);
  const auto choice_json = [](const RankingScore& c) -> Json {
    return {{"groups", c.groups},
            {"regret_percent", c.regret},
            {"kendall_tau", c.tau},
            {"worst_group", c.worst},
            {"worst_regret_percent", c.worst_regret}};
  };
  out["choice"] = choice_json(ranking_of(h.sources));
  const auto agreed = without(tables.rows, inconsistent_times(tables.rows));
  out["choice_without_inconsistent_runs"] = choice_json(ranking_of(score_runs(agreed, h.predictions)));
  Json extrapolations = Json::array();
  for (const Extrapolation& e : h.extrapolations)
    extrapolations.push_back({{"held_out", e.held_out},
                              {"fitted", e.fitted},
                              {"rows", e.rows},
                              {"sources", e.sources},
                              {"mean_absolute_error_percent", e.mape},
                              {"bias_percent", e.bias},
                              {"inside_interval_share", e.coverage}});
  out["extrapolations"] = std::move(extrapolations);
  return out;
}

// Fits to parts of the rows, scored on the rest.
ExitCode validate_held_out(Session& session, const ValidateOptions& options, const RunTables& tables,
                           const FrameworkMap& map) {
  if (!tables.bad.empty()) throw ConfigError(tables.bad);
  const auto presets = session.presets();
  const HeldOut h = held_out(tables.rows, map, presets, load_calibration_rules(presets),
                             {.with_quality_c = options.quality_c});
  if (!options.predictions.empty()) write_file_atomic(options.predictions, predictions_csv(h.predictions));
  if (session.common.json)
    print_json(session, "validate", to_json(h, tables));
  else
    print_held_out(session, h, tables.rows);
  for (const SourceScore& s : h.sources)
    if (options.max_error > 0 && s.mape > options.max_error) return ExitCode::outside_tolerance;
  return ExitCode::ok;
}

// Predicted runs beside what was measured, and their scores.
struct Validated {
  const RunTables& tables;
  std::vector<RunPrediction> predictions;
  std::vector<SourceScore> scores;
  DecisionGroups groups;
  const std::vector<RunRow>& rows() const { return tables.rows; }
};

// Of the sources of which something is predicted the one that is off most; null: none is.
const SourceScore* worst_source(const std::vector<SourceScore>& scores) {
  const SourceScore* worst = nullptr;
  for (const auto& s : scores)
    if (s.rows > s.unpredicted && (!worst || s.mape > worst->mape)) worst = &s;
  return worst;
}

Json validated_json(Session& session, const Validated& v) {
  Json j = to_json(v.scores, v.predictions, v.tables);
  for (std::size_t i = 0; i < v.rows().size(); ++i) {
    const RunRow& row = v.rows()[i];
    j["runs"][i]["source"] = row.source;
    j["runs"][i]["measured_step_time_s"] = row.step_time ? Json(row.step_time->v) : Json(nullptr);
  }
  j["recommendation"] = decision_json(session, v.groups, v.rows());
  return j;
}

// `written`: the file of --predictions; empty: none.
void print_validated(Session& session, const Validated& v, const std::string& written) {
  auto& out = session.terminal.out;
  const std::size_t rows = v.rows().size();
  const auto predicted =
      std::ranges::count_if(v.predictions, [](const auto& p) { return p.step_s.has_value(); });
  out << fmt::format("{} run{}, {} of them predicted\n", rows, rows == 1 ? "" : "s", predicted);
  print_scores(session, v.scores);
  print_decision(session, v.groups, v.rows());
  std::vector<std::string> notes;
  for (const RunPrediction& p : v.predictions) notes.push_back(p.note);
  for (const std::string& unknown : unknown_names(notes)) print_wrapped(out, session.terminal, unknown);
  print_unmeasured(session, v.rows(), v.predictions);
  if (written.empty())
    out << "\nnext: --predictions OUT.csv writes the prediction of every run\n";
  else
    out << fmt::format("\nwritten: {}\n", written);
}

// Predicts the rows one by one, and scores them.
ExitCode validate_rows(Session& session, const ValidateOptions& options, const RunTables& tables,
                       const FrameworkMap& map, const std::optional<CalibrationFile>& calibration) {
  const auto presets = session.presets();
  const std::vector<RunRow>& rows = tables.rows;
  const CalibratedPresets calibrated(presets, calibration ? calibration->settings() : std::vector<Setting>(),
                                     calibration ? calibration->learned() : Residual());
  Validated v{tables, predict_with_progress(session, tables, map, calibrated.options()), {}, {}};
  tell_unpredicted(session, rows, v.predictions);
  tell_units(session, rows, v.predictions);
  if (calibration) use_covariance(rows, v.predictions, *calibration, map, presets);
  if (!options.predictions.empty()) write_file_atomic(options.predictions, predictions_csv(v.predictions));
  v.scores = score_runs(rows, v.predictions, {.with_quality_c = options.quality_c});
  v.groups = decision_groups_of(rows, v.predictions, options.quality_c);
  if (options.fit_decision) return fit_decision(session, v.groups, rows);
  if (session.common.json)
    print_json(session, "validate", validated_json(session, v));
  else
    print_validated(session, v, options.predictions);
  const SourceScore* worst = worst_source(v.scores);
  const bool outside = options.max_error > 0 && worst && worst->mape > options.max_error;
  if (outside)
    session.terminal.err << fmt::format("{}: mean error {:.1f} %, tolerated {:g} %\n", worst->source,
                                        worst->mape, options.max_error);
  session.terminal.out.flush();
  if (!tables.bad.empty()) throw ConfigError(tables.bad);
  return outside ? ExitCode::outside_tolerance : ExitCode::ok;
}

ExitCode run(Session& session, const ValidateOptions& options) {
  if (options.example) {
    session.terminal.out << example_runs();
    return ExitCode::ok;
  }
  if (!options.collectives.empty()) {
    if (!options.files.empty())
      throw UsageError("--collectives takes its own table: give runs in a second command");
    return validate_collectives(session, options.collectives, options.calibration, options.max_error);
  }
  if (options.files.empty())
    throw UsageError("RUNS.csv is missing\n  for a first file: sextant validate --example > runs.csv");
  if (options.held_out && !options.calibration.empty())
    throw UsageError("--held-out fits its own constants: it takes no --calibration");
  check_output("--predictions", options.predictions, readable(options.files));
  RunTables tables = read_run_tables(options.files);
  for (const std::string& file : tables.left_out)
    session.terminal.err << wrapped_message(session.terminal, "left out: " + file + '\n');
  refuse_repeated(tables.rows);
  std::optional<CalibrationFile> calibration;
  if (!options.calibration.empty()) calibration = load_calibration(options.calibration);
  const FrameworkMap map = load_framework_map(session.presets());
  if (!options.write_evidence.empty()) write_evidence(session, tables.rows, map, options.write_evidence);
  if (options.against_experts) return compare_with_experts(session, tables.rows, map);
  if (options.held_out) return validate_held_out(session, options, tables, map);
  return validate_rows(session, options, tables, map, calibration);
}

Run define_validate(CLI::App& app) {
  auto options = std::make_shared<ValidateOptions>();
  app.add_option("runs", options->files, "CSV files of runs, or folders of them")->type_name("FILE");
  add_text(app,
           {.flag = "--predictions",
            .metavar = "FILE",
            .text = "write every run's prediction with its interval as CSV"},
           options->predictions);
  add_text(app,
           {.flag = "--calibration",
            .metavar = "FILE",
            .text = "constants of your machines, written by 'sextant calibrate -o FILE'"},
           options->calibration);
  add_text(app,
           {.flag = "--collectives",
            .metavar = "FILE",
            .text = "score predicted collectives on a table of nccl-tests results instead of runs"},
           options->collectives);
  add_number(app,
             {.flag = "--max-error",
              .metavar = "PERCENT",
              .text = "largest mean error of a source that is accepted; 0 = any",
              .unit = "percent",
              .min = 0,
              .max = 1000},
             options->max_error);
  add_flag(app,
           {.flag = "--fit-decision",
            .metavar = "",
            .text = "fit the constants of the recommendation to these runs, leave-one-source-out"},
           options->fit_decision);
  add_flag(app,
           {.flag = "--against-experts",
            .metavar = "",
            .text = "plan every published tuned layout's question and compare the recommendation"},
           options->against_experts);
  add_text(app,
           {.flag = "--write-evidence",
            .metavar = "FILE",
            .text = "write the counts of these runs that answers name as evidence"},
           options->write_evidence);
  add_flag(app, {.flag = "--quality-c", .metavar = "", .text = "score rows of quality c too"},
           options->quality_c);
  add_flag(app,
           {.flag = "--held-out",
            .metavar = "",
            .text = "score fits that did not see the runs: each source by a fit to the others, larger "
                    "clusters, devices and features by fits without them (about a minute)"},
           options->held_out);
  add_flag(app,
           {.flag = "--example", .metavar = "", .text = "print a CSV file with one unmeasured run, and exit"},
           options->example);
  return [options](Session& session) { return run(session, *options); };
}

}  // namespace

Verb validate_verb() {
  return {
      .name = "validate",
      .summary = "compare predictions with measured runs",
      .description =
          "Predicts every run of one or more CSV files (of a folder: its tables of runs, *.csv, and those of "
          "its subfolder runs) and reports the error "
          "per source: 'error' is the "
          "mean of "
          "|predicted / measured - 1|, 'rank tau' how well layouts of one group are ordered, 'regret' "
          "what the "
          "layout predicted best really loses. Rows without measured columns are predicted all the same; a "
          "row that cannot be read or simulated has its reason in the note. A file that cannot be read, or "
          "no row of it, is "
          "named in the end, with exit code 3; the others are scored all the same.",
      .examples = {{"a file to start from", "sextant validate --example > runs.csv"},
                   {"its prediction", "sextant validate runs.csv --predictions out.csv"},
                   {"in CI: exit code 6 when a source is off by more",
                    "sextant validate runs.csv --max-error 25"}},
      .define = define_validate};
}

}  // namespace sextant

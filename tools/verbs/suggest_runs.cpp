#include "tools/verbs/suggest_runs.hpp"

#include <ostream>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/plan/plan_key.hpp"
#include "planner/calibration/suggest.hpp"
#include "planner/validation/validate.hpp"
#include "tools/inputs/planning.hpp"
#include "tools/inputs/run_tables.hpp"
#include "tools/inputs/verb.hpp"
#include "tools/terminal/table.hpp"

namespace sextant {

namespace {

struct Candidates {
  std::vector<MeasuredRun> runs;   // `step` of a candidate is what is predicted
  std::vector<std::size_t> known;  // those that were measured
  int too_large = 0, unlawful = 0;
};

Candidates candidates_of(const std::vector<std::string>& tables, const std::filesystem::path& presets) {
  const FrameworkMap map = load_framework_map(presets);
  Candidates out;
  for (const std::string& file : tables)
    for (const RunRow& row : runs_of(read_run_table(file, BadRows::refuse))) {
      ResolvedRun run = resolve(row, map, presets);
      const RunPrediction p = predict_resolved(run, {presets});
      if (!p.step_s) {
        ++out.unlawful;
      } else if (row.out_of_memory || (!row.step_time && !p.fits.value_or(true))) {
        ++out.too_large;
      } else {
        if (row.step_time) out.known.push_back(out.runs.size());
        out.runs.push_back({row.run_id, row.source, std::move(run),
                            row.step_time.value_or(Seconds(*p.step_s)), std::nullopt,
                            fmt::format("{}:{}", row.file, row.line)});
      }
    }
  if (out.runs.size() == out.known.size())
    throw ConfigError(Problem{tables.front(), "step_time_s", "",
                              "at least one row without a measured time, of a layout that is lawful and fits",
                              "--suggest chooses among them"});
  return out;
}

}  // namespace

void suggest_from_tables(Session& session, const std::vector<std::string>& tables, int count,
                         const std::filesystem::path& presets, const CalibrationRules& rules) {
  const Candidates c = candidates_of(tables, presets);
  const std::vector<FreeConstant> calibrated = constants_of(c.runs, presets, rules);
  const Suggestions found =
      suggest_runs(c.runs, c.known, static_cast<std::size_t>(count), presets, rules, calibrated);
  if (session.common.json) {
    auto list = nlohmann::ordered_json::array();
    for (const Suggestion& s : found.runs) {
      const MeasuredRun& r = c.runs[s.run];
      list.push_back({{"run_id", r.id},
                      {"at", r.at},
                      {"model", r.run.model.name},
                      {"plan", plan_key(r.run.plan)},
                      {"predicted_step_s", r.step.v},
                      {"uncertainty_left_percent", 100 * s.uncertainty}});
    }
    print_json(session, "calibrate",
               {{"candidates", c.runs.size() - c.known.size()},
                {"measured", c.known.size()},
                {"too_large", c.too_large},
                {"unlawful", c.unlawful},
                {"uncertainty_percent", 100 * found.uncertainty},
                {"suggested", list}});
    return;
  }
  auto& out = session.terminal.out;
  print_wrapped(
      out, session.terminal,
      fmt::format("{} candidate{}, {} measured already; {} that would not fit the memory and {} "
                  "unlawful left out. Before: {:.1f} % of uncertainty about constants and layouts, in the "
                  "mean over all rows",
                  c.runs.size() - c.known.size(), c.runs.size() - c.known.size() == 1 ? "" : "s",
                  c.known.size(), c.too_large, c.unlawful, 100 * found.uncertainty));
  Table table({{"measure first", Align::left},
               {"layout", Align::left},
               {"model", Align::left},
               {"GPUs", Align::right},
               {"predicted s", Align::right},
               {"uncertainty left %", Align::right}});
  for (const Suggestion& s : found.runs) {
    const MeasuredRun& r = c.runs[s.run];
    table.add_row({r.id, plan_key(r.run.plan), r.run.model.name, fmt::format("{}", r.run.plan.world()),
                   fmt::format("{:.4g}", r.step.v), fmt::format("{:.1f}", 100 * s.uncertainty)});
  }
  out << '\n' << table.render(session.terminal, session.common.wide);
  out << "\nnext: write their step_time_s into the table, then sextant calibrate --runs TABLE -o "
         "calibration.json\n";
}

}  // namespace sextant

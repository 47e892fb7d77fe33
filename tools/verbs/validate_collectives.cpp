#include "tools/verbs/validate_collectives.hpp"

#include <algorithm>
#include <filesystem>
#include <ostream>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "planner/calibration/calibration_file.hpp"
#include "planner/validation/collective_score.hpp"
#include "tools/inputs/planning.hpp"
#include "tools/terminal/table.hpp"

namespace sextant {

namespace {

nlohmann::ordered_json to_json(const std::vector<CollectiveScore>& scores) {
  auto out = nlohmann::ordered_json::array();
  for (const CollectiveScore& s : scores) {
    const auto part = [&](int size) {
      return nlohmann::ordered_json{{"rows", s.rows[size]},
                                    {"mean_absolute_error_percent", s.mape[size]},
                                    {"worst_error_percent", s.worst[size]},
                                    {"in_step_error_percent", s.in_step_mape[size]},
                                    {"inside_bar", s.inside[size]}};
    };
    out.push_back({{"source", s.source},
                   {"gpu", s.gpu},
                   {"large", part(0)},
                   {"small", part(1)},
                   {"set_aside", s.set_aside}});
  }
  return {{"collectives", out}};
}

std::vector<std::string> cells_of(const CollectiveScore& s) {
  std::vector<std::string> cells = {s.source, s.gpu,
                                    s.ranks_low == 0 ? ""
                                    : s.ranks_low < s.ranks_high
                                        ? fmt::format("{} to {}", s.ranks_low, s.ranks_high)
                                        : fmt::format("{}", s.ranks_low)};
  for (int size : {0, 1}) {
    const bool any = s.rows[size] > 0;
    cells.push_back(any ? fmt::format("{}", s.rows[size]) : "");
    cells.push_back(any ? fmt::format("{:.1f}", s.mape[size]) : "");
    cells.push_back(any ? fmt::format("{:+.1f}", s.worst[size]) : "");
    cells.push_back(any ? fmt::format("{} of {}", s.inside[size], s.rows[size]) : "");
  }
  cells.push_back(fmt::format("{}", s.set_aside));
  return cells;
}

void print_collective_scores(Session& session, const std::vector<CollectiveScore>& scores) {
  Table table({{"source", Align::left},
               {"device", Align::left},
               {"ranks", Align::right, 3},
               {">= 64 MiB", Align::right},
               {"error %", Align::right},
               {"worst %", Align::right, 1},
               {"within 5 %", Align::right, 2},
               {"smaller", Align::right},
               {"error %", Align::right},
               {"worst %", Align::right, 1},
               {"within 15 %", Align::right, 2},
               {"set aside", Align::right, 3}});
  for (const CollectiveScore& s : scores) table.add_row(cells_of(s));
  table.emphasize_last_row();
  session.terminal.out << table.render(session.terminal, session.common.wide);
}

// The last of the scores is that of all sources.
void print_scored_collectives(Session& session, const std::vector<CollectiveRow>& rows,
                              const std::vector<CollectiveScore>& scores) {
  auto& out = session.terminal.out;
  int aside[3] = {0, 0, 0};
  for (const CollectiveRow& r : rows)
    if (r.use != CollectiveRowUse::scored) ++aside[static_cast<int>(r.use) - 1];
  print_wrapped(
      out, session.terminal,
      fmt::format("{} rows; set aside: {} of hardware not stated, {} whose own runs spread by more than 15 % "
                  "either way, {} that another row contradicts",
                  rows.size(), aside[0], aside[1], aside[2]));
  out << '\n';
  print_collective_scores(session, scores);
  out << '\n';
  print_wrapped(out, session.terminal,
                fmt::format("scored: collectives alone on the machine. In a step the same model adds what "
                            "ranks wait for each "
                            "other, over networks as whole runs see them: {:.0f} % from these rows at 64 "
                            "MiB and above, {:.0f} % "
                            "below",
                            scores.back().in_step_mape[0], scores.back().in_step_mape[1]));
}

}  // namespace

ExitCode validate_collectives(Session& session, const std::string& file, const std::string& calibration,
                              double max_error) {
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored))
    throw ConfigError(
        Problem{file, "", "no such file", "a table of collectives, one line each",
                "published tables are not part of sextant: docs/accuracy.md names those it is scored on"});
  const auto rows = predict_collectives(
      file, session.presets(),
      calibration.empty() ? std::vector<Setting>() : load_calibration(calibration).settings());
  const auto scores = score_collectives(rows);
  if (session.common.json)
    print_json(session, "validate", to_json(scores));
  else
    print_scored_collectives(session, rows, scores);
  const CollectiveScore& all = scores.back();
  const double worst = std::max(all.mape[0], all.mape[1]);
  if (max_error <= 0 || worst <= max_error) return ExitCode::ok;
  session.terminal.err << fmt::format("collectives: mean error {:.1f} %, tolerated {:g} %\n", worst,
                                      max_error);
  return ExitCode::outside_tolerance;
}

}  // namespace sextant

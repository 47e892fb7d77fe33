#include "tools/verbs/explain_decision.hpp"

#include <ostream>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "core/base/file_io.hpp"
#include "core/base/shallow_json.hpp"
#include "core/base/words.hpp"
#include "tools/adaptation/decision_log.hpp"
#include "tools/adaptation/decision_text.hpp"
#include "tools/inputs/planning.hpp"
#include "tools/terminal/table.hpp"

namespace sextant {
namespace {

using Json = nlohmann::ordered_json;

std::vector<Json> read_decisions(const std::filesystem::path& file) {
  std::vector<Json> lines;
  const std::string text = read_text_file(file);
  for (const std::string_view line : split(text, '\n')) {
    Json j = json_or_discarded<Json>(line);
    if (j.is_object()) lines.push_back(std::move(j));  // what a killed run has half written is left out
  }
  return lines;
}

std::string layout_of(const Json& layout) {
  const std::size_t idle = layout.contains("idle") ? layout["idle"].size() : 0;
  const std::string key = layout.value("plan", "?");
  return idle == 0 ? key : fmt::format("{} ({} GPU{} idle)", key, idle, idle == 1 ? "" : "s");
}

void print_candidates(Session& session, const Json& alternatives) {
  bool measured = false;
  for (const Json& a : alternatives) measured = measured || a.contains("measured_step_time_s");
  std::vector<Column> columns = {{"layout", Align::left}, {"predicted s", Align::right}};
  if (measured) columns.push_back({"measured s", Align::right});
  Table table(columns);
  for (const Json& a : alternatives) {
    std::vector<std::string> cells = {layout_of(a),
                                      fmt::format("{:.4g}", a.value("predicted_step_time_s", 0.0))};
    if (measured) cells.push_back(fmt::format("{:.4g}", a.value("measured_step_time_s", 0.0)));
    table.add_row(cells);
  }
  session.terminal.out << '\n' << table.render(session.terminal, session.common.wide);
}

// Whether this line of another decision says what came of that one.
bool verifies(const Json& line, int decision) {
  return line.value("trigger", "") == "verified" && line.contains("evidence") && !line["evidence"].empty() &&
         line["evidence"][0].get<std::string>().starts_with(fmt::format("decision {}:", decision));
}

// The decision, and what the run says of it later. Throws ConfigError where there is none of that number.
std::vector<Json> lines_about(const std::vector<Json>& lines, int decision) {
  std::vector<Json> about;
  std::vector<std::string> known;
  for (const Json& line : lines) {
    const bool is_decision = line.contains("decision");
    if (is_decision) known.push_back(fmt::format("{}", line.value("decision", -1)));
    const bool is_it = is_decision && line.value("decision", -1) == decision;
    if (is_it || (!is_decision && line.value("changed", -1) == decision)) about.push_back(line);
    if (!about.empty() && is_decision && !is_it && verifies(line, decision)) about.push_back(line);
  }
  if (about.empty() || !about.front().contains("decision"))
    throw ConfigError(Problem{
        "--decision", "", fmt::format("{}", decision),
        known.empty() ? "a decision, of which there is none yet" : fmt::format("{}", fmt::join(known, ", ")),
        ""});
  return about;
}

void print_decided(Session& session, const Json& d, int decision) {
  const auto say = [&](const std::string& text, int indent = 0) {
    print_wrapped(session.terminal.out, session.terminal, text, indent);
  };
  say(fmt::format("decision {} behind step {}: {} ({})", decision, d.value("step", 0),
                  words(d.value("kind", "")), d.value("trigger", "")));
  if (d.value("trigger", "") == "drift")
    say(fmt::format("since step {}, seen in step {}:", d.value("onset", 0), d.value("seen", 0)));
  if (d.contains("evidence"))
    for (const Json& line : d["evidence"]) say(line.get<std::string>(), 2);
  if (d.contains("from")) say("layout before: " + layout_of(d["from"]));
  if (d.contains("to")) say("layout since: " + layout_of(d["to"]));
  say("why: " + d.value("why", ""));
  if (d.contains("gain_s") && d.contains("to"))
    say(
        fmt::format("{:.4g} s a step before, {:.4g} s predicted with an uncertainty of {:.0f} %, {} steps "
                    "left, {:.3g} s to move: "
                    "{:.3g} s gained at least",
                    d.value("now_step_time_s", 0.0), d.value("then_step_time_s", 0.0),
                    100 * d.value("uncertainty", d.value("doubt", 0.0)), d.value("steps_left", 0),
                    d.value("move_s", 0.0), d.value("gain_s", 0.0)));
  if (d.contains("alternatives") && !d["alternatives"].empty()) print_candidates(session, d["alternatives"]);
}

std::string later_text(const Json& line) {
  if (!line.contains("stood_still_s"))
    return fmt::format("step {}: {}; {}", line.value("step", 0), line["evidence"][0].get<std::string>(),
                       line.value("why", ""));
  return fmt::format(
      "training stood still for {:.3g} s{}{}", line.value("stood_still_s", 0.0), moved_text(line),
      line.contains("steps_lost") ? fmt::format("; steps lost: {}", line.value("steps_lost", 0)) : "");
}

}  // namespace

ExitCode explain_decision(Session& session, const std::string& run, int decision) {
  const std::filesystem::path file = std::filesystem::path(run) / kAdaptationFile;
  if (run.empty() || !std::filesystem::exists(file))
    throw ConfigError(Problem{"--decision", "", run.empty() ? "no run" : run,
                              "the folder of a run with --adapt",
                              fmt::format("its {} holds the decisions", kAdaptationFile)});
  const std::vector<Json> about = lines_about(read_decisions(file), decision);
  if (session.common.json) {
    print_json(session, "explain",
               {{"run", run},
                {"decision", about.front()},
                {"later", Json(std::vector<Json>(about.begin() + 1, about.end()))}});
    return ExitCode::ok;
  }
  print_decided(session, about.front(), decision);
  auto& out = session.terminal.out;
  if (about.size() > 1) out << '\n';
  for (std::size_t i = 1; i < about.size(); ++i) print_wrapped(out, session.terminal, later_text(about[i]));
  return ExitCode::ok;
}

}  // namespace sextant

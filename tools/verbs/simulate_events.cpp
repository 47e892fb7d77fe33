#include "tools/verbs/simulate_events.hpp"

#include <ostream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/file_io.hpp"
#include "planner/adaptation/virtual_run.hpp"
#include "tools/adaptation/decision_text.hpp"
#include "tools/adaptation/layout_search.hpp"
#include "tools/terminal/progress.hpp"
#include "tools/terminal/table.hpp"

namespace sextant {
namespace {

using Json = nlohmann::ordered_json;

Json run_json(const VirtualRun& r) {
  Json j = {{"steps", r.steps},
            {"redone_steps", r.redone},
            {"wall_s", r.wall.v},
            {"goodput", r.goodput()},
            {"moving_s", r.moving.v},
            {"redoing_s", r.redoing.v},
            {"restarting_s", r.restarting.v},
            {"ended", r.ended},
            {"last_plan", plan_key(r.last.plan)},
            {"decisions", Json::array()}};
  for (const Decision& d : r.decisions) j["decisions"].push_back(decision_json(d));
  return j;
}

void add_rows(Table& table, const char* what, const VirtualRun& r) {
  table.add_row({what, fmt::format("{}", r.steps), fmt::format("{:.4g}", r.wall.v),
                 fmt::format("{:.1f}", 100 * r.goodput()), fmt::format("{:.3g}", r.moving.v),
                 fmt::format("{:.3g}", r.redoing.v), fmt::format("{:.3g}", r.restarting.v)});
}

}  // namespace

void add_events_options(CLI::App& app, EventsOptions& o) {
  add_text(app,
           {.flag = "--events",
            .metavar = "FILE",
            .text = "a whole run on the virtual clock, to whose cluster these things happen ('step 40 rank 3 "
                    "compute x2 "
                    "until 120', 'step 90 kill node 5', 'step 150 join 8'), with and without adapting"},
           o.file);
  add_number(
      app,
      {.flag = "--steps", .metavar = "N", .text = "with --events: steps of the run", .min = 1, .max = 1e8},
      o.steps);
  add_number(app,
             {.flag = "--save-every",
              .metavar = "N",
              .text = "with --events: steps from checkpoint to checkpoint; 0 = none",
              .min = 0,
              .max = 1e8},
             o.save_every);
  add_number(app,
             {.flag = "--noise",
              .metavar = "X",
              .text = "with --events: spread of what each rank takes from step to step",
              .unit = "%",
              .min = 0,
              .max = 100},
             o.noise);
  for (const char* flag : {"--steps", "--save-every", "--noise"})
    app.get_option(flag)->needs(app.get_option("--events"));
}

ExitCode simulate_events(Session& session, const Planning& planning, const EventsOptions& options) {
  const Question& q = planning.question();
  const ClusterEvents events(read_text_file(options.file), options.file, q.cluster);
  const LayoutSearch search(q, *q.plan, session.presets(), 0);
  const AdaptationTools tools = search.tools();
  const Layout start = layout_on(*q.plan, q.cluster, q.cluster);
  VirtualRunOptions how;
  how.steps = options.steps;
  how.save_every = options.save_every;
  how.restart = q.cluster.failures.restart;
  how.noise = options.noise / 100;
  Progress progress(session.terminal, "steps", static_cast<std::uint64_t>(options.steps), "steps");
  how.progress = [&](std::int64_t step) { progress.update(static_cast<std::uint64_t>(step)); };
  const VirtualRun adapted = run_virtually(q.cluster, events, start, tools, how);
  how.adapt = false;
  const VirtualRun fixed = run_virtually(q.cluster, events, start, tools, how);
  progress.finish();
  if (session.common.json) {
    print_json(session, "simulate",
               {{"plan", plan_key(*q.plan)}, {"adapted", run_json(adapted)}, {"fixed", run_json(fixed)}});
    return ExitCode::ok;
  }
  auto& out = session.terminal.out;
  print_wrapped(out, session.terminal, question_text(q));
  print_wrapped(out, session.terminal, plan_key(*q.plan));
  print_notes(session, q);
  out << '\n';
  for (const Decision& d : adapted.decisions) {
    print_wrapped(out, session.terminal, decision_text(d));
    for (const std::string& line : d.evidence) print_wrapped(out, session.terminal, line, 2);
  }
  if (!adapted.decisions.empty()) out << '\n';
  Table table({{"run", Align::left},
               {"steps", Align::right},
               {"s", Align::right},
               {"goodput %", Align::right},
               {"moving s", Align::right, 1},
               {"redone s", Align::right, 1},
               {"restart s", Align::right, 1}});
  add_rows(table, "adapts", adapted);
  add_rows(table, "layout stays", fixed);
  out << table.render(session.terminal, session.common.wide);
  print_wrapped(out, session.terminal,
                "goodput: the time that these steps take on the cluster without events, of the time they "
                "took. A run whose "
                "layout stays gets a spare at once for what it loses, and begins again from its checkpoint.");
  if (adapted.ended)
    print_wrapped(out, session.terminal, "no layout was possible any more: the run ended there");
  if (adapted.steps == fixed.steps && adapted.wall.v > 0)
    print_wrapped(out, session.terminal,
                  fmt::format("adapting is {:.2f} times as fast", fixed.wall / adapted.wall));
  return ExitCode::ok;
}

}  // namespace sextant

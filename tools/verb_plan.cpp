// `sextant plan`: the best layout for a model on a cluster, with reasons.
#include <atomic>
#include <csignal>
#include <memory>
#include <ostream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "planner/search.hpp"
#include "tools/planning.hpp"
#include "tools/progress.hpp"
#include "tools/table.hpp"
#include "tools/verbs.hpp"

namespace sextant {
namespace {

using Json = nlohmann::ordered_json;

struct PlanVerbOptions {
  QuestionOptions question;
  std::string output;
  int top = 8;
  double budget_s = 0;
};

std::atomic<bool> interrupted{false};  // set by Ctrl-C: the search ends with the best so far

class InterruptGuard {
 public:
  InterruptGuard() : before_(std::signal(SIGINT, [](int) { interrupted.store(true); })) {}
  ~InterruptGuard() { std::signal(SIGINT, before_); }
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

 private:
  void (*before_)(int);
};

std::string_view recompute_text(const ParallelPlan& p) {
  switch (p.recompute.kind) {
    case RecomputeKind::none:
      return "none";
    case RecomputeKind::selective:
      return "sel";
    case RecomputeKind::full:
      break;
  }
  return p.recompute.layers < 0 ? "full" : "some";
}

// The cause in which a layout loses most against the winner.
std::string lost_by(const Breakdown& winner, const Breakdown& loser) {
  int worst = 0;
  double most = 0;
  for (int c = 0; c < kTimeCategories; ++c) {
    const auto i = static_cast<std::size_t>(c);
    if (loser.mean[i] - winner.mean[i] > most) most = loser.mean[i] - winner.mean[i], worst = c;
  }
  if (most <= 0) return "";
  return fmt::format("{} {:+.1f} %", name(static_cast<TimeCategory>(worst)), 100 * most / winner.step.v);
}

std::string ranking(Session& session, const SearchReport& report, const std::vector<Breakdown>& breakdowns) {
  Table table({{"#", Align::right},
               {"layout", Align::left},
               {"TP", Align::right, 9},
               {"PP", Align::right, 9},
               {"VP", Align::right, 9},
               {"CP", Align::right, 9},
               {"DP", Align::right, 9},
               {"ZeRO", Align::right, 9},
               {"MBS", Align::right, 9},
               {"recompute", Align::left, 9},
               {"step s", Align::right},
               {"tok/s/GPU", Align::right, 2},
               {"MFU %", Align::right, 3},
               {"peak GiB", Align::right, 1},
               {"slower %", Align::right},
               {"lost by", Align::left, 4}});
  for (std::size_t i = 0; i < report.ranked.size(); ++i) {
    const RankedPlan& r = report.ranked[i];
    const ParallelPlan& p = r.plan;
    table.add_row(
        {fmt::format("{}", i + 1), plan_key(p), fmt::format("{}", p.tp), fmt::format("{}", p.pp),
         fmt::format("{}", p.vp), fmt::format("{}", p.cp), fmt::format("{}", p.dp),
         fmt::format("{}", p.zero_stage), fmt::format("{}", p.micro_batch), std::string(recompute_text(p)),
         fmt::format("{:.3f}", r.prediction.step.v), fmt::format("{:.0f}", r.prediction.tokens_per_s_gpu),
         fmt::format("{:.1f}", 100 * r.prediction.mfu), fmt::format("{:.1f}", gib(r.prediction.memory.peak)),
         i == 0 ? "" : fmt::format("{:.1f}{}", 100 * r.slower, r.tie ? " tie" : ""),
         i == 0 ? "" : lost_by(breakdowns[0], breakdowns[i])});
    if (i == 0) table.emphasize_last_row();
  }
  return table.render(session.terminal, session.common.wide);
}

std::string count(std::uint64_t n) {
  if (n < 1'000'000) return fmt::format("{}", n);
  constexpr const char* kUnits[] = {"million", "billion", "thousand billion"};
  double x = static_cast<double>(n) * 1e-6;
  int unit = 0;
  while (x >= 1000 && unit < 2) x *= 1e-3, ++unit;
  return fmt::format("{:.3g} {}", x, kUnits[unit]);
}

std::string fates(Session& session, const SearchReport& report) {
  Table table({{"layouts", Align::right}, {"fate", Align::left}, {"for example", Align::left, 1}});
  for (std::size_t f = 0; f < kFateNames.size(); ++f) {
    const auto fate = static_cast<Fate>(f);
    if (report.fates[fate] == 0) continue;
    std::string example;
    for (const FateExample& e : report.examples)
      if (e.fate == fate && example.empty()) example = e.plan_key + ": " + e.text;
    table.add_row({count(report.fates[fate]), std::string(name(fate)), example});
  }
  return table.render(session.terminal, session.common.wide);
}

Json to_json(const SearchReport& report, const std::vector<Breakdown>& breakdowns) {
  Json ranked = Json::array(), counts, examples = Json::array();
  for (std::size_t i = 0; i < report.ranked.size(); ++i) {
    const RankedPlan& r = report.ranked[i];
    ranked.push_back({{"plan", plan_key(r.plan)},
                      {"prediction", to_json(r.prediction)},
                      {"slower_share", r.slower},
                      {"tie", r.tie},
                      {"breakdown", to_json(breakdowns[i])}});
  }
  for (std::size_t f = 0; f < kFateNames.size(); ++f)
    counts[std::string(kFateNames[f])] = report.fates[static_cast<Fate>(f)];
  for (const FateExample& e : report.examples)
    examples.push_back({{"fate", name(e.fate)}, {"plan", e.plan_key}, {"reason", e.text}});
  return {{"ranked", ranked},        {"space", report.space},
          {"fates", counts},         {"examples", examples},
          {"exact", report.exact},   {"stopped", report.stopped},
          {"bounds", report.bounds}, {"best_bound_s", report.best_bound.v},
          {"wall_s", report.wall_s}};
}

ExitCode run(Session& session, const PlanVerbOptions& options) {
  const auto presets = session.presets();
  const Question q = read_question(options.question, presets);
  const Planning planning(q, presets);
  const SearchSpace space = default_space(q.model, q.training, planning.topology.ranks(), q.limits);
  SearchOptions search_options;
  search_options.top = options.top;
  search_options.budget_s = options.budget_s;
  search_options.cancel = &interrupted;
  SearchReport report;
  {
    const InterruptGuard guard;
    Progress progress(session.terminal, "searching", 0, "layouts");
    search_options.progress = [&](std::uint64_t done, Seconds best) {
      progress.update(static_cast<double>(done), fmt::format("best {:.3f} s", best.v));
    };
    report = search(planning.job, space, search_options);
  }
  std::vector<Simulated> simulated;
  std::vector<Breakdown> breakdowns;
  for (const RankedPlan& r : report.ranked) {
    simulated.push_back(simulate_plan(planning.job, r.plan, false));
    breakdowns.push_back(simulated.back().breakdown);
  }
  const bool found = !report.ranked.empty();
  if (found && !options.output.empty())
    save_plan_file(options.output, plan_file(q, report.ranked.front().plan, simulated.front()));
  const ExitCode code = !found               ? ExitCode::no_feasible_plan
                        : interrupted.load() ? ExitCode::interrupted
                                             : ExitCode::ok;
  if (session.common.json) {
    print_json(session, "plan", to_json(report, breakdowns));
    return code;
  }
  auto& out = session.terminal.out;
  for (const auto& line : wrap(headline(q), std::min(session.terminal.columns, 120))) out << line << '\n';
  if (found) {
    out << '\n' << ranking(session, report, breakdowns) << '\n';
    out << "why the first: where its step goes\n"
        << step_table(session, simulated.front().breakdown, simulated.front().prediction) << '\n'
        << memory_table(session, simulated.front().memory, simulated.front().prediction.memory_available)
        << '\n';
  }
  out << fmt::format("{} layouts in {:.2f} s; what became of them:\n", count(report.space), report.wall_s)
      << fates(session, report);
  if (!report.exact)
    out << fmt::format("stopped early ({}): best so far; nothing can be faster than {:.3f} s\n",
                       report.stopped, report.best_bound.v);
  if (!found) {
    session.terminal.err
        << "no layout of the space fits\n  try a larger --cluster, a smaller --global-batch, or fewer "
           "--fix and --limit\n";
    return code;
  }
  if (!options.output.empty())
    out << fmt::format("\nwritten: {}\nnext: sextant simulate --plan {} --trace timeline.json.gz\n",
                       options.output, options.output);
  else
    out << "\nnext: add -o plan.json to keep the first layout; sextant simulate --plan plan.json shows its "
           "timeline\n";
  return code;
}

}  // namespace

Verb plan_verb() {
  return {
      .name = "plan",
      .summary = "find the best layout for a model on a cluster",
      .description =
          "Searches the whole space of layouts, exactly: every layout is simulated, or shown by a bound or "
          "a reason not to be the best. Prints the ranking (the best of each family of layouts), where the "
          "first one's time and memory go, and what became of all others. Ctrl-C ends the search with the "
          "best so far (exit code 130).",
      .examples = {{"LLaMA-2-13B on 64 A100", "sextant plan --model llama-2-13b --cluster 8x8xa100-80gb"},
                   {"pinned and narrowed",
                    "sextant plan --model llama-2-13b --cluster 8x8xa100-80gb --fix tp=2 --limit "
                    "'pp<=4,mbs<=2' --top 3"},
                   {"kept for the other verbs",
                    "sextant plan --model llama-3.1-8b --cluster 2x8xh100 -o plan.json"}},
      .define = [](CLI::App& app) -> Run {
        auto options = std::make_shared<PlanVerbOptions>();
        add_question_options(app, options->question, {.limits = true});
        add_number(
            app,
            {.flag = "--top", .metavar = "N", .text = "layouts to show", .unit = "", .min = 1, .max = 1000},
            options->top);
        add_number(app,
                   {.flag = "--budget-s",
                    .metavar = "SECONDS",
                    .text = "stop after this long with the best so far; 0 = search to the end",
                    .unit = "s",
                    .min = 0,
                    .max = 86400},
                   options->budget_s);
        add_text(app,
                 {.flag = "-o,--output", .metavar = "FILE", .text = "write the best layout as a plan file"},
                 options->output);
        return [options](Session& session) { return run(session, *options); };
      }};
}

}  // namespace sextant

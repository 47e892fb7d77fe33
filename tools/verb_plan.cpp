// `sextant plan`: the best layouts of a model on a cluster, ranked, and what became of all the others.
#include <algorithm>
#include <memory>
#include <ostream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "planner/search.hpp"
#include "tools/planning.hpp"
#include "tools/table.hpp"

namespace sextant {

namespace {

using Json = nlohmann::ordered_json;

struct PlanOptions {
  QuestionOptions question;
  int top = 5;
  double budget_s = 0;
  std::string output;
};

Table ranking(const SearchReport& report) {
  Table table({{"#", Align::right},
               {"TP", Align::right},
               {"PP", Align::right},
               {"VP", Align::right, 5},
               {"CP", Align::right, 6},
               {"DP", Align::right},
               {"ZeRO", Align::right},
               {"MBS", Align::right},
               {"recompute", Align::left, 4},
               {"step s", Align::right},
               {"+- %", Align::right, 7},
               {"tok/s/GPU", Align::right},
               {"TFLOP/s/GPU", Align::right, 9},
               {"MFU %", Align::right},
               {"peak GiB", Align::right},
               {"slower %", Align::right, 3},
               {"plan key", Align::left, 8}});
  int rank = 0;
  for (const auto& r : report.ranked) {
    const auto& plan = r.plan;
    const auto& p = r.prediction;
    const auto number = [](int n) { return fmt::format("{}", n); };
    table.add_row({number(++rank), number(plan.tp), number(plan.pp), number(plan.vp), number(plan.cp),
                   number(plan.dp), number(plan.zero_stage), number(plan.micro_batch),
                   recompute_text(plan.recompute), fmt::format("{:.3f}", p.step.v),
                   fmt::format("{:.0f}", 100 * (p.step_upper.v / p.step.v - 1)),
                   fmt::format("{:.0f}", p.tokens_per_s_gpu), fmt::format("{:.1f}", p.model_tflops_gpu),
                   fmt::format("{:.1f}", 100 * p.mfu), fmt::format("{:.1f}", gib(p.memory.peak)),
                   rank == 1 ? ""
                   : r.tie   ? "tie"
                             : fmt::format("{:.1f}", 100 * r.slower),
                   plan_key(plan)});
    if (rank == 1) table.emphasize_last_row();
  }
  return table;
}

void print(Session& session, const Question& q, const PlanOptions& options, const SearchReport& report) {
  auto& out = session.terminal.out;
  const int width = std::clamp(session.terminal.columns, 40, 110);
  const auto paragraph = [&](const std::string& text) {
    for (const auto& line : wrap(text, width)) out << line << '\n';
  };
  paragraph(question_text(q));
  out << '\n' << ranking(report).render(session.terminal, session.common.wide) << '\n';
  const auto& best = report.ranked.front();
  paragraph(fmt::format("best: {}", plan_key(best.plan)));
  paragraph(fmt::format(
      "step {:.3f} s, within {:.3f} to {:.3f} s in four of five cases; {:.1f} of {:.1f} GiB, most "
      "of it {} of stage {}",
      best.prediction.step.v, best.prediction.step_lower.v, best.prediction.step_upper.v,
      gib(best.prediction.memory.peak), gib(best.prediction.memory_available), best.prediction.memory.largest,
      best.prediction.memory.stage));
  paragraph(fmt::format("{} layouts: {}.", count_text(report.space), fates_text(report.fates)));
  if (report.exact)
    paragraph(fmt::format("No other layout of this space is faster under the model: proved in {}.",
                          duration_text(report.wall_s)));
  else
    paragraph(fmt::format("Not proved best: {}. No layout is faster than {:.3f} s.", report.stopped,
                          report.best_bound.v));
  print_reasons(out, session.terminal, report);
  out << '\n';
  paragraph(
      "MFU: model FLOPs (6 x matrix parameters with the LM head, plus attention in full, nothing recomputed) "
      "against the dense 16-bit peak.");
  if (options.output.empty())
    out << fmt::format("\nnext: sextant simulate{} --plan {} --trace step.json.gz\n",
                       question_arguments(options.question), plan_key(best.plan));
  else
    out << fmt::format("\nwritten: {}\nnext: sextant simulate --plan {} --trace step.json.gz\n",
                       options.output, options.output);
}

Json to_json(const Question& q, const SearchReport& report) {
  Json ranked = Json::array();
  for (const auto& r : report.ranked) {
    Json entry = prediction_json(r.plan, r.prediction);
    entry["slower_share"] = r.slower;
    entry["tie"] = r.tie;
    ranked.push_back(std::move(entry));
  }
  Json j = question_json(q);
  j["ranked"] = ranked;
  j.update(report_json(report));
  return j;
}

ExitCode run(Session& session, const PlanOptions& options) {
  check_output("--output", options.output, files_read(options.question));
  const Planning planning(read_question(options.question, session.presets()), session.presets());
  const Question& q = planning.question();
  Searching searching(session.terminal, options.budget_s);
  const SearchSpace space = default_space(q.model, q.training, q.cluster.gpus(), q.limits);
  const SearchReport report = search(planning.job(), space, searching.options(options.top));
  searching.finish();
  const bool interrupted = searching.interrupted();
  if (report.ranked.empty() && !session.common.json)
    return print_nothing(session, "plan", planning, space, report, searching);
  if (!options.output.empty() && !report.ranked.empty())
    save_plan_file(options.output,
                   plan_file_of(session, q, report.ranked.front().plan, report.ranked.front().prediction));
  if (session.common.json)
    print_json(session, "plan", to_json(q, report));
  else
    print(session, q, options, report);
  if (interrupted) return ExitCode::interrupted;
  return report.ranked.empty() ? ExitCode::no_feasible_plan : ExitCode::ok;
}

}  // namespace

Verb plan_verb() {
  return {
      .name = "plan",
      .summary = "find the best layout of a model on a cluster",
      .description =
          "Searches every layout of the space (tensor, sequence, context, pipeline and data parallel "
          "degrees, "
          "schedules, ZeRO, recompute, offload, buckets, overlap, placement) and ranks the best by simulated "
          "step "
          "time. Every other layout is counted by what became of it. Ctrl-C or --budget-s stops early with "
          "the best "
          "so far.",
      .examples =
          {{"LLaMA-2-13B on 64 A100", "sextant plan --model llama-2-13b --cluster 8x8xa100-80gb"},
           {"pin and narrow fields, keep the plan",
            "sextant plan --model llama-2-13b --cluster 8x8xa100-80gb --fix tp=2 --limit 'pp<=4,rec!=full' "
            "-o plan.json"},
           {"a slower network, another framework",
            "sextant plan --model llama-2-7b --cluster 4x8xa100-80gb --stack torchtitan --set "
            "fabric.bandwidth_GBps=50 --fix cp=1,ao=0,oo=0 --json"}},
      .define = [](CLI::App& app) -> Run {
        auto options = std::make_shared<PlanOptions>();
        add_question_options(app, options->question, {.plan = false, .limits = true});
        add_number(
            app,
            {.flag = "--top", .metavar = "N", .text = "layouts to show", .unit = "", .min = 1, .max = 1000},
            options->top);
        add_number(app,
                   {.flag = "--budget-s",
                    .metavar = "SECONDS",
                    .text = "stop after this time with the best so far; 0 = until proved",
                    .unit = "seconds",
                    .min = 0,
                    .max = 1e6},
                   options->budget_s);
        add_text(app, {.flag = "-o,--output", .metavar = "FILE", .text = "write the best as a plan file"},
                 options->output);
        return [options](Session& session) { return run(session, *options); };
      }};
}

}  // namespace sextant

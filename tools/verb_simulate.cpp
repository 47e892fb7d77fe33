// `sextant simulate`: one layout's step in detail, by cause and by stage, and its timeline for Perfetto.
#include <memory>
#include <ostream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/trace.hpp"
#include "tools/planning.hpp"
#include "tools/verbs.hpp"

namespace sextant {
namespace {

struct SimulateVerbOptions {
  QuestionOptions question;
  std::string trace, output;
};

ExitCode run(Session& session, const SimulateVerbOptions& options) {
  const auto presets = session.presets();
  const Question q = read_question(options.question, presets);
  if (!q.plan) throw UsageError("--plan is missing\n  for example: --plan tp2.pp2.dp16.z1.mbs1");
  const Planning planning(q, presets);
  const Simulated s = simulate_plan(planning.job, *q.plan, !options.trace.empty());
  if (!options.trace.empty()) write_trace(options.trace, trace_events(s.graph, s.timeline));
  if (!options.output.empty()) save_plan_file(options.output, plan_file(q, *q.plan, s));
  const Prediction& p = s.prediction;
  if (session.common.json) {
    print_json(session, "simulate",
               {{"plan", plan_key(*q.plan)},
                {"prediction", to_json(p)},
                {"breakdown", to_json(s.breakdown)},
                {"memory", to_json(s.memory)},
                {"operations", s.graph.ops.size()}});
    return p.fits ? ExitCode::ok : ExitCode::no_feasible_plan;
  }
  auto& out = session.terminal.out;
  for (const auto& line : wrap(headline(q), std::min(session.terminal.columns, 120))) out << line << '\n';
  out << fmt::format("layout {}, {} operations\n\n", plan_key(*q.plan), s.graph.ops.size());
  out << fmt::format("step {:.3f} s ({:.3f} to {:.3f}), {:.0f} tokens/s, {:.0f} per GPU\n", p.step.v,
                     p.step_lower.v, p.step_upper.v, p.tokens_per_s, p.tokens_per_s_gpu);
  out << fmt::format("{:.0f} model TFLOP/s per GPU, MFU {:.1f} % ({:.1f} % with causal attention halved)\n\n",
                     p.model_tflops_gpu, 100 * p.mfu, 100 * p.mfu_causal);
  out << step_table(session, s.breakdown, p) << '\n' << memory_table(session, s.memory, p.memory_available);
  if (!p.fits) {
    session.terminal.err << fmt::format("does not fit: stage {} needs {:.1f} of {:.1f} GiB\n", p.memory.stage,
                                        gib(p.memory.peak), gib(p.memory_available));
    return ExitCode::no_feasible_plan;
  }
  if (!options.trace.empty())
    out << fmt::format("\nwritten: {} (open it in ui.perfetto.dev; it stays in your browser)\n",
                       options.trace);
  else
    out << "\nnext: --trace FILE.json.gz writes the timeline for Perfetto\n";
  return ExitCode::ok;
}

}  // namespace

Verb simulate_verb() {
  return {.name = "simulate",
          .summary = "simulate one layout, with its timeline",
          .description =
              "Lowers one layout to the operations of a training step and simulates them: time by cause and "
              "stage, memory by category and stage, and the timeline as a trace. Exit code 4 when the layout "
              "does not fit into memory.",
          .examples =
              {{"one layout of LLaMA-2-13B on 64 A100",
                "sextant simulate --model llama-2-13b --cluster 8x8xa100-80gb --plan tp2.pp2.dp16.z1.mbs1"},
               {"its timeline, for Perfetto",
                "sextant simulate --model llama-2-13b --cluster 8x8xa100-80gb --global-batch 64 --plan "
                "tp2.pp2.dp16.z1.mbs1 --trace timeline.json.gz"}},
          .define = [](CLI::App& app) -> Run {
            auto options = std::make_shared<SimulateVerbOptions>();
            add_question_options(app, options->question, {.plan = true});
            add_text(
                app,
                {.flag = "--trace",
                 .metavar = "FILE",
                 .text = "write the timeline as Chrome trace JSON (.json or .json.gz), which Perfetto opens"},
                options->trace);
            add_text(app,
                     {.flag = "-o,--output", .metavar = "FILE", .text = "write the layout as a plan file"},
                     options->output);
            return [options](Session& session) { return run(session, *options); };
          }};
}

}  // namespace sextant

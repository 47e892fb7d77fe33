#include "tools/verbs/simulate_answer.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <ostream>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/words.hpp"
#include "planner/explain/framework_setting.hpp"
#include "planner/explain/unused_fields.hpp"
#include "tools/inputs/precision.hpp"
#include "tools/output/goodput_text.hpp"
#include "tools/output/time_rows.hpp"
#include "tools/output/training_time.hpp"
#include "tools/terminal/bar.hpp"
#include "tools/terminal/table.hpp"

namespace sextant {

namespace {

using Json = nlohmann::ordered_json;

// Rows of the stages' table: all of them, or the first, the heaviest and the last of a long pipeline.
std::vector<int> stages_shown(std::size_t n, int heaviest) {
  std::vector<int> all(n);
  std::iota(all.begin(), all.end(), 0);
  if (n <= 16) return all;
  std::vector<int> some = {0, 1, heaviest, static_cast<int>(n) - 2, static_cast<int>(n) - 1};
  std::sort(some.begin(), some.end());
  some.erase(std::unique(some.begin(), some.end()), some.end());
  return some;
}

constexpr int kBarColumns = 12;  // that a bar of all takes

void print_time(Session& session, const SimulatedLayout& s) {
  Table table({{"time", Align::left},
               {"s", Align::right},
               {"% of step", Align::right},
               {"slowest stage s", Align::right, 1},
               {"share", Align::left, 2}});
  const double step = s.prediction.step.v;
  std::size_t i = 0;
  for (const TimeRow& row : time_rows(s.split.mean, s.prediction.step, s.jitter)) {
    std::string slowest;  // of what stages have of their own
    if (i < s.split.mean.size()) {
      double most = 0;
      for (const auto& stage : s.split.stages) most = std::max(most, stage[i]);
      ++i;
      if (most < 1e-5 * step) continue;
      slowest = fmt::format("{:.4f}", most);
    }
    table.add_row({row.what, fmt::format("{:.4f}", row.seconds), fmt::format("{:.1f}", 100 * row.share),
                   slowest, bar_text(session.terminal, row.share, kBarColumns)});
  }
  table.add_row({"step", fmt::format("{:.4f}", step), "100.0", "", ""});
  table.emphasize_last_row();
  session.terminal.out << table.render(session.terminal, session.common.wide) << '\n';
}

void print_stage_memory(Session& session, const SimulatedLayout& s) {
  std::array<bool, kBufferKinds> used{};
  for (const auto& stage : s.memory.stages)
    for (std::size_t k = 0; k < used.size(); ++k) used[k] = used[k] || stage.at_peak[k] > 0;
  std::vector<Column> columns = {{"stage", Align::right}};
  for (std::size_t k = 0; k < used.size(); ++k)
    if (used[k])
      columns.push_back({words(name(static_cast<BufferKind>(k))), Align::right, static_cast<int>(k)});
  columns.push_back({"allocator reserve", Align::right, 20});
  columns.push_back({"CUDA+NCCL", Align::right, 21});
  columns.push_back({"peak GiB", Align::right});
  columns.push_back({"of limit", Align::left, 22});
  Table table(columns);
  const auto shown = stages_shown(s.memory.stages.size(), s.memory.heaviest);
  for (const int i : shown) {
    const StageMemory& stage = s.memory.stages[static_cast<std::size_t>(i)];
    std::vector<std::string> cells = {fmt::format("{}", i)};
    for (std::size_t k = 0; k < used.size(); ++k)
      if (used[k]) cells.push_back(fmt::format("{:.2f}", gib(Bytes(stage.at_peak[k]))));
    cells.push_back(fmt::format("{:.2f}", gib(stage.fragmented)));
    cells.push_back(fmt::format("{:.2f}", gib(stage.outside)));
    cells.push_back(fmt::format("{:.2f}", gib(stage.needed())));
    cells.push_back(bar_text(session.terminal, stage.needed() / s.prediction.memory_available, kBarColumns));
    table.add_row(cells);
    if (i == s.memory.heaviest) table.emphasize_last_row();
  }
  session.terminal.out << table.render(session.terminal, session.common.wide);
  if (shown.size() < s.memory.stages.size())
    session.terminal.out << fmt::format("({} of {} stages; --json has all)\n", shown.size(),
                                        s.memory.stages.size());
}

Json to_json(const ParallelPlan& plan, const SimulatedLayout& s) {
  Json stages = Json::array();
  for (std::size_t i = 0; i < s.memory.stages.size(); ++i) {
    const StageMemory& m = s.memory.stages[i];
    Json memory = Json::object();
    for (std::size_t k = 0; k < kBufferKinds; ++k)
      memory[std::string(name(static_cast<BufferKind>(k)))] = gib(Bytes(m.at_peak[k]));
    memory["allocated"] = gib(m.allocated());
    memory["needed"] = gib(m.needed());
    memory["reserved"] = gib(m.reserved());
    stages.push_back({{"stage", i}, {"time_s", time_split_json(s.split.stages[i])}, {"memory_GiB", memory}});
  }
  Json split = time_split_json(s.split.mean);
  split["jitter"] = s.jitter.v;
  Json out = {{"prediction", prediction_json(plan, s.prediction)},
              {"breakdown_s", split},
              {"stragglers_and_host_s", s.beyond_graph_s},
              {"operations", s.ops},
              {"stages", stages}};
  if (s.runtime) out["runtime_bytes"] = s.runtime->v;
  if (const auto& jitter = s.prediction.jitter) {
    out["undisturbed_step_time_s"] = jitter->undisturbed.v;
    out["p90_step_time_s"] = jitter->p90.v;
  }
  if (s.calibrated) out["known_from_calibration"] = s.calibrated->known;
  return out;
}

// What is to be set for it in its framework, in sentences.
std::vector<std::string> settings_needed(const SimulateAnswer& of) {
  const Question& q = of.question();
  std::vector<std::string> all = {framework_setting(of.plan(), q.training, q.stack),
                                  layout_setting(of.plan(), q.model, q.stack)};
  std::erase(all, "");
  return all;
}

void say_of(const SimulateAnswer& of, const std::string& text) {
  const int width = std::clamp(of.session.terminal.columns, 40, 110);
  for (const auto& line : wrap(text, width)) of.session.terminal.out << line << '\n';
}

void answer_simulated_json(const SimulateAnswer& p) {
  const Question& q = p.question();
  const Prediction& prediction = p.simulated.prediction;
  Json answer = to_json(p.plan(), p.simulated);
  add_goodput(answer["prediction"], p.job, p.plan(), prediction.step, p.options.goodput.kind());
  if (!p.options.tokens.empty())
    answer["training"] = training_time_json(p.options.tokens, q.training, q.cluster, p.plan(), prediction);
  if (q.profile) answer["profile"] = profile_json(*q.profile, p.planning.costs());
  answer["precision"] = precision_name(q.stack, q.training);
  answer["notes"] = q.notes;
  for (const std::string& setting : settings_needed(p)) answer["notes"].push_back(setting);
  answer["unused_fields"] = unused_fields(p.plan(), q.model, q.stack);
  print_json(p.session, "simulate", answer);
}

void print_step(const SimulateAnswer& of) {
  const Question& q = of.question();
  const auto& p = of.simulated.prediction;
  say_of(of, fmt::format("step {:.3f} s (90 %: {:.3f} to {:.3f} s), {:.0f} tokens/s/GPU, {:.1f} model "
                         "TFLOP/s/GPU, MFU {:.1f} % ({:.1f} % counting causal attention as half)",
                         p.step.v, p.step_lower.v, p.step_upper.v, p.tokens_per_s_gpu, p.model_tflops_gpu,
                         100 * p.mfu, 100 * p.mfu_causal));
  if (!of.options.tokens.empty())
    say_of(of, training_time_text(of.options.tokens, q.training, q.cluster, of.plan(), p));
  if (p.predicted_from) say_of(of, predicted_from_text(*q.profile, *p.predicted_from, &of.planning.costs()));
  if (p.jitter) say_of(of, "this step is " + jitter_text(p));
  if (const auto& calibrated = of.simulated.calibrated)
    say_of(
        of,
        fmt::format(
            "the calibration removed {:.0f} % of the uncertainty about the constants that decide this step{}",
            100 * calibrated->known,
            calibrated->far() ? ": it is far from the runs that were measured" : ""));
}

void print_fit(const SimulateAnswer& of) {
  const Question& q = of.question();
  const auto& p = of.simulated.prediction;
  say_of(of, of.rejection
                 ? "does not fit: " + of.rejection->text
                 : fmt::format("fits: {:.1f} of {:.1f} GiB", gib(p.memory.peak), gib(p.memory_available)));
  say_of(of, "precision: " + precision_text(q.stack, q.training));
  if (const auto text = host_memory_text(p.memory, q.cluster.node); !text.empty()) say_of(of, text);
  if (const auto& runtime = of.simulated.runtime)
    say_of(of, fmt::format("sextant run allocates {} bytes of it",
                           with_thousands(static_cast<std::uint64_t>(runtime->v))));
  for (const std::string& field : unused_fields(of.plan(), q.model, q.stack))
    say_of(of, "note: changes nothing here: " + field);
  if (const auto text = overflow_text(p.chance_of_overflow); !of.rejection && !text.empty()) say_of(of, text);
  if (const auto text = goodput_text(of.job, of.plan(), p.step, of.options.goodput.kind()); !text.empty())
    say_of(of, text);
}

void print_files(const SimulateAnswer& of) {
  auto& out = of.session.terminal.out;
  const SimulatedLayout& s = of.simulated;
  if (!of.options.output.empty()) out << "written: " << of.options.output << '\n';
  if (of.options.trace.empty()) {
    out << "next: --trace step.json.gz writes the timeline for Perfetto\n";
    return;
  }
  say_of(of, fmt::format("the trace is as long as the step: its operations end at {:.4f} s; {}{:.4f} s of "
                         "stragglers and {:.4f} s of host "
                         "time follow as slices of the process \"step\"",
                         s.split.step.v,
                         s.jitter > Seconds(0) ? fmt::format("{:.4f} s of jitter, ", s.jitter.v) : "",
                         s.beyond_graph_s - s.host_s, s.host_s));
  out << fmt::format("written: {}\nnext: open it in Perfetto (ui.perfetto.dev; it stays in the browser)\n",
                     of.options.trace);
}

void answer_simulated_text(const SimulateAnswer& of) {
  auto& out = of.session.terminal.out;
  say_of(of, question_text(of.question()));
  say_of(of, plan_key(of.plan()));
  print_notes(of.session, of.question());
  for (const std::string& setting : settings_needed(of)) say_of(of, "note: " + setting);
  print_step(of);
  out << '\n';
  print_time(of.session, of.simulated);
  print_stage_memory(of.session, of.simulated);
  out << '\n';
  print_fit(of);
  print_files(of);
}

}  // namespace

void print_simulated(const SimulateAnswer& of) {
  if (of.session.common.json)
    answer_simulated_json(of);
  else
    answer_simulated_text(of);
}

}  // namespace sextant

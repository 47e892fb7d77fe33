#include "tools/report/plan_chapter.hpp"

#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/words.hpp"
#include "core/plan/plan_key.hpp"
#include "planner/explain/framework_setting.hpp"
#include "tools/inputs/planning.hpp"
#include "tools/output/recommendation_text.hpp"
#include "tools/output/training_time.hpp"
#include "tools/report/neighbours.hpp"
#include "tools/report/quantity_text.hpp"
#include "tools/report/search_chapter.hpp"
#include "tools/report/step_sections.hpp"

namespace sextant {
namespace {

// Steps closer than this are the same prediction, as printed.
constexpr double kSame = 5e-3;

std::vector<ReportTile> tiles_of(const PlanPrediction& p, const Prediction& anew, const Question& q,
                                 const std::string& tokens, const ParallelPlan& plan) {
  std::vector<ReportTile> tiles;
  tiles.push_back({"step time", seconds_text(p.step_time_s.value),
                   fmt::format("{} to {} in {:.0f} of 100 cases", seconds_text(p.step_time_s.lower),
                               seconds_text(p.step_time_s.upper), 100 * p.coverage)});
  tiles.push_back({"tokens/s/GPU", rate_text(p.tokens_per_s_per_gpu),
                   fmt::format("{} tokens/s in all", rate_text(p.tokens_per_s_per_gpu * plan.world()))});
  tiles.push_back(
      {"MFU", share_text(p.mfu), fmt::format("{:.0f} model TFLOP/s/GPU", p.model_tflops_per_gpu)});
  tiles.push_back({"peak memory", gib_text(p.peak_memory_GiB.value) + " GiB",
                   fmt::format("of {} GiB; OOM risk {}", gib_text(gib(anew.memory_available)),
                               oom_risk_text(anew.chance_of_overflow))});
  if (p.goodput)
    tiles.push_back({"goodput", share_text(p.goodput->goodput), "of wall-clock time is lasting progress"});
  if (!tokens.empty()) {
    const auto t = training_time_json(tokens, q.training, q.cluster, plan, anew);
    std::string note = fmt::format("{} GPU-hours", rate_text(t.at("gpu_hours").get<double>()));
    if (!t.at("usd").is_null()) note += fmt::format(", {} USD", rate_text(t.at("usd").get<double>()));
    tiles.push_back(
        {"for " + tokens + " tokens", fmt::format("{:.1f} days", t.at("days").get<double>()), note});
  } else if (anew.usd_per_million_tokens > 0) {
    tiles.push_back({"price", fmt::format("{:.4f} $", anew.usd_per_million_tokens),
                     "per million tokens, at the list price"});
  }
  return tiles;
}

ReportTable degrees_of(const ParallelPlan& p) {
  ReportTable table{"The layout in full", {{"", false}, {"", false}}};
  const auto add = [&](const char* what, const std::string& value) { table.rows.push_back({what, value}); };
  add("plan key", plan_key(p));
  add("tensor parallel (TP)",
      fmt::format("{}{}", p.tp, p.sequence_parallel ? ", with sequence parallelism" : ""));
  add("pipeline parallel (PP)",
      fmt::format("{}{}", p.pp, p.vp > 1 ? fmt::format(", {} virtual stages each", p.vp) : ""));
  add("context parallel (CP)", fmt::format("{}", p.cp));
  add("data parallel (DP)", fmt::format("{}, ZeRO stage {}", p.dp, p.zero_stage));
  add("micro-batch", fmt::format("{} sequence{}", p.micro_batch, p.micro_batch == 1 ? "" : "s"));
  add("schedule", words(name(p.schedule)));
  add("memory", memory_words(p));
  return table;
}

ReportSection layout_section(const Question& q, const Prediction& anew, const std::string& tokens) {
  const PlanFile& file = *q.file;
  ReportSection out{.title = kLayoutTitle, .lead = {}};
  out.lead = fmt::format("{}, {}.", layout_words(file.plan), memory_words(file.plan));
  out.tiles = tiles_of(file.prediction, anew, q, tokens, file.plan);
  out.tables.push_back(degrees_of(file.plan));
  const double now = anew.step.v, then = file.prediction.step_time_s.value;
  if (std::abs(now / then - 1) > kSame)
    out.notes.push_back(fmt::format(
        "The plan file predicts {}; simulated anew for the charts below it is {}. A calibration, a profile "
        "or "
        "another version made the difference: --calibration and --profile give them to the report too.",
        seconds_text(then), seconds_text(now)));
  if (!anew.fits) out.notes.emplace_back("This layout does not fit into the memory of its GPUs.");
  for (const std::string& note : q.notes) out.notes.push_back(note);
  if (auto text = framework_setting(file.plan, q.training, q.stack); !text.empty())
    out.notes.push_back(std::move(text));
  if (auto text = layout_setting(file.plan, q.model, q.stack); !text.empty())
    out.notes.push_back(std::move(text));
  return out;
}

// Of the plan file, where it holds them: with stragglers and host, and what a calibration made of them.
std::vector<std::pair<std::string, double>> mean_parts(const PlanPrediction& p, const PlannedStep& anew) {
  std::vector<std::pair<std::string, double>> out;
  const std::map<std::string, double> parts =
      p.breakdown_s.empty() ? step_parts(anew.split.mean, anew.prediction) : p.breakdown_s;
  for (const auto& [part, seconds] : parts) out.emplace_back(part_text(part), seconds);
  return out;
}

}  // namespace

std::string title_of(const Question& q) {
  return fmt::format("{} on {} × {}", q.model.name, q.cluster.gpus(), q.cluster.device.name);
}

std::string subtitle_of(const Question& q) {
  return fmt::format("{} parameters; {} node{}, {}; {}; {} sequence{} of {} tokens a step",
                     with_thousands(static_cast<std::uint64_t>(parameter_counts(q.model).total)),
                     q.cluster.nodes, q.cluster.nodes == 1 ? "" : "s", q.cluster.fabric.name, q.stack.name,
                     q.training.global_batch, q.training.global_batch == 1 ? "" : "s", q.training.seq_len);
}

ReportChapter plan_chapter(const std::string& file, const ReportContext& context) {
  QuestionOptions asked;
  asked.plan = file;
  asked.calibration = context.calibration;
  asked.profile = context.profile;
  const Planning planning(read_question(asked, context.presets), context.presets);
  const Question& q = planning.question();
  const Job job = planning.predicted_job();
  const PlanFile& plan = *q.file;
  const PlannedStep anew = planned_step(job, plan.plan);
  ReportChapter out;
  out.title = title_of(q);
  out.subtitle = subtitle_of(q);
  out.key = plan_key(plan.plan);
  out.question =
      question_id(q.model.name, q.cluster.gpus(), q.stack.name, q.training.seq_len, q.training.global_batch);
  out.source = fmt::format("{}: {}, {}", file, plan.provenance.sextant, plan.provenance.created);
  if (!plan.provenance.command.empty())
    out.source += fmt::format(", by {}", fmt::join(plan.provenance.command, " "));
  out.sections.push_back(layout_section(q, anew.prediction, context.tokens));
  out.sections.push_back(memory_section(stages_of(anew.memory), gib(anew.prediction.memory_available)));
  ChapterParts parts{mean_parts(plan.prediction, anew), plan.prediction.step_time_s.value, {}};
  for (const TimeSplit& stage : anew.split.stages) parts.stages.push_back(parts_of(stage));
  out.sections.push_back(time_section(parts));
  out.sections.push_back(timeline_section(anew));
  if (ReportSection section = neighbours_section(job, plan.plan, anew.prediction); !section.tables.empty())
    out.sections.push_back(std::move(section));
  return out;
}

}  // namespace sextant

#include "tools/report/neighbours.hpp"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "core/base/words.hpp"
#include "planner/explain/explain.hpp"
#include "tools/output/recommendation_text.hpp"
#include "tools/report/charts.hpp"
#include "tools/report/quantity_text.hpp"

namespace sextant {
namespace {

struct Neighbour {
  std::string change;
  ParallelPlan plan;
};

// What follows from TP: no sequence parallelism and nothing to overlap without.
void settle_tp(ParallelPlan& p, const ParallelPlan& before) {
  p.sequence_parallel = p.tp > 1 && (before.tp == 1 || before.sequence_parallel);
  p.overlap_tp = p.tp > 1 && before.overlap_tp;
}

using Degree = int ParallelPlan::*;

void leave_virtual_stages(ParallelPlan& p) {
  p.vp = 1;
  p.schedule = PipelineSchedule::one_f_one_b;
}

// Twice of a degree, or half: data parallelism takes up what is left of the GPUs. False where that does not divide.
bool twice(Degree field, ParallelPlan& p) {
  if (p.dp % 2 != 0) return false;
  const ParallelPlan before = p;
  p.*field *= 2;
  p.dp /= 2;
  p.chunks.clear();
  settle_tp(p, before);
  return true;
}
bool half(Degree field, ParallelPlan& p) {
  if (p.*field % 2 != 0) return false;
  const ParallelPlan before = p;
  p.*field /= 2;
  p.dp *= 2;
  p.chunks.clear();
  settle_tp(p, before);
  if (p.pp == 1) leave_virtual_stages(p);
  return true;
}

std::vector<Neighbour> neighbours_of(const ParallelPlan& plan) {
  std::vector<Neighbour> out;
  const auto add = [&](std::string change, const std::function<bool(ParallelPlan&)>& apply) {
    ParallelPlan p = plan;
    if (apply(p) && !(p == plan)) out.push_back({std::move(change), std::move(p)});
  };
  const auto degree = [&](const char* what, Degree field) {
    add(fmt::format("{} {} instead of {}", what, 2 * plan.*field, plan.*field),
        [field](ParallelPlan& p) { return twice(field, p); });
    add(fmt::format("{} {} instead of {}", what, plan.*field / 2, plan.*field),
        [field](ParallelPlan& p) { return half(field, p); });
  };
  degree("TP", &ParallelPlan::tp);
  degree("PP", &ParallelPlan::pp);
  degree("CP", &ParallelPlan::cp);
  if (plan.vp > 1)
    add("no virtual stages", [](ParallelPlan& p) {
      leave_virtual_stages(p);
      p.chunks.clear();
      return true;
    });
  for (const int stage : {plan.zero_stage - 1, plan.zero_stage + 1})
    add(fmt::format("ZeRO-{} instead of ZeRO-{}", stage, plan.zero_stage), [stage](ParallelPlan& p) {
      if (stage < 0 || stage > 3) return false;
      p.zero_stage = stage;
      return true;
    });
  add(fmt::format("micro-batches of {} instead of {}", 2 * plan.micro_batch, plan.micro_batch),
      [](ParallelPlan& p) {
        p.micro_batch *= 2;
        return true;
      });
  add(fmt::format("micro-batches of {} instead of {}", plan.micro_batch / 2, plan.micro_batch),
      [](ParallelPlan& p) {
        if (p.micro_batch % 2 != 0) return false;
        p.micro_batch /= 2;
        return true;
      });
  for (const RecomputeKind kind : {RecomputeKind::none, RecomputeKind::selective, RecomputeKind::full})
    add(fmt::format("{} recomputation", kind == RecomputeKind::none ? "no" : name(kind)),
        [kind](ParallelPlan& p) {
          if (p.recompute.kind == kind) return false;
          p.recompute = {.kind = kind, .layers = -1};
          return true;
        });
  return out;
}

// Without the verdict before it.
std::string cause_of(const Comparison& c) {
  const std::size_t colon = c.text.find(": ");
  return colon == std::string::npos ? "" : words(c.text.substr(colon + 2));
}

}  // namespace

ReportSection neighbours_section(const Job& job, const ParallelPlan& plan, const Prediction& chosen) {
  ReportSection out{.title = kNeighboursTitle, .lead = {}};
  ReportTable table{"The layout with one thing changed, fastest first; what cannot run last",
                    {{"change", false}, {"step"}, {"against this"}, {"GiB"}, {"why", false}}};
  std::vector<ChartBar> bars;
  std::vector<std::pair<double, std::vector<std::string>>> rows;
  constexpr double kLast = 1e300;
  int refused = 0, faster = 0;
  for (const Neighbour& n : neighbours_of(plan)) {
    if (const auto rejection = unlawful(job, n.plan)) {
      rows.push_back({kLast, {n.change, "", "cannot run", "", words(rejection->text)}});
      ++refused;
      continue;
    }
    const PlanMemory memory = plan_memory(job, n.plan);
    const std::string GiB = gib_text(gib(memory.peak));
    if (const auto rejection = too_large(job, memory)) {
      rows.push_back({kLast / 2, {n.change, "", "does not fit", GiB, words(rejection->text)}});
      ++refused;
      continue;
    }
    const Comparison c = compare(job, plan, n.plan);
    rows.push_back(
        {c.slower, {n.change, seconds_text(c.other_step.v), signed_share_text(c.slower), GiB, cause_of(c)}});
    bars.push_back({n.change, 100 * c.slower, signed_share_text(c.slower), c.slower >= 0 ? "red" : "green"});
    if (c.slower < -kTieShare) ++faster;
  }
  std::ranges::stable_sort(rows, {}, &std::pair<double, std::vector<std::string>>::first);
  std::ranges::stable_sort(bars, {}, &ChartBar::value);
  for (auto& [slower, cells] : rows) table.rows.push_back(std::move(cells));
  if (table.rows.empty()) return out;
  out.lead = fmt::format("Of {} layouts that differ in one thing, {} cannot run or do not fit", rows.size(),
                         refused);
  out.lead += faster == 0 ? " and none of the others is clearly faster."
                          : fmt::format(" and {} {} faster; memory and risk speak against {}.", faster,
                                        faster == 1 ? "is" : "are", faster == 1 ? "it" : "them");
  if (!bars.empty())
    out.chart =
        bars_chart(fmt::format("How much longer a step takes with one thing changed, in percent of {}",
                               seconds_text(chosen.step.v)),
                   "%", bars);
  out.tables.push_back(std::move(table));
  out.table_open = true;
  return out;
}

}  // namespace sextant

#include "tools/output/layout_table.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "planner/simulation/stage_memory.hpp"
#include "tools/inputs/planning.hpp"

namespace sextant {

namespace {
constexpr std::size_t kStepColumn = 8, kOverflowColumn = 14, kOwnColumns = 15;

std::vector<Column> columns(const std::vector<Column>& before, const std::vector<Column>& after) {
  std::vector<Column> all = before;
  all.insert(all.end(), {{"TP", Align::right},
                         {"PP", Align::right},
                         {"VP", Align::right, 5},
                         {"CP", Align::right, 6},
                         {"DP", Align::right},
                         {"ZeRO", Align::right},
                         {"MBS", Align::right},
                         {"recompute", Align::left, 4},
                         {"step s", Align::right},
                         {"+- %", Align::right, 7},
                         {"tok/s/GPU", Align::right, 1},
                         {"TFLOP/s/GPU", Align::right, 9},
                         {"MFU %", Align::right, 2},
                         {"peak GiB", Align::right},
                         {"OOM %", Align::right}});
  all.insert(all.end(), after.begin(), after.end());
  all.push_back({"plan key", Align::left, 8});
  return all;
}
}  // namespace

LayoutTable::LayoutTable(const std::vector<Column>& before, const std::vector<Column>& after)
    : before_(before.size()), after_(after.size()), columns_(columns(before, after)) {}

void LayoutTable::add(std::vector<std::string> cells, const RankedPlan& r,
                      const std::vector<std::string>& after, bool bold) {
  const auto& plan = r.plan;
  const auto& p = r.prediction;
  const auto number = [](int n) { return fmt::format("{}", n); };
  cells.insert(cells.end(),
               {number(plan.tp), number(plan.pp), number(plan.vp), number(plan.cp), number(plan.dp),
                number(plan.zero_stage), number(plan.micro_batch), recompute_text(plan.recompute),
                fmt::format("{:.3f}", p.step.v), fmt::format("{:.0f}", 100 * (p.step_upper.v / p.step.v - 1)),
                fmt::format("{:.0f}", p.tokens_per_s_gpu), fmt::format("{:.1f}", p.model_tflops_gpu),
                fmt::format("{:.1f}", 100 * p.mfu), fmt::format("{:.1f}", gib(p.memory.peak)),
                fmt::format("{:.0f}", 100 * p.chance_of_overflow)});
  cells.insert(cells.end(), after.begin(), after.end());
  cells.push_back(plan_key(plan));
  rows_.push_back({std::move(cells), bold});
  may_overflow_ = may_overflow_ || p.chance_of_overflow >= kSurelyFits;
}

void LayoutTable::add_empty(std::vector<std::string> cells, const std::string& why) {
  cells.resize(before_ + kOwnColumns + after_ + 1);
  cells[before_ + kStepColumn] = why;  // a column that is always shown
  rows_.push_back({std::move(cells), false});
}

std::string LayoutTable::render(const Terminal& terminal, bool wide) const {
  std::vector<Column> columns = columns_;
  const auto overflow = static_cast<std::ptrdiff_t>(before_ + kOverflowColumn);
  const bool without = !wide && !may_overflow_;
  if (without) columns.erase(columns.begin() + overflow);
  Table table(columns);
  for (Row row : rows_) {
    if (without) row.cells.erase(row.cells.begin() + overflow);
    table.add_row(std::move(row.cells));
    if (row.bold) table.emphasize_last_row();
  }
  return table.render(terminal, wide);
}

std::string slower_text(const RankedPlan& r, bool first) {
  return first ? "" : r.tie ? "tie" : fmt::format("{:.1f}", 100 * r.slower);
}

nlohmann::ordered_json ranked_json(const RankedPlan& r) {
  nlohmann::ordered_json j = prediction_json(r.plan, r.prediction);
  j["slower_share"] = r.slower;
  j["tie"] = r.tie;
  j["gained_by_rebalancing_share"] = r.before_moves ? 1 - r.simulated / *r.before_moves : 0.0;
  j["gained_by_refinement_share"] =
      r.before_refinement ? 1 - r.before_moves.value_or(r.simulated) / *r.before_refinement : 0.0;
  return j;
}

}  // namespace sextant

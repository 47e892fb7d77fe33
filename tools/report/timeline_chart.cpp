#include "tools/report/timeline_chart.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>

#include <fmt/format.h>

namespace sextant {
namespace {

enum class BlockOf : std::uint8_t {
  forward,
  recompute,
  backward,
  weight,
  optimizer,
  reduce,
  gather,
  copies,
  waits
};
struct Kind {
  const char *name, *tone;
};
constexpr std::array<Kind, 9> kKinds = {{{"forward", "blue"},
                                         {"recomputed forward", "sky"},
                                         {"backward", "green"},
                                         {"weight gradients", "green hatch"},
                                         {"optimizer", "orange"},
                                         {"gradient reduction", "red"},
                                         {"parameter gather", "purple"},
                                         {"copies from and to the host", "yellow"},
                                         {"transfers between stages", "grey"}}};

BlockOf kind_of(const Op& op) {
  switch (op.role) {
    case OpRole::param_gather:
      return BlockOf::gather;
    case OpRole::grad_reduce:
    case OpRole::grad_replica_reduce:
    case OpRole::tied_reduce:
    case OpRole::norm_reduce:
    case OpRole::sp_reduce:
      return BlockOf::reduce;
    case OpRole::copy_out:
    case OpRole::copy_in:
      return BlockOf::copies;
    case OpRole::send:
      return BlockOf::waits;
    case OpRole::grad_accumulate:
    case OpRole::norm_partial:
    case OpRole::update:
    case OpRole::zero_grad:
      return BlockOf::optimizer;
    case OpRole::block:
    case OpRole::tp_gather:
    case OpRole::tp_scatter:
    case OpRole::tp_reduce:
    case OpRole::cp_gather:
    case OpRole::cp_scatter:
      break;
  }
  switch (op.pass) {
    case Pass::recompute:
      return BlockOf::recompute;
    case Pass::backward:
    case Pass::backward_input:
      return BlockOf::backward;
    case Pass::backward_weight:
      return BlockOf::weight;
    case Pass::none:
    case Pass::forward:
      break;
  }
  return BlockOf::forward;
}

// Rows of a stage, in the order in which they lie: its compute lane, and what runs beside.
enum class RowOf : std::uint8_t { compute, reduce, gather, host };
constexpr std::size_t kRows = 4;
constexpr std::array<const char*, kRows> kRowNames = {"compute", "gradient reduction", "parameter gather",
                                                      "host"};

std::optional<RowOf> row_of(LaneKind lane) {
  switch (lane) {
    case LaneKind::compute:
      return RowOf::compute;
    case LaneKind::grad_reduce:
      return RowOf::reduce;
    case LaneKind::param_gather:
      return RowOf::gather;
    case LaneKind::device_to_host:
    case LaneKind::host_to_device:
    case LaneKind::host:
      return RowOf::host;
    default:
      return std::nullopt;
  }
}

struct Block {
  double start = 0, end = 0;
  BlockOf kind = BlockOf::forward;
  int micro_batch = -1, chunk = -1;
};
using RowBlocks = std::vector<Block>;

// `gap`: seconds up to which blocks that do the same are one.
void add_block(RowBlocks& row, const Block& b, double gap) {
  if (!row.empty()) {
    Block& last = row.back();
    const bool same = last.kind == b.kind && last.micro_batch == b.micro_batch && last.chunk == b.chunk;
    if (same && b.start - last.end <= gap) {
      last.end = std::max(last.end, b.end);
      return;
    }
  }
  row.push_back(b);
}

std::vector<std::array<RowBlocks, kRows>> rows_of(const ExecutionGraph& g, const Timeline& t, double gap) {
  std::vector<std::array<RowBlocks, kRows>> stages(static_cast<std::size_t>(g.plan.pp));
  for (OpId id = 0; id < g.ops.size(); ++id) {
    const Op& op = g.ops[id];
    const Span& span = t.spans[id];
    if (!(span.end > span.start)) continue;
    for (const LaneId lane : op.lanes) {
      if (lane == kNoLane) continue;
      const auto row = row_of(g.lanes[lane].kind);
      if (!row) continue;
      const bool slot = *row == RowOf::compute && op.microbatch != kNone16;
      add_block(stages[g.lanes[lane].stage][static_cast<std::size_t>(*row)],
                {span.start, span.end, kind_of(op), slot ? op.microbatch : -1,
                 slot && g.plan.vp > 1 ? static_cast<int>(op.chunk) : -1},
                gap);
    }
  }
  for (auto& stage : stages)
    for (RowBlocks& row : stage) std::ranges::stable_sort(row, {}, &Block::start);
  return stages;
}

Chart blocks_json(const RowBlocks& row, double step) {
  Chart out = Chart::array();
  const auto ticks = [&](double seconds) -> std::int64_t { return std::llround(1e6 * seconds / step); };
  std::int64_t at = 0;
  for (const Block& b : row) {
    const std::int64_t start = ticks(b.start), end = std::max(start + 1, ticks(b.end));
    for (const std::int64_t number : {start - at, end - start, static_cast<std::int64_t>(b.kind)})
      out.push_back(number);
    out.push_back(b.micro_batch);
    out.push_back(b.chunk);
    at = end;
  }
  return out;
}

}  // namespace

Chart timeline_chart(const std::string& about, const ExecutionGraph& g,
                     const std::vector<ShownTimeline>& timelines) {
  double step = 0;
  for (const ShownTimeline& shown : timelines) step = std::max(step, shown.timeline->makespan().v);
  if (!(step > 0)) return nullptr;
  constexpr double kGap = 2e-4;  // of the step: less than a pixel of what is seen at first
  Chart rows = Chart::array(), kinds = Chart::array();
  std::vector<std::vector<std::array<RowBlocks, kRows>>> all;
  for (const ShownTimeline& shown : timelines) all.push_back(rows_of(g, *shown.timeline, kGap * step));
  for (std::size_t stage = 0; stage < static_cast<std::size_t>(g.plan.pp); ++stage)
    for (std::size_t i = 0; i < all.size(); ++i)
      for (std::size_t row = 0; row < kRows; ++row) {
        const RowBlocks& blocks = all[i][stage][row];
        if (blocks.empty()) continue;
        rows.push_back({{"stage", stage},
                        {"of", timelines[i].name},
                        {"lane", kRowNames[row]},
                        {"thin", row != 0},
                        {"blocks", blocks_json(blocks, step)}});
      }
  for (const Kind& kind : kKinds) kinds.push_back({{"name", kind.name}, {"tone", kind.tone}});
  return {{"kind", "timeline"}, {"about", about}, {"step_s", step}, {"kinds", kinds}, {"rows", rows}};
}

}  // namespace sextant

#include "core/timeline/breakdown.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

namespace sextant {
namespace {

using C = TimeCategory;
constexpr OpId kNone = std::numeric_limits<OpId>::max();

double& at(TimeSplit& split, C category) { return split[static_cast<std::size_t>(category)]; }

C category_of(const Op& op) {
  switch (op.role) {
    case OpRole::block:
      return op.pass == Pass::recompute ? C::recompute : C::compute;
    case OpRole::tp_gather:
    case OpRole::tp_scatter:
    case OpRole::tp_reduce:
    case OpRole::sp_reduce:
      return C::exposed_tp;
    case OpRole::cp_gather:
    case OpRole::cp_scatter:
      return C::exposed_cp;
    case OpRole::send:
      return C::exposed_pp;
    case OpRole::param_gather:
    case OpRole::grad_reduce:
    case OpRole::grad_replica_reduce:
    case OpRole::tied_reduce:
    case OpRole::norm_reduce:
      return C::exposed_dp;
    case OpRole::copy_out:
    case OpRole::copy_in:
      return C::offload;
    case OpRole::grad_accumulate:
    case OpRole::norm_partial:
    case OpRole::update:
    case OpRole::zero_grad:
      break;
  }
  return C::optimizer;
}

bool on(LaneId lane, LaneKind kind) {
  return lane != kNoLane && lane % kLaneKinds == static_cast<LaneId>(kind);
}

// Of an operation that the compute lane waits for: of updates only the host's share runs elsewhere, and what adds
// gradients elsewhere is the end of a reduction, or the host's.
C category_of_wait(const Op& op) {
  if (op.role == OpRole::update || on(op.lanes[0], LaneKind::host)) return C::offload;
  return op.role == OpRole::grad_accumulate ? C::exposed_dp : category_of(op);
}

// By operation, those that its lanes run before it.
std::vector<std::array<OpId, 2>> lane_predecessors(const ExecutionGraph& g) {
  std::vector<std::array<OpId, 2>> out(g.ops.size(), {kNone, kNone});
  std::vector<OpId> last(g.lanes.size(), kNone);
  for (std::size_t i = 0; i < g.ops.size(); ++i)
    for (std::size_t l = 0; l < 2; ++l)
      if (const LaneId lane = g.ops[i].lanes[l]; lane != kNoLane)
        out[i][l] = std::exchange(last[lane], static_cast<OpId>(i));
  return out;
}

// Where a stage's time is put.
struct StageTime {
  TimeSplit& split;
  std::vector<double>& by_work;
  void add(C category, const Op& op, double seconds) {
    at(split, category) += seconds;
    by_work[op.work] += seconds;
  }
};

struct Waits {
  const ExecutionGraph& g;
  const Timeline& t;
  std::vector<std::array<OpId, 2>> before = lane_predecessors(g);

  double end_of(OpId op) const { return op == kNone ? 0.0 : t.spans[op].end; }
  OpId later(OpId a, OpId b) const { return a == kNone || (b != kNone && end_of(b) > end_of(a)) ? b : a; }
  OpId last_dependency(const Op& op) const {
    OpId out = kNone;
    for (const OpId dep : g.deps_of(op)) out = later(out, dep);
    return out;
  }

  // Time in which a stage's compute lane waited for the end of `binding`. What binds that is what ended last before it,
  // and so on: each has the part of the wait in which it was next.
  void add(OpId binding, std::size_t stage, double begin, double end, StageTime time) const {
    if (end_of(binding) <= begin) binding = kNone;
    while (end > begin && binding != kNone) {
      const Op& producer = g.ops[binding];
      if (producer.role == OpRole::send || producer.stage != stage) {
        // Of the wait for another stage only the transfer itself is communication.
        const double moving =
            producer.role == OpRole::send ? std::max(0.0, end - std::max(begin, t.spans[binding].start)) : 0;
        time.add(C::exposed_pp, producer, moving);
        end -= moving;
        break;
      }
      OpId earlier = last_dependency(producer);
      for (const OpId lane : before[binding]) earlier = later(earlier, lane);
      const double from = std::clamp(end_of(earlier), begin, end);
      time.add(category_of_wait(producer), producer, end - from);
      end = from;
      binding = earlier;
    }
    at(time.split, C::bubble) += end - begin;
  }
};

}  // namespace

std::string_view name(TimeCategory c) {
  constexpr std::string_view names[kTimeCategories] = {"compute",    "recompute",  "exposed_tp", "exposed_cp",
                                                       "exposed_pp", "exposed_dp", "optimizer",  "offload",
                                                       "bubble",     "imbalance"};
  return names[static_cast<std::size_t>(c)];
}

Breakdown breakdown(const ExecutionGraph& g, const Timeline& t) {
  Breakdown out;
  out.step = t.makespan();
  const std::size_t stages = g.lanes.size() / kLaneKinds;
  out.stages.resize(stages);
  out.by_work.resize(g.works.size());
  const auto time_of = [&](std::size_t stage) { return StageTime{out.stages[stage], out.by_work}; };
  const Waits waits{g, t};
  std::vector<OpId> last(stages, kNone);  // of all lanes
  std::vector<double> clock(stages, 0.0);
  for (std::size_t i = 0; i < g.ops.size(); ++i) {
    const Op& op = g.ops[i];
    last[op.stage] = waits.later(last[op.stage], static_cast<OpId>(i));
    for (const LaneId lane : op.lanes) {
      if (!on(lane, LaneKind::compute)) continue;
      const std::size_t s = lane / kLaneKinds;
      const Span span = t.spans[i];
      if (span.start > clock[s]) waits.add(waits.last_dependency(op), s, clock[s], span.start, time_of(s));
      // Measured spans may overlap by clock error; count no instant twice.
      time_of(s).add(category_of(op), op, std::max(0.0, span.end - std::max(span.start, clock[s])));
      clock[s] = std::max(clock[s], span.end);
    }
  }
  double heaviest = 0;
  for (std::size_t s = 0; s < stages; ++s) {
    // Behind its last computation: what other lanes of the stage still do, then what other stages do.
    if (const double end = waits.end_of(last[s]); end > clock[s]) {
      waits.add(last[s], s, clock[s], end, time_of(s));
      clock[s] = end;
    }
    at(out.stages[s], C::bubble) += std::max(0.0, out.step.v - clock[s]);
    heaviest = std::max(heaviest, out.step.v - at(out.stages[s], C::bubble));
  }
  for (TimeSplit& stage : out.stages) {
    const double idle = at(stage, C::bubble), busy = out.step.v - idle;
    at(stage, C::imbalance) = std::min(idle, heaviest - busy);
    at(stage, C::bubble) = idle - at(stage, C::imbalance);
    for (std::size_t c = 0; c < stage.size(); ++c) out.mean[c] += stage[c] / static_cast<double>(stages);
  }
  for (double& seconds : out.by_work) seconds /= static_cast<double>(stages);
  return out;
}

}  // namespace sextant

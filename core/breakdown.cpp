#include "core/breakdown.hpp"

#include <algorithm>
#include <numeric>

namespace sextant {
namespace {

using C = TimeCategory;

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

// Time in which a stage's compute lane waited for `op` from `begin` on: what binds is the dependency that ended last.
void add_wait(const ExecutionGraph& g, const Timeline& t, const Op& op, double begin, double end,
              TimeSplit& split) {
  const OpId* binding = nullptr;
  const auto deps = g.deps_of(op);
  for (const OpId& dep : deps)
    if (!binding || t.spans[dep].end > t.spans[*binding].end) binding = &dep;
  if (!binding || t.spans[*binding].end <= begin) {
    at(split, C::bubble) += end - begin;
    return;
  }
  const Op& producer = g.ops[*binding];
  const bool crosses_stages = producer.role == OpRole::send || producer.stage != op.stage;
  if (!crosses_stages) {
    C category = category_of(producer);
    if (producer.role == OpRole::update)
      category = C::offload;  // only the host's share runs off the compute lane
    if (producer.role == OpRole::grad_accumulate) category = C::exposed_dp;  // the end of a reduction
    at(split, category) += end - begin;
    return;
  }
  // Of the wait for another stage only the transfer itself is communication.
  const double moving =
      producer.role == OpRole::send ? std::max(0.0, end - std::max(begin, t.spans[*binding].start)) : 0;
  at(split, C::exposed_pp) += moving;
  at(split, C::bubble) += end - begin - moving;
}

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
  std::vector<double> clock(stages, 0.0);
  for (std::size_t i = 0; i < g.ops.size(); ++i) {
    const Op& op = g.ops[i];
    for (const LaneId lane : op.lanes) {
      if (lane == kNoLane || lane % kLaneKinds != static_cast<int>(LaneKind::compute)) continue;
      const std::size_t s = lane / kLaneKinds;
      const Span span = t.spans[i];
      if (span.start > clock[s]) add_wait(g, t, op, clock[s], span.start, out.stages[s]);
      // Measured spans may overlap by clock error; count no instant twice.
      at(out.stages[s], category_of(op)) += std::max(0.0, span.end - std::max(span.start, clock[s]));
      clock[s] = std::max(clock[s], span.end);
    }
  }
  double heaviest = 0;
  for (std::size_t s = 0; s < stages; ++s) {
    at(out.stages[s], C::bubble) += std::max(0.0, out.step.v - clock[s]);
    heaviest = std::max(heaviest, out.step.v - at(out.stages[s], C::bubble));
  }
  for (TimeSplit& stage : out.stages) {
    const double idle = at(stage, C::bubble), busy = out.step.v - idle;
    at(stage, C::imbalance) = std::min(idle, heaviest - busy);
    at(stage, C::bubble) = idle - at(stage, C::imbalance);
    for (std::size_t c = 0; c < stage.size(); ++c) out.mean[c] += stage[c] / static_cast<double>(stages);
  }
  return out;
}

}  // namespace sextant

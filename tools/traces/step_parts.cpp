#include "tools/traces/step_parts.hpp"

#include <algorithm>
#include <numeric>
#include <string>
#include <type_traits>
#include <variant>

#include "core/base/median.hpp"
#include "core/base/words.hpp"
#include "core/graph/op_groups.hpp"

namespace sextant {
namespace {

double& at(StepParts& parts, StepPart part) { return parts[static_cast<std::size_t>(part)]; }
double of(const TimeSplit& split, TimeCategory category) { return split[static_cast<std::size_t>(category)]; }

StepPart exposed_part(GroupAxis axis) {
  constexpr std::array kParts = {StepPart::exposed_tp, StepPart::exposed_cp, StepPart::exposed_pp,
                                 StepPart::exposed_dp, StepPart::exposed_unknown};
  return kParts[static_cast<std::size_t>(axis)];
}

StepAccount account_of(const RankTrace& trace, const StepTime& step, const GroupAxes& axes) {
  constexpr std::array kComputeParts = {StepPart::gemm, StepPart::attention, StepPart::element_wise,
                                        StepPart::optimizer, StepPart::other_kernels};
  StepAccount out;
  out.step_s = step.step_s;
  for (std::size_t c = 0; c < kComputeClasses; ++c) at(out.parts, kComputeParts[c]) += step.compute_s[c];
  at(out.parts, StepPart::element_wise) += step.device_copy_s;
  at(out.parts, StepPart::offload) += step.host_copy_s;
  at(out.parts, StepPart::bubble) += step.wait_idle_s;
  at(out.parts, StepPart::host) += step.host_idle_s;
  for (const CollectiveTime& c : step.collectives) {
    const GroupAxis axis = axes.axis_of(trace.groups[c.group], c.collective, trace.rank);
    at(out.parts, exposed_part(axis)) += c.exposed_s;
    at(out.parts, axis == GroupAxis::pp ? StepPart::bubble : StepPart::stragglers) += c.exposed_wait_s;
    AxisCollectives& sum = out.collectives[{axis, c.collective}];
    sum.count += static_cast<double>(c.count);
    sum.seconds += c.total_s;
  }
  return out;
}

void add_share(StepAccount& sum, const StepAccount& one, double share) {
  sum.step_s += share * one.step_s;
  sum.attention_forward += share * one.attention_forward;
  for (std::size_t p = 0; p < sum.parts.size(); ++p) sum.parts[p] += share * one.parts[p];
  for (const auto& [key, c] : one.collectives) {
    AxisCollectives& to = sum.collectives[key];
    to.count += share * c.count;
    to.seconds += share * c.seconds;
  }
}

// Of a block's time the shares of its products, attention cores and passes.
std::array<double, 3> kernel_shares(const BlockWork& work, const AnalyticCostModel& cost) {
  std::array<double, 3> out{};
  for (const Kernel& kernel : kernels_of(work, cost.stack(), cost.machine().constants))
    out[kernel.index()] += cost.price(kernel).duration.v;
  const double all = std::accumulate(out.begin(), out.end(), 0.0);
  if (all <= 0) return {0, 0, 1};
  for (double& share : out) share /= all;
  return out;
}
static_assert(std::is_same_v<std::variant_alternative_t<0, Kernel>, Gemm> &&
              std::is_same_v<std::variant_alternative_t<1, Kernel>, AttentionCore>);

GroupAxis axis_of_op(const Op& op) {
  if (op.role == OpRole::send) return GroupAxis::pp;
  const GroupKind kind = group_kind(op);
  return kind == GroupKind::tp ? GroupAxis::tp : kind == GroupKind::cp ? GroupAxis::cp : GroupAxis::dp;
}

std::optional<CollectiveName> collective_of_work(const Work& work) {
  if (std::holds_alternative<TransferWork>(work)) return CollectiveName::send_recv;
  const auto* collective = std::get_if<CollectiveWork>(&work);
  if (!collective) return std::nullopt;
  switch (collective->kind) {
    case CollectiveKind::all_reduce:
      return CollectiveName::all_reduce;
    case CollectiveKind::all_gather:
      return CollectiveName::all_gather;
    case CollectiveKind::reduce_scatter:
      break;
  }
  return CollectiveName::reduce_scatter;
}

// The other end of a transfer runs a kernel too.
bool takes_part(const Op& op, int stage) {
  if (op.stage == stage) return true;
  return op.lanes[1] != kNoLane && op.lanes[1] / kLaneKinds == stage;
}

StepAccount account_of_stage(const ExecutionGraph& g, const Timeline& t, const TimeSplit& split, int stage,
                             const std::vector<std::array<double, 3>>& shares, bool by_operation) {
  StepAccount out;
  std::array<double, 3> compute{};
  for (std::size_t i = 0; i < g.ops.size(); ++i) {
    const Op& op = g.ops[i];
    if (!takes_part(op, stage)) continue;
    const double seconds = t.spans[i].end - t.spans[i].start;
    if (op.role == OpRole::block) {
      for (std::size_t k = 0; k < compute.size(); ++k) compute[k] += seconds * shares[op.work][k];
      const auto& block = std::get<BlockWork>(g.works[op.work]);
      const bool repeats = block.recompute_core && op.pass != Pass::backward_weight && !by_operation;
      if (block.kind == BlockKind::attention && (op.pass <= Pass::recompute || repeats))
        ++out.attention_forward;
    }
    if (const auto kind = collective_of_work(g.works[op.work])) {
      AxisCollectives& sum = out.collectives[{axis_of_op(op), *kind}];
      ++sum.count;
      sum.seconds += seconds;
    }
  }
  // Measured spans overlap by clock error; these are held to what the compute lane had.
  const double whole = of(split, TimeCategory::compute) + of(split, TimeCategory::recompute);
  const double all = std::accumulate(compute.begin(), compute.end(), 0.0);
  const double scale = all > 0 ? whole / all : 0;
  at(out.parts, StepPart::gemm) = scale * compute[0];
  at(out.parts, StepPart::attention) = scale * compute[1];
  at(out.parts, StepPart::element_wise) = scale * compute[2];
  at(out.parts, StepPart::optimizer) = of(split, TimeCategory::optimizer);
  at(out.parts, StepPart::exposed_tp) = of(split, TimeCategory::exposed_tp);
  at(out.parts, StepPart::exposed_cp) = of(split, TimeCategory::exposed_cp);
  at(out.parts, StepPart::exposed_pp) = of(split, TimeCategory::exposed_pp);
  at(out.parts, StepPart::exposed_dp) = of(split, TimeCategory::exposed_dp);
  at(out.parts, StepPart::offload) = of(split, TimeCategory::offload);
  at(out.parts, StepPart::bubble) = of(split, TimeCategory::bubble) + of(split, TimeCategory::imbalance);
  out.step_s = sum(out.parts);
  return out;
}

// Kernels of attention cores that began in the step and go forward, by the words of their names.
double forward_cores(const RankTrace& trace, const StepWindow& step) {
  std::vector<char> forward(trace.names.size(), 0);
  for (std::size_t n = 0; n < forward.size(); ++n) {
    const std::string small = lower(trace.names[n]);
    const auto has = [&](const char* word) { return small.find(word) != small.npos; };
    forward[n] = (has("fwd") || has("fprop") || has("forward")) && !has("bwd") && !has("backward") &&
                 !has("combine") && !has("prepare");
  }
  return static_cast<double>(std::ranges::count_if(trace.activities, [&](const DeviceActivity& a) {
    return a.kind == KernelClass::attention && forward[a.name] && a.begin_ns >= step.begin_ns &&
           a.begin_ns < step.end_ns;
  }));
}

}  // namespace

double sum(const StepParts& parts) { return std::accumulate(parts.begin(), parts.end(), 0.0); }

TracedAccount traced_account(const TracedJob& job, const GroupAxes& axes) {
  TracedAccount out;
  for (std::size_t begin = 0; begin < job.ranks.size();) {
    std::size_t end = begin;
    std::vector<std::pair<const RankTrace*, StepWindow>> steps;
    for (; end < job.ranks.size() && job.ranks[end].trace.rank == job.ranks[begin].trace.rank; ++end)
      for (const StepWindow& step : job.ranks[end].steps) steps.emplace_back(&job.ranks[end].trace, step);
    std::vector<double> lengths;
    for (const auto& [trace, step] : steps) lengths.push_back(step.seconds());
    const double middle = lower_median(lengths);
    const auto found = std::ranges::find(lengths, middle);
    const auto& [trace, step] = steps[static_cast<std::size_t>(found - lengths.begin())];
    RankAccount rank{.rank = trace->rank,
                     .steps = steps.size(),
                     .shortest_s = *std::ranges::min_element(lengths),
                     .longest_s = *std::ranges::max_element(lengths),
                     .median = step_time(*trace, step),
                     .account = {}};
    rank.account = account_of(*trace, rank.median, axes);
    rank.account.attention_forward = forward_cores(*trace, step);
    out.ranks.push_back(std::move(rank));
    begin = end;
  }
  for (const RankAccount& rank : out.ranks)
    add_share(out.mean, rank.account, 1.0 / static_cast<double>(out.ranks.size()));
  return out;
}

StepAccount predicted_account(const ExecutionGraph& graph, const Timeline& timeline, const Breakdown& split,
                              const AnalyticCostModel& cost, const std::vector<int>& stages,
                              OutsideOperations outside) {
  std::vector<std::array<double, 3>> shares(graph.works.size());
  for (std::size_t w = 0; w < shares.size(); ++w)
    if (const auto* block = std::get_if<BlockWork>(&graph.works[w])) shares[w] = kernel_shares(*block, cost);
  StepAccount out;
  for (const int stage : stages) {
    const StepAccount one = account_of_stage(graph, timeline, split.stages[static_cast<std::size_t>(stage)],
                                             stage, shares, cost.stack().rules.selective_by_operation);
    add_share(out, one, 1.0 / static_cast<double>(stages.size()));
  }
  at(out.parts, StepPart::stragglers) += outside.stragglers_s;
  at(out.parts, StepPart::host) += outside.host_s;
  out.step_s += outside.stragglers_s + outside.host_s;
  return out;
}

}  // namespace sextant

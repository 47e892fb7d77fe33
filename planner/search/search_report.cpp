// What a report counts, and how layouts are told apart and put in order.
#include <cmath>
#include <numeric>

#include "planner/search/search.hpp"

namespace sextant {

std::uint64_t OutcomeCounts::total() const {
  return std::accumulate(by_outcome.begin(), by_outcome.end(), std::uint64_t{0});
}
OutcomeCounts& OutcomeCounts::operator+=(const OutcomeCounts& o) {
  for (std::size_t i = 0; i < by_outcome.size(); ++i) by_outcome[i] += o.by_outcome[i];
  return *this;
}

Family family_of(const ParallelPlan& p) {
  return {p.tp, p.cp, p.pp, p.vp, p.zero_stage, p.micro_batch, p.schedule, p.recompute.kind};
}

std::array<int, 14> effort_of(const ParallelPlan& p) {
  const ParallelPlan plain;
  const int percent = static_cast<int>(std::lround(100 * p.optimizer_offload));
  const auto some = [](bool yes) { return yes ? 1 : 0; };
  return {
      some(p.tp > 1) + some(p.cp > 1) + some(p.pp > 1),
      p.zero_stage,
      some(percent > 0) + some(p.parameter_offload) + some(p.activation_offload > 0),
      percent + p.activation_offload,
      static_cast<int>(p.recompute.kind),
      p.tp,
      p.pp,
      p.cp,
      p.vp,
      static_cast<int>(p.schedule),
      some(p.axis_order != plain.axis_order),
      p.shard_degree,
      some(p.bucket_elements != 0) + p.last_bucket_split + some(p.offload_horizon != plain.offload_horizon),
      some(p.overlap_tp) + some(!p.overlap_grad_reduce) + some(!p.overlap_param_gather)};
}

}  // namespace sextant

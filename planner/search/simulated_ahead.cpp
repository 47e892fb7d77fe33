#include "planner/search/simulated_ahead.hpp"

#include <algorithm>

namespace sextant {
namespace {

// The fields that are decided below a level as another member has them; those above are compared.
bool is_below(const Node& node, Choice c, const SearchCache::Classes& classes) {
  const Choice& at = node.choice;
  if (node.level == Level::placement)
    for (const auto& group : classes.members)
      if (std::ranges::count(group, c.axis_order) > 0) c.axis_order = group.front();
  if (node.level < Level::placement) {
    c.micro_batch = at.micro_batch;
    c.axis_order = at.axis_order;
  }
  if (node.level < Level::sharding) {
    c.zero_stage = at.zero_stage;
    c.shard_degree = at.shard_degree;
  }
  if (node.level < Level::kernels) {
    c.sequence_parallel = at.sequence_parallel;
    c.overlap_tp = at.overlap_tp;
    c.recompute = at.recompute;
  }
  if (node.level < Level::pipeline) {
    c.form = at.form;
    c.split = at.split;
  }
  if (node.level < Level::offload) {
    c.activation_offload = at.activation_offload;
    c.optimizer_offload = at.optimizer_offload;
    c.parameter_offload = at.parameter_offload;
  }
  if (node.level < Level::full) {
    c.bucket_elements = at.bucket_elements;
    c.last_bucket_split = at.last_bucket_split;
    c.overlap_grad_reduce = at.overlap_grad_reduce;
    c.overlap_param_gather = at.overlap_param_gather;
  }
  return c == at;
}

}  // namespace

std::uint64_t SimulatedAhead::below(const Node& node, const SearchSpace& space, SearchCache& cache) const {
  const auto found = of_division_.find(division(node.choice));
  if (found == of_division_.end() || found->second.empty()) return 0;
  const auto& classes = cache.classes(plan_of(space, node.choice));
  const auto n =
      std::ranges::count_if(found->second, [&](const Choice& c) { return is_below(node, c, classes); });
  return std::min(node.members, static_cast<std::uint64_t>(n));
}

}  // namespace sextant

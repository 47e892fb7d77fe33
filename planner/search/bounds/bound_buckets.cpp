// What the bounds look at of a stage's buckets of gradients.
#include <algorithm>

#include "core/graph/parameter_layout.hpp"
#include "planner/search/bounds/bound.hpp"

namespace sextant {

std::vector<StageBuckets> stage_buckets(const Job& job, const ParallelPlan& plan) {
  const std::vector<LayerRange> ranges = layer_ranges(plan, job.model.n_layers);
  const ParameterKind last_used = layer_parameters(job.model).front();
  std::vector<StageBuckets> out;
  const auto as_before = [&](int stage) {
    if (stage < 2 || stage + 1 == plan.pp) return false;
    for (std::size_t i = static_cast<std::size_t>(stage); i < ranges.size();
         i += static_cast<std::size_t>(plan.pp))
      if (ranges[i].count != ranges[i - 1].count) return false;
    return true;
  };
  for (int stage = 0; stage < plan.pp; ++stage) {
    if (as_before(stage)) {
      out.push_back(StageBuckets(out.back()));
      continue;
    }
    const ParameterLayout layout = parameter_layout(job.model, plan, job.stack.rules, stage);
    StageBuckets& mine = out.emplace_back();
    mine.shards = layout.shards;
    mine.padded = layout.padded;
    mine.elements = layout.elements;
    for (const Bucket& bucket : layout.buckets) {
      const Parameter& first = layout.parameters[bucket.first];
      const Parameter& last = layout.parameters[bucket.first + bucket.count - 1];
      BucketSize size{bucket.elements, layout.slice(bucket), 0};
      for (std::uint32_t k = bucket.first; k < bucket.first + bucket.count; ++k)
        if (gradient_writer(layout.parameters[k].kind) == BlockKind::norm)
          size.norms += layout.parameters[k].elements;
      const auto same = std::find(mine.sizes.begin(), mine.sizes.end(), size);
      BucketView& view = mine.buckets.emplace_back();
      view.size = static_cast<std::uint16_t>(same - mine.sizes.begin());
      if (same == mine.sizes.end()) mine.sizes.push_back(size);
      view.first = first.kind;
      view.last = last.kind;
      view.first_chunk = static_cast<std::uint16_t>(first.chunk / plan.pp);
      view.last_chunk = static_cast<std::uint16_t>(last.chunk / plan.pp);
      const LayerRange range = ranges[last.chunk];
      int before = 0;
      if (last.kind == ParameterKind::embedding)
        before = range.count;
      else if (last.kind != ParameterKind::head && last.kind != ParameterKind::norm_final)
        before = std::max(0, range.first + range.count - 1 - static_cast<int>(last.layer));
      view.before = static_cast<std::uint16_t>(before);
      const bool with_head = last.kind == ParameterKind::head || last.kind == ParameterKind::norm_final;
      const StateTimes::Reduction point{view.last_chunk, view.before, with_head,
                                        last.kind == ParameterKind::embedding};
      if (mine.points.empty() || !mine.points.back().is_ready_with(point)) mine.points.push_back(point);
      view.point = static_cast<std::uint16_t>(mine.points.size() - 1);
    }
    mine.last_used = last_used;
    mine.layers = static_cast<int>(std::ranges::count(mine.buckets, last_used, &BucketView::first));
  }
  return out;
}

}  // namespace sextant

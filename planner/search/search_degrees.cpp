// The upper levels of the tree: degrees, placement, sharding, kernels. Stages are not decided yet, so that bounds are of what
// every schedule and stage split takes.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "planner/lowering/graph_size.hpp"
#include "planner/search/search_tree.hpp"

namespace sextant {
namespace {

bool same_links(const PlanLinks& a, const PlanLinks& b) {
  return a.stages == b.stages && a.world == b.world && a.tied == b.tied;
}

int recomputed_layers(const Recompute& r, int n_layers) {
  if (r.kind != RecomputeKind::full) return 0;
  return r.layers < 0 ? n_layers
                      : std::min(n_layers, r.layers);  // every chunk recomputes that many, one exists
}

}  // namespace

// Runs `visit` with every kind of kernels that stack and space allow, without recomputation: fields of `p` are set.
template <class F>
void SearchTree::each_kernel_choice(ParallelPlan& p, Links links, F visit) const {
  for (const std::uint8_t sp : space_.sequence_parallel)
    for (const std::uint8_t tiled : space_.overlap_tp)
      for (const bool split : {false, true}) {
        p.sequence_parallel = sp != 0;
        p.overlap_tp = tiled != 0;
        if ((tiled && links == Links::open) || (split && (!may_split_backward_ || p.pp == 1)) ||
            !has_kernels(p))
          continue;
        p.schedule = split ? PipelineSchedule::zero_bubble : PipelineSchedule::one_f_one_b;
        visit();
      }
  p.sequence_parallel = p.overlap_tp = false;
  p.schedule = PipelineSchedule::one_f_one_b;
}

// What every schedule and stage split takes: the mean over stages of [what comes before their first slot, their own
// work, and what comes after their last one]. Every inner chunk holds a layer at least.
void SearchTree::sketch(const ParallelPlan& plan, SearchCache& cache, int recomputed, Links links) const {
  const bool linked = links == Links::known;
  const int pp = plan.pp, n = job_.model.n_layers;
  const bool split = plan.schedule == PipelineSchedule::zero_bubble;
  const StageLayerTimes& stages = linked ? cache.layers(plan) : cache.layers_without_links(plan);
  // Stages of unequal speed, however the layers are split between them: as if each had as many as it can do in the time.
  double shared = 0;
  if (stages.uneven) {
    double per_second = 0;
    for (int s = 0; s < pp; ++s) {
      const LayerTimes& t = stages.of(s);
      const double again = t.recomputed_layer_total(), once = t.layer_total();
      per_second += 1 / (recomputed == 0 ? once : recomputed == n ? again : std::min(once, again));
    }
    shared = n / per_second;
  }
  // Above ZeRO 1 a tied embedding's exchange is of slices; that stage may not be decided yet.
  double after = 0;
  if (linked)
    after = job_.stack.can.max_zero_with_pp < 2 ? cache.stateless_closing(plan) : cache.closing(plan);
  for (const LayerTimes& t : stages.distinct) {
    const double model = recomputed * t.recomputed_layer_total() + (n - recomputed) * t.layer_total() +
                         t.embedding_forward + t.embedding_backward + t.head_forward + t.head_backward +
                         t.head_weight;
    const double layer = t.forward + (split ? 0.0 : std::min(t.backward, t.recompute + t.backward_again));
    const double ramp =
        pp > 2 ? (pp - 1.0) * (pp - 2.0) / (2.0 * pp) * (layer + (split ? 1 : 2) * t.send) : 0.0;
    const double waits = recomputed * t.recomputed_layer_wait() + (n - recomputed) * t.layer_wait();
    cache.sketches.push_back({(model - waits) / pp, waits / pp, ramp, shared, split, after});
  }
}

// What is fetched and reduced for every micro-batch takes the compute lane, or lanes of its own, one of both together.
double SearchTree::unscheduled(const SearchCache& cache, int microbatches,
                               const SearchCache::EveryMicrobatch& every) {
  const double f = every.fetched;
  double least = INFINITY;
  for (const auto& [compute, waits, ramp, shared, split, after] : cache.sketches) {
    const double r = split ? 0.0 : every.reduced;
    const double slots =
        std::max(compute + waits,
                 std::min({std::max(compute, f + r), std::max(compute + r, f), std::max(compute + f, r)}));
    least = std::min(least, std::max(microbatches * slots + ramp, microbatches * shared) + after);
  }
  return least;
}

void SearchTree::expand_root(SearchCache& cache, Expansion& out) const {
  const std::uint64_t members = below(Level::degrees);
  Node child;
  child.level = Level::degrees;
  child.members = members;
  for (std::size_t tp = 0; tp < space_.tp.size(); ++tp)
    for (std::size_t cp = 0; cp < space_.cp.size(); ++cp)
      for (std::size_t pp = 0; pp < space_.pp.size(); ++pp) {
        const std::int64_t ranks = std::int64_t{space_.tp[tp]} * space_.cp[cp] * space_.pp[pp];
        child.choice.tp = small(tp);
        child.choice.cp = small(cp);
        child.choice.pp = small(pp);
        ParallelPlan p = decided(child.choice, Level::degrees, cache);
        if (ranks > space_.world || space_.world % ranks != 0) {
          reject(
              Outcome::not_divisible, members, p,
              [&] {
                return fmt::format("tp * cp * pp is {}, expected a divisor of the {} ranks", ranks,
                                   space_.world);
              },
              out);
          continue;
        }
        if (!space_.limits.admits(PlanField::dp, p.dp)) {
          out.outcomes[Outcome::outside_limits] += members;
          continue;
        }
        if (!lawful(with_some_stage(p), members, out)) continue;
        if (!state_fits(p, lowest_memory_state(p), members, cache, out)) continue;
        double least = INFINITY;
        for (const int mbs : space_.micro_batch) {
          p.micro_batch = mbs;
          const int m = microbatches(p, job_.training);
          if (m == 0) continue;
          cache.sketches.clear();
          each_kernel_choice(p, Links::open, [&] { sketch(p, cache, 0, Links::open); });
          least = std::min(least, unscheduled(cache, m, {}));
          ++out.bounds;
        }
        child.bound = std::isfinite(least) ? least : 0;
        out.add(child);
      }
}

void SearchTree::expand_degrees(const Node& node, SearchCache& cache, Expansion& out) const {
  const std::uint64_t members = below(Level::placement);
  ParallelPlan p = decided(node.choice, Level::degrees, cache);
  const SearchCache::Classes& classes = cache.classes(p);
  out.outcomes[Outcome::duplicate] += classes.repeated * space_.micro_batch.size() * members;
  const std::uint64_t orders = space_.axis_order.size() - classes.repeated - classes.refused,
                      refused = classes.refused * space_.micro_batch.size() * members;
  if (orders == 0) {
    p.axis_order = space_.axis_order.front();
    reject(
        Outcome::unsupported_by_stack, refused, p,
        [&] { return refuses(job_.stack, with_some_stage(p), job_.model, job_.training).value().text; }, out);
    return;
  }
  // What every layout has in other orders is no example of what the stack has not.
  out.outcomes[Outcome::unsupported_by_stack] += refused;
  p.axis_order = space_.axis_order[classes.members.front().front()];
  Node child = node;
  child.level = Level::placement;
  std::vector<std::size_t> lawful_sizes;
  for (std::size_t i = 0; i < space_.micro_batch.size(); ++i) {
    p.micro_batch = space_.micro_batch[i];
    if (!lawful(with_some_stage(p), orders * members, out)) continue;
    if (const int m = microbatches(p, job_.training); has_too_many_passes(job_.model, m))
      reject(
          Outcome::not_divisible, orders * members, p, [&] { return too_many_passes(job_.model, m); }, out);
    else
      lawful_sizes.push_back(i);
  }
  for (const auto& group : classes.members) {
    child.choice.axis_order = child.order_class = group.front();
    child.members = group.size() * members;
    p.axis_order = space_.axis_order[group.front()];
    for (const std::size_t i : lawful_sizes) {
      p.micro_batch = space_.micro_batch[i];
      child.choice.micro_batch = small(i);
      cache.sketches.clear();
      each_kernel_choice(p, Links::known, [&] { sketch(p, cache, 0, Links::known); });
      const double least = unscheduled(cache, microbatches(p, job_.training), {});
      ++out.bounds;
      child.bound = std::isfinite(least) ? std::max(node.bound, least) : node.bound;
      out.add(child);
    }
  }
}

void SearchTree::add_placements(Node child, ParallelPlan p, const std::vector<std::uint8_t>& orders,
                                double least_above, SearchCache& cache, Expansion& out) const {
  const int m = microbatches(p, job_.training);
  std::vector<const PlanLinks*> placed;  // of the orders before
  for (const std::uint8_t order : orders) {
    p.axis_order = space_.axis_order[order];
    const PlanLinks& links = cache.links(p);
    const bool repeated =
        std::ranges::any_of(placed, [&](const PlanLinks* before) { return same_links(*before, links); });
    placed.push_back(&links);
    if (repeated) {
      out.outcomes[Outcome::duplicate] += child.members;
      continue;
    }
    const double least = unscheduled(cache, m, cache.every_microbatch(p));
    ++out.bounds;
    child.choice.axis_order = order;
    child.bound = std::isfinite(least) ? std::max(least_above, least) : least_above;
    out.add(child);
  }
}

void SearchTree::expand_placement(const Node& node, SearchCache& cache, Expansion& out) const {
  const std::uint64_t members = below(Level::sharding);
  ParallelPlan p = decided(node.choice, Level::placement, cache);
  const auto& classes = cache.classes(p).members;
  const auto& group = *std::find_if(
      classes.begin(), classes.end(),
      [&](const std::vector<std::uint8_t>& list) { return list.front() == node.choice.axis_order; });
  Node child = node;
  child.level = Level::sharding;
  child.members = members;
  bool seen_unsharded = false;  // a member that shards nothing
  cache.sketches.clear();       // the same for all orders of the class
  {
    ParallelPlan q = p;
    each_kernel_choice(q, Links::known, [&] { sketch(q, cache, 0, Links::known); });
  }
  const std::size_t degrees = space_.shard_degree.size();
  auto& laws =
      cache.laws(SearchCache::Asked::sharding, {p.tp, p.cp, p.pp}, space_.zero_stage.size() * degrees);
  for (std::size_t z = 0; z < space_.zero_stage.size(); ++z) {
    bool seen_all = false, seen_one = false;
    for (std::size_t sd = 0; sd < space_.shard_degree.size(); ++sd) {
      p.zero_stage = space_.zero_stage[z];
      p.shard_degree = space_.shard_degree[sd];
      p.axis_order = space_.axis_order[group.front()];
      const std::uint64_t here = group.size() * members;
      if (!lawful(p, here, out, laws[z * degrees + sd])) continue;
      const int shards = p.shards();
      if (!space_.limits.admits(PlanField::shard_degree, shards)) {
        out.outcomes[Outcome::outside_limits] += here;
        continue;
      }
      // All replicas may be named or left open; a state that is not sharded may be the same with ZeRO 0 and 1.
      const bool unsharded = shards == 1 && p.zero_stage <= 1 && shards_one_alike(p);
      if ((shards == p.replicas() && seen_all) || (shards == 1 && seen_one) ||
          (unsharded && seen_unsharded)) {
        out.outcomes[Outcome::duplicate] += here;
        continue;
      }
      if (shards == p.replicas()) seen_all = true;
      if (shards == 1) seen_one = true;
      if (unsharded) seen_unsharded = true;
      if (!state_fits(p, lowest_memory_offload(p), here, cache, out)) continue;
      child.choice.zero_stage = small(z);
      child.choice.shard_degree = small(sd);
      add_placements(child, p, group, node.bound, cache, out);
    }
  }
}

void SearchTree::expand_sharding(const Node& node, SearchCache& cache, Expansion& out) const {
  const std::uint64_t members = below(Level::kernels);
  ParallelPlan p = decided(node.choice, Level::sharding, cache);
  Node child = node;
  child.level = Level::kernels;
  child.members = members;
  const double lowest_memory = lowest_memory_offload(p);
  const int m = microbatches(p, job_.training);
  const SearchCache::EveryMicrobatch every = cache.every_microbatch(p);
  auto& laws =
      cache.laws(SearchCache::Asked::kernels,
                 {p.tp, p.cp, p.pp * 4 + p.zero_stage},  // whether TP may be hidden depends on ZeRO
                 space_.sequence_parallel.size() * space_.overlap_tp.size() * space_.recompute.size());
  std::size_t at = 0;
  for (std::size_t sp = 0; sp < space_.sequence_parallel.size(); ++sp)
    for (std::size_t tiled = 0; tiled < space_.overlap_tp.size(); ++tiled)
      for (std::size_t r = 0; r < space_.recompute.size(); ++r, ++at) {
        p.sequence_parallel = space_.sequence_parallel[sp] != 0;
        p.overlap_tp = space_.overlap_tp[tiled] != 0;
        p.recompute = space_.recompute[r];
        p.schedule = PipelineSchedule::one_f_one_b;
        // How many layers a chunk holds is decided with the stages.
        ParallelPlan lenient = p;
        if (lenient.recompute.kind == RecomputeKind::full && lenient.recompute.layers > 1)
          lenient.recompute.layers = 1;
        if (!lawful(lenient, members, out, laws[at]) ||
            !micro_batch_fits(p, lowest_memory, members, cache, out))
          continue;
        child.choice.sequence_parallel = small(sp);
        child.choice.overlap_tp = small(tiled);
        child.choice.recompute = small(r);
        const int again = recomputed_layers(p.recompute, job_.model.n_layers);
        cache.sketches.clear();
        sketch(p, cache, again, Links::known);
        if (may_split_backward_ && p.pp > 1) {
          p.schedule = PipelineSchedule::zero_bubble;
          sketch(p, cache, again, Links::known);
        }
        const double least = unscheduled(cache, m, every);
        ++out.bounds;
        child.bound = std::max(node.bound, least);
        out.add(child);
      }
}

}  // namespace sextant

// The lower levels of the tree: stages, offload, buckets.
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "planner/search_tree.hpp"
#include "planner/stage_split.hpp"

namespace sextant {
void SearchTree::fill_chunks(const ParallelPlan& p, StageSplit split, SearchCache& cache,
                             std::vector<LayerRange>& out) const {
  const int n = job_.model.n_layers, n_chunks = p.pp * p.vp;
  out.clear();
  if (split == StageSplit::balanced && n_chunks > 1 && n_chunks <= n) {
    // Balanced by the prices of what the layers always do: the first stage's, unless some stages are slower.
    ParallelPlan priced = p;
    priced.activation_offload = 0;
    const StageLayerTimes& stages = cache.layers(priced);
    const LayerTimes& t = stages.of(0);
    const bool again = p.recompute.kind == RecomputeKind::full && p.recompute.layers < 0;
    if (stages.uneven) {
      std::vector<double> layer;
      for (int c = 0; c < n_chunks; ++c) layer.push_back(stages.of(c % p.pp).layer_total(again));
      const LayerTimes& last = stages.of(p.pp - 1);
      return balanced_chunks(n, layer, t.embedding_forward + t.embedding_backward,
                             last.head_forward + last.head_backward + last.head_weight, out);
    }
    const ChainCost cost{t.layer_total(again), t.embedding_forward + t.embedding_backward,
                         t.head_forward + t.head_backward + t.head_weight};
    if (cost.layer > 0) return balanced_chunks(n, n_chunks, cost, out);
  }
  for (int c = 0, first = 0; c < n_chunks; ++c) {
    const int count = n / n_chunks + (c < n % n_chunks ? 1 : 0);
    out.push_back({first, count});
    first += count;
  }
}

std::vector<SearchCache::Stages> SearchTree::stages_of(ParallelPlan p,
                                                       const std::vector<SearchCache::Law>& laws, bool steady,
                                                       SearchCache& cache) const {
  std::vector<SearchCache::Stages> out;
  const int m = microbatches(p, job_.training);
  for (std::size_t f = 0; f < space_.form.size(); ++f) {
    if (laws[f].against) continue;
    p.schedule = space_.form[f].schedule, p.vp = space_.form[f].vp;
    for (const StageSplit split : space_.split) {
      fill_chunks(p, split, cache, cache.chunks);
      SearchCache::Stages& stages = out.emplace_back();
      if (split == StageSplit::balanced) {
        fill_chunks(p, StageSplit::even, cache, cache.even);
        stages.uneven = cache.chunks != cache.even;
      }
      stages.longest = longest_chunk(cache.chunks);
      const Flight in_flight = flight(p, cache.chunks);
      stages.elements = in_flight.elements, stages.activations = in_flight.activations;
      pipeline_times(p, cache.chunks, job_.stack, m, cache.layers(p), steady, cache.times);
      stages.least = closed_bound(cache.times, {}, 0);
    }
  }
  return out;
}

void SearchTree::expand_kernels(const Node& node, SearchCache& cache, Expansion& out) const {
  const std::uint64_t members = below(Level::pipeline);
  ParallelPlan p = decided(node.choice, Level::kernels, cache);
  const Recompute recompute = p.recompute;
  const int m = microbatches(p, job_.training);
  const bool is_all_steady = steady(p);
  const double leanest = leanest_offload(p), closing = cache.closing(p),
               exchanged = cache.stateless_closing(p);
  Node child = node;
  child.level = Level::pipeline;
  child.members = members;
  const auto listed_before = [](const auto& list, const auto& wanted, std::size_t index) {
    const auto end = list.begin() + static_cast<std::ptrdiff_t>(index);
    return std::find(list.begin(), end, wanted) != end;
  };
  const bool full_listed =
      listed_before(space_.recompute, Recompute{RecomputeKind::full, -1}, node.choice.recompute);
  // Rules that look at the schedule alone; how many layers a chunk holds is looked at below.
  auto& laws = cache.laws(SearchCache::Asked::form, {p.pp, m}, space_.form.size());
  p.recompute = Recompute{};
  for (std::size_t f = 0; f < space_.form.size(); ++f) {
    p.schedule = space_.form[f].schedule, p.vp = space_.form[f].vp;
    lawful(p, space_.split.size() * members, out, laws[f]);
  }
  p.recompute = recompute;
  auto stages = cache
                    .stages(node.choice, node.order_class, is_all_steady,
                            [&] { return stages_of(p, laws, is_all_steady, cache); })
                    .begin();
  for (std::size_t f = 0; f < space_.form.size(); ++f) {
    if (laws[f].against) continue;
    p.schedule = space_.form[f].schedule, p.vp = space_.form[f].vp;
    for (std::size_t split = 0; split < space_.split.size(); ++split) {
      const SearchCache::Stages& known = *stages++;
      const bool balanced = space_.split[split] == StageSplit::balanced;
      if (recompute.layers > known.longest) {
        reject(
            Fate::contradiction, members, p,
            [&] {
              return fmt::format(
                  "recompute_layers is {}, expected at most the {} layers of the longest chunk",
                  recompute.layers, known.longest);
            },
            out);
        continue;
      }
      if (known.uneven && !job_.stack.can.uneven_stages) {
        reject(
            Fate::stack_cannot, members, p,
            [&] { return fmt::format("{} needs equal stages", job_.stack.name); }, out);
        continue;
      }
      // The same layers on the same stages, or the same recomputation, as an earlier member. What is balanced depends
      // on what is recomputed, so that only even splits are known to be the same.
      if ((balanced && !known.uneven && listed_before(space_.split, StageSplit::even, split)) ||
          (!balanced && recompute.layers == known.longest && full_listed)) {
        out.fates[Fate::repeated] += members;
        continue;
      }
      // What all below keep alike is asked once.
      if (!may_offload_activations_ &&
          !flight_fits({known.elements, known.activations}, p, leanest, members, out))
        continue;
      ++out.bounds;
      child.choice.form = small(f), child.choice.split = small(split);
      // The exchange of a tied embedding comes behind all slots, but not behind all reductions.
      child.bound = std::max(node.bound, known.least + exchanged);
      if (child.bound <= out.limit) {
        fill_chunks(p, space_.split[split], cache, cache.chunks);
        pipeline_times(p, cache.chunks, job_.stack, m, cache.layers(p), is_all_steady, cache.times);
        const StageStates least = least_state_times(job_, p, cache.links(p), cache.chunks, Start::open);
        child.bound = std::max(child.bound, closed_bound(cache.times, least, closing));
      }
      out.add(child);
    }
  }
}

// Units and whole stages are not cut into buckets; nobody reduces or gathers alone.
SearchTree::Buckets SearchTree::buckets(const ParallelPlan& p) const {
  const StackRules& rules = job_.stack.rules;
  const bool units = buckets_are_units(p, rules), reduces = !units || p.replicas() > 1,
             gathers = p.shards() > 1 || (p.zero_stage >= 3 && !p.parameter_offload);
  const std::int64_t limit =
      units || !p.overlap_grad_reduce ? 0
      : p.bucket_elements > 0
          ? p.bucket_elements
          : std::max(rules.bucket_elements, rules.bucket_elements_per_replica * p.replicas());
  return {limit, units ? 1 : p.last_bucket_split, reduces && p.overlap_grad_reduce,
          gathers && p.overlap_param_gather};
}

// Runs `visit(repeated)` with every choice of buckets and overlaps that is lawful; fields of `p` and `c` are set.
std::vector<SearchCache::Law>& SearchTree::bucket_laws(const ParallelPlan& p, SearchCache& cache) const {
  return cache.laws(SearchCache::Asked::buckets, {p.replicas() > 1, p.zero_stage > 0},
                    space_.overlap_grad_reduce.size() * space_.overlap_param_gather.size() *
                        space_.bucket_elements.size() * space_.last_bucket_split.size());
}

std::vector<SearchCache::Law>& SearchTree::state_laws(const ParallelPlan& p, SearchCache& cache) const {
  const int counts =
      (p.pp > 1 ? 4 : 0) | (p.replicas() > 1 ? 2 : 0) | (microbatches(p, job_.training) > 1 ? 1 : 0);
  return cache.laws(SearchCache::Asked::state, {p.zero_stage, counts},
                    space_.optimizer_offload.size() * space_.parameter_offload.size());
}

template <class Lawful, class Visit>
void SearchTree::each_bucketing(ParallelPlan& p, Choice& c, const Lawful& is_lawful,
                                const Visit& visit) const {
  std::vector<Buckets> seen;
  std::size_t at = 0;
  for (std::size_t gr = 0; gr < space_.overlap_grad_reduce.size(); ++gr)
    for (std::size_t pg = 0; pg < space_.overlap_param_gather.size(); ++pg)
      for (std::size_t b = 0; b < space_.bucket_elements.size(); ++b)
        for (std::size_t lb = 0; lb < space_.last_bucket_split.size(); ++lb, ++at) {
          p.overlap_grad_reduce = space_.overlap_grad_reduce[gr] != 0;
          p.overlap_param_gather = space_.overlap_param_gather[pg] != 0;
          p.bucket_elements = space_.bucket_elements[b];
          p.last_bucket_split = space_.last_bucket_split[lb];
          if (!is_lawful(at)) continue;
          c.overlap_grad_reduce = small(gr), c.overlap_param_gather = small(pg);
          c.bucket_elements = small(b), c.last_bucket_split = small(lb);
          const Buckets own = buckets(p);
          const bool repeated = std::find(seen.begin(), seen.end(), own) != seen.end();
          if (!repeated) seen.push_back(own);
          visit(repeated);
        }
}

SearchTree::Bucketings SearchTree::bucketings(ParallelPlan p, SearchCache& cache) const {
  Bucketings out;
  Choice ignored;
  auto& laws = bucket_laws(p, cache);
  each_bucketing(
      p, ignored, [&](std::size_t at) { return lawful(p, laws[at]); },
      [&](bool repeated) {
        if (!repeated)
          out.push_back(
              {p.bucket_elements, p.last_bucket_split, p.overlap_grad_reduce, p.overlap_param_gather});
      });
  return out;
}

// States of the plans below one whose buckets and overlaps are open, added to what the cache lists.
void SearchTree::list_states(ParallelPlan p, const Bucketings& bucketings, int chunks_id, SearchCache& cache,
                             SearchCache::Share share) {
  for (const SearchCache::Bucketing& b : bucketings) {
    p.bucket_elements = b.elements, p.last_bucket_split = b.last_split;
    p.overlap_grad_reduce = b.reduce, p.overlap_param_gather = b.gather;
    cache.states.push_back(&cache.state(p, chunks_id, share));
  }
}

// Whether stages have room for the state that a plan keeps on the device, whatever activations leave it.
class SearchTree::Room {
 public:
  Room(const SearchTree& tree, const ParallelPlan& p, const std::vector<LayerRange>& chunks)
      : tree_(tree), chunks_(chunks) {
    keep(p, 0);
    if (tree.may_offload_activations_) keep(p, tree.job_.model.n_layers);
  }
  bool holds(const ParallelPlan& p) const {
    const double state = tree_.state_of_element(p);
    return std::ranges::any_of(kept_, [&](const Kept& k) {
      return tree_.within_memory(tree_.stages_floor(k.plan, state, chunks_, k.flight, k.held));
    });
  }

 private:
  struct Kept {
    ParallelPlan plan;
    Flight flight;
    Held held;
  };
  void keep(ParallelPlan p, int layers_on_host) {
    p.activation_offload = layers_on_host, p.offload_horizon = tree_.least_horizon_;
    kept_.push_back({p, tree_.flight(p, chunks_), tree_.held(p)});
  }
  const SearchTree& tree_;
  const std::vector<LayerRange>& chunks_;
  std::vector<Kept> kept_;
};

// The same where it is open what is offloaded as well: of any share of the optimizer that may fit. None where that tells
// nothing.
Start SearchTree::list_fitting_states(ParallelPlan p, const std::vector<LayerRange>& chunks,
                                      SearchCache& cache) const {
  const int chunks_id = cache.chunks_id(chunks);
  const Room room(*this, p, chunks);
  // Where nothing need be on the host, all that is known is what is reduced in every micro-batch.
  const bool none_needed = room.holds(p);
  if (none_needed && !reduces_every_microbatch(p, job_.stack.rules)) return Start::open;
  for (const std::uint8_t parameters : space_.parameter_offload) {
    p.parameter_offload = parameters != 0;
    // What is fetched further ahead holds up less.
    p.offload_horizon = p.parameter_offload ? most_horizon_ : ParallelPlan{}.offload_horizon;
    // Parameters may not leave without the optimizer state, nor it without them.
    const bool with_optimizer = p.parameter_offload && job_.stack.can.parameter_offload_needs_optimizer;
    for (const double least : cache.shares()) {
      p.optimizer_offload = !none_needed ? least : with_optimizer ? 1.0 : 0.0;
      const bool fits = !unlawful_reason(job_, p) && (none_needed || room.holds(p));
      if (fits)
        list_states(p, bucketings(p, cache), chunks_id, cache,
                    none_needed ? SearchCache::Share::own : SearchCache::Share::any);
      if (fits || none_needed) break;
    }
  }
  return none_needed ? Start::open : Start::known;
}

void SearchTree::expand_pipeline(const Node& node, SearchCache& cache, Expansion& out) const {
  const std::uint64_t members = below(Level::offload), oo_n = space_.optimizer_offload.size(),
                      po_n = space_.parameter_offload.size();
  ParallelPlan p = decided(node.choice, Level::pipeline, cache);
  const std::vector<LayerRange> chunks = layer_ranges(p, job_.model.n_layers);
  const int m = microbatches(p, job_.training);
  const double closing = cache.stateless_closing(p), leanest = leanest_offload(p);
  Node child = node;
  child.level = Level::offload;
  child.members = members;
  // What is offloaded of the state, whatever activations are.
  std::vector<double> state_of_one;
  for (std::size_t oo = 0; oo < oo_n; ++oo)
    for (std::size_t po = 0; po < po_n; ++po) {
      p.optimizer_offload = space_.optimizer_offload[oo];
      p.parameter_offload = space_.parameter_offload[po] != 0;
      state_of_one.push_back(state_of_element(p));
    }
  // Activations that stay where they are take the least time, and parameters that are fetched as far ahead as can be: a bound
  // of all that offload as much of the state.
  std::vector<std::optional<double>> kept(oo_n * po_n);
  const int chunks_id = cache.chunks_id(chunks);
  std::array<std::optional<Bucketings>, 2> known_bucketings;  // without and with parameters on the host
  std::optional<PipelineTimes> staying;
  const auto bound_of = [&](const ParallelPlan& q, SearchCache::Share share) {
    std::optional<Bucketings>& of_these = known_bucketings[q.parameter_offload ? 1 : 0];
    if (!of_these) of_these = bucketings(q, cache);
    cache.states.clear();
    list_states(q, *of_these, chunks_id, cache, share);
    return slot_bound(*staying, cache.states, cache.closing(q), cache.steps(q, m), cache.slots, out.limit);
  };
  const Room room(*this, p, chunks);
  // From which share on none is within the limit: a bound of these, and one of all.
  struct Reach {
    double end = 2, beyond = INFINITY, least = INFINITY;
  };
  const auto reach_of = [&](ParallelPlan q) {
    const auto of_any_from = [&](double share) {
      q.optimizer_offload = share;
      return bound_of(q, SearchCache::Share::any);
    };
    const auto fitting = std::ranges::partition_point(cache.shares(), [&](double share) {
      q.optimizer_offload = share;
      return !room.holds(q);
    });
    Reach reach;
    if (fitting == cache.shares().end()) return reach;
    reach.least = of_any_from(*fitting);
    const auto end = std::partition_point(fitting, cache.shares().end(), [&](double share) {
      const double bound = share == *fitting ? reach.least : of_any_from(share);
      if (bound <= out.limit) return true;
      reach.end = share, reach.beyond = bound;
      return false;
    });
    if (end == cache.shares().end()) reach.end = 2;
    return reach;
  };
  std::array<std::optional<Reach>, 2> reaches;
  // What decides most is asked first. Where nothing can be ruled out yet, the rest is left to who refines the child.
  const auto kept_bound = [&](ParallelPlan q, std::size_t at) -> double {
    if (kept[at]) return *kept[at];
    ++out.bounds;
    q.activation_offload = 0;
    if (q.parameter_offload) q.offload_horizon = most_horizon_;
    if (!staying) {
      staying.emplace();
      pipeline_times(q, chunks, job_.stack, m, cache.layers(q), false, *staying);
    }
    double bound = 0;
    const bool is_limited = std::isfinite(out.limit);
    if (is_limited) {
      std::optional<Reach>& reach = reaches[q.parameter_offload ? 1 : 0];
      if (!reach) reach = reach_of(q);
      bound = q.optimizer_offload < reach->end ? reach->least : reach->beyond;
    }
    if (bound <= out.limit) {
      const StageStates least = least_state_times(job_, q, cache.links(q), chunks, Start::known);
      const StageStates* alone = &least;
      bound = std::max(bound, slot_bound(*staying, std::span(&alone, 1), cache.closing(q), cache.steps(q, m),
                                         cache.slots, out.limit));
    }
    if (bound <= out.limit && is_limited) bound = std::max(bound, bound_of(q, SearchCache::Share::own));
    kept[at] = bound;
    return bound;
  };
  HeldBefore held_before(*this);
  auto& laws_of_state = state_laws(p, cache);  // no rule looks at activations as well
  const int kinds = static_cast<int>(p.recompute.kind) << 4 | static_cast<int>(p.schedule);
  const int longest = longest_chunk(chunks);
  auto& laws =
      cache.laws(SearchCache::Asked::activations, {p.pp, longest, kinds}, space_.activation_offload.size());
  const auto parameters_on = static_cast<std::uint64_t>(std::ranges::count(space_.parameter_offload, 1));
  for (std::size_t ao = 0; ao < space_.activation_offload.size(); ++ao) {
    const ActivationOffload& a = space_.activation_offload[ao];
    p.activation_offload = a.of_chunk(longest), p.offload_horizon = a.horizon;
    p.optimizer_offload = 0, p.parameter_offload = false;
    std::uint64_t here = oo_n * po_n * members;
    if (!lawful(p, here, out, laws[ao])) continue;
    if (a.layers == ActivationOffload::all) {
      if (!space_.limits.admits(PlanField::activation_offload, longest)) {
        out.fates[Fate::outside_limits] += here;
        continue;
      }
      if (std::ranges::count(space_.activation_offload, ActivationOffload{longest, a.horizon}) > 0) {
        out.fates[Fate::repeated] += here;
        continue;
      }
    }
    const bool parameters_alone = space_.idle_horizon(p);  // without them it says nothing
    if (parameters_alone) {
      here = oo_n * parameters_on * members;
      if (po_n > parameters_on)
        reject(
            Fate::contradiction, (po_n - parameters_on) * oo_n * members, p,
            [&] {
              return fmt::format("offload_horizon is {}, expected {} where nothing is offloaded",
                                 p.offload_horizon, space_.horizon_of_nothing());
            },
            out);
      if (here == 0) continue;
    }
    const Flight in_flight = flight(p, chunks);
    const Held& holds = held_before.of(p);
    const auto floor = [&](double state) { return stages_floor(p, state, chunks, in_flight, holds); };
    if (!stages_fit(floor(leanest), p, here, out)) continue;
    child.choice.activation_offload = small(ao);
    std::optional<double> copied;  // as activations are offloaded, whatever the state is
    for (std::size_t oo = 0; oo < oo_n; ++oo)
      for (std::size_t po = 0; po < po_n; ++po) {
        p.optimizer_offload = space_.optimizer_offload[oo];
        p.parameter_offload = space_.parameter_offload[po] != 0;
        if (parameters_alone && !p.parameter_offload) continue;
        const std::size_t at = oo * po_n + po;
        if (!lawful(p, members, out, laws_of_state[at])) continue;
        if (!stages_fit(floor(state_of_one[at]), p, members, out)) continue;
        child.choice.optimizer_offload = small(oo), child.choice.parameter_offload = small(po);
        ++out.bounds;
        child.bound = std::max(node.bound, kept_bound(p, at));
        if (child.bound <= out.limit) {
          if (!copied) {
            pipeline_times(p, chunks, job_.stack, m, cache.layers(p), steady(p), cache.times);
            copied = closed_bound(cache.times, {}, closing);
          }
          child.bound = std::max(child.bound, *copied);
        }
        out.add(child);
      }
  }
}

void SearchTree::expand_offload(const Node& node, SearchCache& cache, Expansion& out) const {
  ParallelPlan p = decided(node.choice, Level::offload, cache);
  if (!estimate_fits(p, node.members, out)) return;
  const std::vector<LayerRange> chunks = layer_ranges(p, job_.model.n_layers);
  const int m = microbatches(p, job_.training);
  pipeline_times(p, chunks, job_.stack, m, cache.layers(p), is_steady(p, job_.stack.rules), cache.times);
  const double closing = cache.closing(p);
  const int chunks_id = cache.chunks_id(chunks);
  Node child = node;
  child.level = Level::full;
  child.members = 1;
  auto& laws = bucket_laws(p, cache);
  each_bucketing(
      p, child.choice, [&](std::size_t at) { return lawful(p, 1, out, laws[at]); },
      [&](bool repeated) {
        if (repeated) {
          ++out.fates[Fate::repeated];
          return;
        }
        ++out.bounds;
        child.bound = std::max(node.bound, closed_bound(cache.times, cache.state(p, chunks_id), closing));
        out.add(child);
      });
}

}  // namespace sextant

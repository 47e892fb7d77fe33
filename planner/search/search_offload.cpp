// What a layout leaves on the host: which of it may fit, and how fast that can be.
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <span>

#include <fmt/format.h>

#include "planner/search/search_tree.hpp"
#include "planner/search/stage_split.hpp"

namespace sextant {

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
    p.activation_offload = layers_on_host;
    p.offload_horizon = tree_.least_horizon_;
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
        list_states_from(p, bucketings(p, cache), chunks_id, cache,
                         none_needed ? SearchCache::Share::own : SearchCache::Share::any);
      if (fits || none_needed) break;
    }
  }
  return none_needed ? Start::open : Start::known;
}

// Activations that stay where they are take the least time, and parameters that are fetched as far ahead as can be: bounds of
// all that offload as much of the state. What decides most is asked first.
class SearchTree::KeptBounds {
 public:
  KeptBounds(const SearchTree& tree, const ParallelPlan& p, const std::vector<LayerRange>& chunks,
             SearchCache& cache, Expansion& out)
      : tree_(tree),
        chunks_(chunks),
        room_(tree, p, chunks),
        cache_(cache),
        out_(out),
        chunks_id_(cache.chunks_id(chunks)),
        microbatches_(microbatches(p, tree.job_.training)),
        known_(tree.space_.optimizer_offload.size() * tree.space_.parameter_offload.size()) {
    pipeline_times(p, chunks, tree.job_.stack, microbatches_, cache.layers(p), false, staying_);
  }

  // `at` is the place of what the plan offloads of the state.
  double of(ParallelPlan p, std::size_t at) {
    if (known_[at]) return *known_[at];
    ++out_.bounds;
    p.activation_offload = 0;
    if (p.parameter_offload) p.offload_horizon = tree_.most_horizon_;
    double bound = 0;
    // Where nothing can be ruled out yet, the rest is left to who refines the child.
    const bool is_limited = std::isfinite(out_.limit);
    if (is_limited) {
      std::optional<Reach>& reach = reaches_[p.parameter_offload ? 1 : 0];
      if (!reach) reach = reach_of(p);
      bound = p.optimizer_offload < reach->end ? reach->least : reach->beyond;
    }
    if (bound <= out_.limit) {
      const StageStates least = least_state_times(tree_.job_, p, cache_.links(p), chunks_, Start::known);
      const StageStates* alone = &least;
      const SlotSteps& steps = cache_.few_steps(p, microbatches_, staying_);
      bound = std::max(bound, slot_bound(staying_, std::span(&alone, 1), cache_.closing(p), steps,
                                         cache_.slots, out_.limit));
    }
    if (bound <= out_.limit && is_limited) bound = std::max(bound, bound_of(p, SearchCache::Share::own));
    known_[at] = bound;
    return bound;
  }

 private:
  // From which share on none is within the limit: a bound of these, and one of all.
  struct Reach {
    double end = 2, beyond = INFINITY, least = INFINITY;
  };
  Reach reach_of(ParallelPlan p) {
    const auto of_any_from = [&](double share) {
      p.optimizer_offload = share;
      return bound_of(p, SearchCache::Share::any);
    };
    const std::vector<double>& shares = cache_.shares();
    const auto fitting = std::ranges::partition_point(shares, [&](double share) {
      p.optimizer_offload = share;
      return !room_.holds(p);
    });
    Reach reach;
    if (fitting == shares.end()) return reach;
    reach.least = of_any_from(*fitting);
    std::partition_point(fitting, shares.end(), [&](double share) {
      const double bound = share == *fitting ? reach.least : of_any_from(share);
      if (bound <= out_.limit) return true;
      reach.end = share;  // the last to be asked that is beyond is the first of them
      reach.beyond = bound;
      return false;
    });
    return reach;
  }
  double bound_of(const ParallelPlan& p, SearchCache::Share share) {
    std::optional<Bucketings>& of_these = bucketings_[p.parameter_offload ? 1 : 0];
    if (!of_these) of_these = tree_.bucketings(p, cache_);
    const auto bound = [&] {
      return slot_bound(staying_, cache_.states, cache_.closing(p),
                        cache_.few_steps(p, microbatches_, staying_), cache_.slots, out_.limit);
    };
    // Where one of them is within the limit, nothing can be ruled out.
    cache_.states.clear();
    if (!of_these->empty()) {
      list_states(p, {of_these->front()}, chunks_id_, cache_, share);
      if (bound() <= out_.limit) return 0;
    }
    cache_.states.clear();
    if (share == SearchCache::Share::any)
      tree_.list_states_from(p, *of_these, chunks_id_, cache_, share);
    else
      list_states(p, *of_these, chunks_id_, cache_);
    return bound();
  }

  const SearchTree& tree_;
  const std::vector<LayerRange>& chunks_;
  Room room_;
  SearchCache& cache_;
  Expansion& out_;
  int chunks_id_, microbatches_;
  PipelineTimes staying_;
  // Without and with parameters on the host.
  std::array<std::optional<Bucketings>, 2> bucketings_;
  std::array<std::optional<Reach>, 2> reaches_;
  std::vector<std::optional<double>> known_;
};

std::vector<double> SearchTree::states_of_element(ParallelPlan p) const {
  std::vector<double> out;
  for (const double share : space_.optimizer_offload)
    for (const std::uint8_t parameters : space_.parameter_offload) {
      p.optimizer_offload = share;
      p.parameter_offload = parameters != 0;
      out.push_back(state_of_element(p));
    }
  return out;
}

std::uint64_t SearchTree::members_offloading(const ActivationOffload& a, const ParallelPlan& p, int longest,
                                             std::uint64_t members, Expansion& out) const {
  const std::uint64_t shares = space_.optimizer_offload.size(), all = space_.parameter_offload.size();
  if (a.layers == ActivationOffload::all) {
    const std::uint64_t here = shares * all * members;
    if (!space_.limits.admits(PlanField::activation_offload, longest)) {
      out.outcomes[Outcome::outside_limits] += here;
      return 0;
    }
    if (std::ranges::count(space_.activation_offload, ActivationOffload{longest, a.horizon}) > 0) {
      out.outcomes[Outcome::duplicate] += here;
      return 0;
    }
  }
  if (!space_.idle_horizon(p)) return shares * all * members;
  const auto on_host = static_cast<std::uint64_t>(std::ranges::count(space_.parameter_offload, 1));
  if (all > on_host)
    reject(
        Outcome::inconsistent, (all - on_host) * shares * members, p,
        [&] {
          return fmt::format("offload_horizon is {}, expected {} where nothing is offloaded",
                             p.offload_horizon, space_.horizon_of_nothing());
        },
        out);
  return shares * on_host * members;
}

void SearchTree::expand_pipeline(const Node& node, SearchCache& cache, Expansion& out) const {
  const std::uint64_t members = below(Level::offload);
  const std::size_t oo_n = space_.optimizer_offload.size(), po_n = space_.parameter_offload.size();
  ParallelPlan p = decided(node.choice, Level::pipeline, cache);
  const std::vector<LayerRange> chunks = layer_ranges(p, job_.model.n_layers);
  const int m = microbatches(p, job_.training);
  const double closing = cache.stateless_closing(p), lowest_memory = lowest_memory_offload(p);
  Node child = node;
  child.level = Level::offload;
  child.members = members;
  const std::vector<double> state_of_one = states_of_element(p);  // whatever activations are
  KeptBounds kept(*this, p, chunks, cache, out);
  HeldBefore held_before(*this);
  auto& laws_of_state = state_laws(p, cache);  // no rule looks at activations as well
  const int kinds = static_cast<int>(p.recompute.kind) << 4 | static_cast<int>(p.schedule);
  const int longest = longest_chunk(chunks);
  auto& laws =
      cache.laws(SearchCache::Asked::activations, {p.pp, longest, kinds}, space_.activation_offload.size());
  for (std::size_t ao = 0; ao < space_.activation_offload.size(); ++ao) {
    const ActivationOffload& a = space_.activation_offload[ao];
    p.activation_offload = a.of_chunk(longest);
    p.offload_horizon = a.horizon;
    p.optimizer_offload = 0;
    p.parameter_offload = false;
    if (!lawful(p, oo_n * po_n * members, out, laws[ao])) continue;
    const bool parameters_alone = space_.idle_horizon(p);  // without them it says nothing
    const std::uint64_t here = members_offloading(a, p, longest, members, out);
    if (here == 0) continue;
    const Flight in_flight = flight(p, chunks);
    const Held& holds = held_before.of(p);
    const auto floor = [&](double state) { return stages_floor(p, state, chunks, in_flight, holds); };
    if (!stages_fit(floor(lowest_memory), p, here, out)) continue;
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
        child.choice.optimizer_offload = small(oo);
        child.choice.parameter_offload = small(po);
        ++out.bounds;
        child.bound = std::max(node.bound, kept.of(p, at));
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

}  // namespace sextant

// The lower levels of the tree: stages, offload, buckets.
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "planner/search/search_tree.hpp"
#include "planner/search/stage_split.hpp"

namespace sextant {
namespace {

// Prices of what the layers always do: the first stage's, unless some stages are slower.
struct ChunkPrices {
  ChunkPrices(const ParallelPlan& p, SearchCache& cache) : pp(p.pp), stages(priced(p, cache)) {
    again = p.recompute.kind == RecomputeKind::full && p.recompute.layers < 0;
    const LayerTimes &t = stages.of(0), &last = stages.uneven ? stages.of(p.pp - 1) : t;
    embedding = t.embedding_forward + t.embedding_backward;
    head = last.head_forward + last.head_backward + last.head_weight;
  }
  double layer(int stage) const {
    const LayerTimes& t = stages.of(stages.uneven ? stage : 0);
    return again ? t.recomputed_layer_total() : t.layer_total();
  }
  double slowest(const std::vector<int>& cut) const {
    double most = 0;
    const int n = static_cast<int>(cut.size());
    for (int c = 0; c < n; ++c)
      most = std::max(most, cut[static_cast<std::size_t>(c)] * layer(c % pp) + (c == 0 ? embedding : 0) +
                                (c + 1 == n ? head : 0));
    return most;
  }
  EndCosts ends() const {
    EndCosts cost{layer(0), 0, layer(pp - 1), embedding, head};
    for (int stage = 1; stage + 1 < pp; ++stage) cost.inner = std::max(cost.inner, layer(stage));
    return cost;
  }

  int pp;
  const StageLayerTimes& stages;
  double embedding = 0, head = 0;
  bool again = false;

 private:
  static const StageLayerTimes& priced(ParallelPlan p, SearchCache& cache) {
    p.activation_offload = 0;
    return cache.layers(p);
  }
};

// Whether the value stands in the list before that place.
template <class T>
bool listed_before(const std::vector<T>& list, const T& wanted, std::size_t index) {
  const auto end = list.begin() + static_cast<std::ptrdiff_t>(index);
  return std::find(list.begin(), end, wanted) != end;
}

}  // namespace

const std::vector<int>* SearchTree::ruled_cut(const ParallelPlan& p, StageSplit split,
                                              SearchCache& cache) const {
  const auto found = ruled_.find({p.pp, p.vp});
  if (found == ruled_.end() || found->second.empty()) return nullptr;
  const auto& cuts = found->second;
  if (split == StageSplit::even || cuts.size() == 1) return &cuts.front();
  const ChunkPrices prices(p, cache);
  return &*std::ranges::min_element(cuts, {}, [&](const auto& cut) { return prices.slowest(cut); });
}

void SearchTree::fill_chunks(const ParallelPlan& p, StageSplit split, SearchCache& cache,
                             std::vector<LayerRange>& out) const {
  const int n = job_.model.n_layers, n_chunks = p.pp * p.vp;
  if (p.pp == 1 || n_chunks > most_chunks_) return fill_even(p, out);
  if (!ruled_.empty())
    if (const auto* cut = ruled_cut(p, split, cache)) return void(out = chunks_of(*cut));
  if (split == StageSplit::even && (!cuts_ends_ || n % n_chunks == 0)) return fill_even(p, out);
  if (split == StageSplit::even) {
    if (const auto cut = ends_cut(n, p.pp, p.vp); !cut.empty()) return void(out = chunks_of(cut));
    return fill_even(p, out);
  }
  const ChunkPrices prices(p, cache);
  if (prices.layer(0) <= 0) return fill_even(p, out);
  if (cuts_ends_) {
    if (const auto cut = ends_cut(n, p.pp, p.vp, prices.ends()); !cut.empty())
      return void(out = chunks_of(cut));
    return fill_even(p, out);
  }
  if (!prices.stages.uneven)
    return balanced_chunks(n, n_chunks, {prices.layer(0), prices.embedding, prices.head}, out);
  std::vector<double> layer;
  for (int c = 0; c < n_chunks; ++c) layer.push_back(prices.layer(c % p.pp));
  balanced_chunks(n, layer, prices.embedding, prices.head, out);
}

std::vector<LayerRange> SearchTree::more_chunks_than_layers(const ParallelPlan& p) const {
  const int n = job_.model.n_layers, n_chunks = p.pp * p.vp;
  if (p.pp == 1 || n_chunks <= n || n_chunks > most_chunks_) return {};
  const auto cut = cut_with_ends(n, n_chunks, 1, n_chunks - n - 1);
  return cut ? chunks_of(*cut) : std::vector<LayerRange>();
}

void SearchTree::fill_even(const ParallelPlan& p, std::vector<LayerRange>& out) const {
  const int n = job_.model.n_layers, n_chunks = p.pp * p.vp;
  out.clear();
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
    p.schedule = space_.form[f].schedule;
    p.vp = space_.form[f].vp;
    for (const StageSplit split : space_.split) {
      fill_chunks(p, split, cache, cache.chunks);
      SearchCache::Stages& stages = out.emplace_back();
      if (split == StageSplit::balanced) {
        fill_chunks(p, StageSplit::even, cache, cache.even);
        stages.uneven = cache.chunks != cache.even;
      }
      stages.longest = longest_chunk(cache.chunks);
      const Flight in_flight = flight(p, cache.chunks);
      stages.elements = in_flight.elements;
      stages.activations = in_flight.activations;
      pipeline_times(p, cache.chunks, job_.stack, m, cache.layers(p), steady, cache.times);
      stages.least = closed_bound(cache.times, {}, 0);
    }
  }
  return out;
}

std::vector<SearchCache::Law>& SearchTree::form_laws(ParallelPlan p, std::uint64_t members,
                                                     SearchCache& cache, Expansion& out) const {
  auto& laws =
      cache.laws(SearchCache::Asked::form, {p.pp, microbatches(p, job_.training)}, space_.form.size());
  p.recompute = Recompute{};
  for (std::size_t f = 0; f < space_.form.size(); ++f) {
    p.schedule = space_.form[f].schedule;
    p.vp = space_.form[f].vp;
    p.chunks = more_chunks_than_layers(p);
    lawful(p, members, out, laws[f]);
  }
  return laws;
}

bool SearchTree::cut_is_possible(const ParallelPlan& p, StageSplit split, const SearchCache::Stages& stages,
                                 std::uint64_t members, Expansion& out) const {
  const auto fits_longest = [&](const char* field, int layers) {
    if (layers <= stages.longest) return true;
    reject(
        Outcome::inconsistent, members, p,
        [&] {
          return fmt::format("{} is {}, expected at most the {} layers of the longest chunk", field, layers,
                             stages.longest);
        },
        out);
    return false;
  };
  if (split != StageSplit::balanced && cuts_evenly_ && p.pp * p.vp > job_.model.n_layers) {
    reject(
        Outcome::inconsistent, members, p,
        [&] {
          return fmt::format("pp * vp is {}, expected at most the {} layers of an even split", p.pp * p.vp,
                             job_.model.n_layers);
        },
        out);
    return false;
  }
  if (!fits_longest("recompute_layers", p.recompute.layers) ||
      !fits_longest("activation_offload", least_offloaded_))
    return false;
  if (stages.uneven && job_.stack.can.uneven_stages == UnevenStages::none) {
    reject(
        Outcome::unsupported_by_stack, members, p,
        [&] { return fmt::format("{} needs equal stages", job_.stack.name); }, out);
    return false;
  }
  return true;
}

void SearchTree::expand_kernels(const Node& node, SearchCache& cache, Expansion& out) const {
  const std::uint64_t members = below(Level::pipeline);
  ParallelPlan p = decided(node.choice, Level::kernels, cache);
  const int m = microbatches(p, job_.training);
  const bool is_all_steady = steady(p);
  const double lowest_memory = lowest_memory_offload(p), closing = cache.closing(p),
               exchanged = cache.stateless_closing(p);
  Node child = node;
  child.level = Level::pipeline;
  child.members = members;
  const bool full_listed =
      listed_before(space_.recompute, Recompute{RecomputeKind::full, -1}, node.choice.recompute);
  auto& laws = form_laws(p, space_.split.size() * members, cache, out);
  auto stages = cache
                    .stages(node.choice, node.order_class, is_all_steady,
                            [&] { return stages_of(p, laws, is_all_steady, cache); })
                    .begin();
  for (std::size_t f = 0; f < space_.form.size(); ++f) {
    if (laws[f].against) continue;
    p.schedule = space_.form[f].schedule;
    p.vp = space_.form[f].vp;
    for (std::size_t split = 0; split < space_.split.size(); ++split) {
      const SearchCache::Stages& known = *stages++;
      const bool balanced = space_.split[split] == StageSplit::balanced;
      if (!cut_is_possible(p, space_.split[split], known, members, out)) continue;
      // The same layers on the same stages, or the same recomputation, as an earlier member. What is balanced depends
      // on what is recomputed, so that only even splits are known to be the same.
      if ((balanced && !known.uneven && listed_before(space_.split, StageSplit::even, split)) ||
          (!balanced && p.recompute.layers == known.longest && full_listed)) {
        out.outcomes[Outcome::duplicate] += members;
        continue;
      }
      // What all below keep alike is asked once.
      if (!may_offload_activations_ &&
          !flight_fits({known.elements, known.activations}, p, lowest_memory, members, out))
        continue;
      ++out.bounds;
      child.choice.form = small(f);
      child.choice.split = small(split);
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
  return {bucket_limit(p, rules), units ? 1 : p.last_bucket_split, reduces && p.overlap_grad_reduce,
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
          c.overlap_grad_reduce = small(gr);
          c.overlap_param_gather = small(pg);
          c.bucket_elements = small(b);
          c.last_bucket_split = small(lb);
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
  // Bounds are asked for of shares that the stack cannot offload, too; what it says of them is no law of the buckets.
  const auto is_lawful = [&](std::size_t at) {
    if (laws[at].known) return lawful(p, laws[at]);
    return lawful(without_offload(p), laws[at]);
  };
  each_bucketing(p, ignored, is_lawful, [&](bool repeated) {
    if (!repeated)
      out.push_back({p.bucket_elements, p.last_bucket_split, p.overlap_grad_reduce, p.overlap_param_gather});
  });
  return out;
}

// States of the plans below one whose buckets and overlaps are open, added to what the cache lists.
void SearchTree::list_states(ParallelPlan p, const Bucketings& bucketings, int chunks_id, SearchCache& cache,
                             SearchCache::Share share) {
  for (const SearchCache::Bucketing& b : bucketings) {
    p.bucket_elements = b.elements;
    p.last_bucket_split = b.last_split;
    p.overlap_grad_reduce = b.reduce;
    p.overlap_param_gather = b.gather;
    cache.states.push_back(&cache.state(p, chunks_id, share));
  }
}

void SearchTree::list_states_from(ParallelPlan p, const Bucketings& bucketings, int chunks_id,
                                  SearchCache& cache, SearchCache::Share share) const {
  list_states(p, bucketings, chunks_id, cache, share);
  if (p.optimizer_offload == 1 || cache.shares().back() < 1) return;
  p.optimizer_offload = 1;
  if (sums_gradients_on_host(p, job_.stack.rules)) list_states(p, bucketings, chunks_id, cache);
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
          ++out.outcomes[Outcome::duplicate];
          return;
        }
        ++out.bounds;
        child.bound = std::max(node.bound, closed_bound(cache.times, cache.state(p, chunks_id), closing));
        out.add(child);
      });
}

}  // namespace sextant

#include "planner/answers/lowest_memory.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <tuple>
#include <vector>

#include <fmt/format.h>
#include <tbb/enumerable_thread_specific.h>

#include "planner/lowering/graph_size.hpp"
#include "planner/search/search_budget.hpp"
#include "planner/search/search_tree.hpp"
#include "planner/search/stage_split.hpp"
#include "planner/simulation/parallel_for.hpp"

namespace sextant {
namespace {

using Clock = std::chrono::steady_clock;

// What is decided of a node, each with all before it.
enum class Decided : std::uint8_t { nothing, degrees, state, kernels, stages, all_but_buckets };

struct LowestMemoryNode {
  double floor = 0;  // bytes that every layout below reserves
  Choice choice;
  Decided decided = Decided::nothing;
};

struct Outcome {
  std::vector<LowestMemoryNode> children;
  std::int64_t peak = std::numeric_limits<std::int64_t>::max();  // of a layout, the least
  std::vector<Choice> found;                                     // all that have it
};

// Indices of a list's values in that order.
template <class T, class Before>
std::vector<std::size_t> ordered(const std::vector<T>& list, Before before) {
  std::vector<std::size_t> indices(list.size());
  std::iota(indices.begin(), indices.end(), std::size_t{0});
  std::ranges::stable_sort(indices, [&](std::size_t a, std::size_t b) { return before(list[a], list[b]); });
  return indices;
}

enum class Wanted : std::uint8_t { lowest, any_that_fits };

class LowestMemorySearch {
 public:
  LowestMemorySearch(const Job& job, const SearchSpace& space, const SearchOptions& options, Wanted wanted)
      : job_(job),
        space_(space),
        options_(options),
        any_(wanted == Wanted::any_that_fits),
        limit_(options.memory_limit.value_or(job.cluster.device.memory).v),
        tree_(job, space, Bytes(limit_), [this] { return stopped(); }),
        caches_([this] { return SearchCache(job_, space_, shared_); }) {}

  LowestMemoryLayout run() {
    if (space_.size() > 0) queue_.push_back({});
    while (!queue_.empty() && !stopped() && !(any_ && found())) round();
    LowestMemoryLayout out;
    out.exact = queue_.empty() || (any_ && found());
    if (!out.exact) out.stopped = options_.cancel && options_.cancel->load() ? "interrupted" : kTimeSpent;
    auto floor = static_cast<double>(limit_);
    if (!out.exact)
      for (const LowestMemoryNode& node : queue_) floor = std::min(floor, node.floor);
    out.floor = Bytes(static_cast<std::int64_t>(floor));
    if (found()) {
      out.plan = tree_.plan(found_.front(), caches_.local());
      out.peak = Bytes(limit_);
      out.equals = space_of_found();
    }
    return out;
  }

 private:
  bool stopped() const {
    return (options_.cancel && options_.cancel->load()) ||
           (options_.budget_s > 0 &&
            std::chrono::duration<double>(Clock::now() - begin_).count() > options_.budget_s);
  }

  // Straight down to a first layout, then the lowest floor first.
  struct Later {
    bool deep;
    bool operator()(const LowestMemoryNode& a, const LowestMemoryNode& b) const {
      if (deep && a.decided != b.decided) return a.decided < b.decided;
      if (a.floor != b.floor) return a.floor > b.floor;
      return a.choice > b.choice;
    }
  };
  Later later() const { return {!found()}; }

  void round() {
    constexpr std::size_t kFirst = 4, kRound = 64;  // nodes, whatever the number of threads
    std::vector<LowestMemoryNode> nodes;
    while (!queue_.empty() && nodes.size() < (found() ? kRound : kFirst)) {
      std::pop_heap(queue_.begin(), queue_.end(), later());
      if (useful(queue_.back().floor)) nodes.push_back(queue_.back());
      queue_.pop_back();
    }
    std::vector<Outcome> outcomes(nodes.size());
    std::vector<char> expanded(nodes.size(), 0);  // of several threads: no vector<bool>
    parallel_for(nodes.size(), [&](std::size_t i) {
      if (stopped()) return;
      expand(nodes[i], caches_.local(), outcomes[i]);
      expanded[i] = 1;
    });
    for (std::size_t i = 0; i < nodes.size(); ++i)
      if (!expanded[i]) {
        queue_.push_back(nodes[i]);
        std::push_heap(queue_.begin(), queue_.end(), later());
      }
    const bool deep = !found();
    for (const Outcome& outcome : outcomes) {
      if (outcome.found.empty() || outcome.peak > limit_) continue;
      if (outcome.peak < limit_) found_.clear();
      limit_ = outcome.peak;
      found_.insert(found_.end(), outcome.found.begin(), outcome.found.end());
    }
    if (deep && found()) std::make_heap(queue_.begin(), queue_.end(), later());
    for (const Outcome& outcome : outcomes)
      for (const LowestMemoryNode& child : outcome.children)
        if (useful(child.floor)) {
          queue_.push_back(child);
          std::push_heap(queue_.begin(), queue_.end(), later());
        }
  }

  bool found() const { return !found_.empty(); }
  bool useful(double floor) const { return floor <= static_cast<double>(limit_); }
  bool lawful(const ParallelPlan& p) const { return !tree_.refused(p); }

  // `bytes` in buffers; a thousandth below, for roundings.
  void add(LowestMemoryNode child, Decided decided, double bytes, Outcome& out) const {
    child.floor = std::max(child.floor, tree_.needed(bytes));
    child.decided = decided;
    if (useful(child.floor)) out.children.push_back(child);
  }

  void expand(const LowestMemoryNode& node, SearchCache& cache, Outcome& out) {
    switch (node.decided) {
      case Decided::nothing:
        return divide(cache, out);
      case Decided::degrees:
        return shard(node, cache, out);
      case Decided::state:
        return choose_kernels(node, cache, out);
      case Decided::kernels:
        return cut_stages(node, cache, out);
      case Decided::stages:
        return add(node, Decided::all_but_buckets, tree_.fullest(tree_.plan(node.choice, cache)).bytes, out);
      case Decided::all_but_buckets:
        return measure(node, cache, out);
    }
  }

  // Elements of a mean stage.
  double elements(const ParallelPlan& p, SearchCache& cache) const {
    return static_cast<double>(cache.elements(p.tp)) / p.pp;
  }

  void divide(SearchCache& cache, Outcome& out) {
    LowestMemoryNode child;
    for (std::size_t tp = 0; tp < space_.tp.size(); ++tp)
      for (std::size_t cp = 0; cp < space_.cp.size(); ++cp)
        for (std::size_t pp = 0; pp < space_.pp.size(); ++pp) {
          const std::int64_t ranks = std::int64_t{space_.tp[tp]} * space_.cp[cp] * space_.pp[pp];
          if (ranks > space_.world || space_.world % ranks != 0) continue;
          child.choice.tp = small(tp);
          child.choice.cp = small(cp);
          child.choice.pp = small(pp);
          const ParallelPlan p = tree_.decided(child.choice, Level::degrees, cache);
          if (!space_.limits.admits(PlanField::dp, p.dp) || !lawful(tree_.with_some_stage(p))) continue;
          add(child, Decided::degrees, tree_.lowest_memory_state(p) * elements(p, cache), out);
        }
  }

  void shard(const LowestMemoryNode& node, SearchCache& cache, Outcome& out) {
    LowestMemoryNode child = node;
    ParallelPlan p = tree_.decided(node.choice, Level::degrees, cache);
    for (std::size_t mbs = 0; mbs < space_.micro_batch.size(); ++mbs) {
      p.micro_batch = space_.micro_batch[mbs];
      p.zero_stage = p.shard_degree = 0;
      if (has_too_many_passes(job_.model, microbatches(p, job_.training)) ||
          !lawful(tree_.with_some_stage(p)))
        continue;
      child.choice.micro_batch = small(mbs);
      for (std::size_t z = 0; z < space_.zero_stage.size(); ++z) {
        std::vector<int> seen;
        for (std::size_t sd = 0; sd < space_.shard_degree.size(); ++sd) {
          p.zero_stage = space_.zero_stage[z];
          p.shard_degree = space_.shard_degree[sd];
          if (!lawful(p) || !space_.limits.admits(PlanField::shard_degree, p.shards()) ||
              std::find(seen.begin(), seen.end(), p.shards()) != seen.end())
            continue;
          seen.push_back(p.shards());
          child.choice.zero_stage = small(z);
          child.choice.shard_degree = small(sd);
          add(child, Decided::state, tree_.lowest_memory_offload(p) * elements(p, cache), out);
        }
      }
    }
  }

  void choose_kernels(const LowestMemoryNode& node, SearchCache& cache, Outcome& out) {
    LowestMemoryNode child = node;
    ParallelPlan p = tree_.decided(node.choice, Level::sharding, cache);
    for (std::size_t sp = 0; sp < space_.sequence_parallel.size(); ++sp)
      for (std::size_t r = 0; r < space_.recompute.size(); ++r)
        for (std::size_t tiled = 0; tiled < space_.overlap_tp.size(); ++tiled) {
          p.sequence_parallel = space_.sequence_parallel[sp] != 0;
          p.overlap_tp = space_.overlap_tp[tiled] != 0;
          p.recompute = space_.recompute[r];
          // How many layers a chunk holds is decided with the stages.
          ParallelPlan lenient = p;
          if (lenient.recompute.kind == RecomputeKind::full && lenient.recompute.layers > 1)
            lenient.recompute.layers = 1;
          if (!lawful(lenient)) continue;
          child.choice.sequence_parallel = small(sp);
          child.choice.overlap_tp = small(tiled);
          child.choice.recompute = small(r);
          add(child, Decided::kernels, tree_.kernels_floor(p, cache), out);
          break;  // what overlaps holds no more of a layer
        }
  }

  void cut_stages(const LowestMemoryNode& node, SearchCache& cache, Outcome& out) {
    LowestMemoryNode child = node;
    const ParallelPlan kernels = tree_.decided(node.choice, Level::kernels, cache);
    const auto& orders = cache.classes(kernels).members;
    std::vector<LayerRange> even;
    std::vector<std::vector<LayerRange>> seen;  // of one form
    SearchTree::HeldBefore held(tree_);
    for (std::size_t f = 0; f < space_.form.size(); ++f) {
      ParallelPlan p = kernels;
      p.schedule = space_.form[f].schedule;
      p.vp = space_.form[f].vp;
      p.recompute = Recompute{};
      if (!lawful(p)) continue;
      p.recompute = kernels.recompute;
      child.choice.form = small(f);
      seen.clear();
      tree_.fill_even(p, even);
      for (std::size_t split = 0; split < space_.split.size(); ++split) {
        child.choice.split = small(split);
        // Order of axes and TP overlap decide what is balanced.
        for (std::size_t tiled = 0; tiled < space_.overlap_tp.size(); ++tiled)
          for (const auto& order : orders) {
            p.overlap_tp = space_.overlap_tp[tiled] != 0;
            p.axis_order = space_.axis_order[order.front()];
            if (!tree_.has_kernels(p)) continue;
            std::vector<LayerRange>& chunks = cache.chunks;
            tree_.fill_chunks(p, space_.split[split], cache, chunks);
            if (std::find(seen.begin(), seen.end(), chunks) != seen.end()) continue;
            seen.push_back(chunks);
            if (p.recompute.layers > longest_chunk(chunks) ||
                (chunks != even && job_.stack.can.uneven_stages == UnevenStages::none))
              continue;
            child.choice.axis_order = order.front();
            child.choice.overlap_tp = small(tiled);
            ParallelPlan cut = p;
            if (chunks != even) cut.chunks = chunks;
            offload(child, cut, seen.back(), held, out);
          }
      }
    }
  }

  // Fewer layers fetched ahead never need more.
  void offload(LowestMemoryNode child, ParallelPlan p, const std::vector<LayerRange>& chunks,
               SearchTree::HeldBefore& before, Outcome& out) const {
    std::vector<int> seen;
    for (const std::size_t ao : horizons_) {
      const ActivationOffload& a = space_.activation_offload[ao];
      p.activation_offload = a.of_chunk(longest_chunk(chunks));
      p.offload_horizon = a.horizon;
      if (std::find(seen.begin(), seen.end(), p.activation_offload) != seen.end()) continue;
      p.optimizer_offload = 0;
      p.parameter_offload = false;
      if (!lawful(p) || !space_.limits.admits(PlanField::activation_offload, p.activation_offload)) continue;
      seen.push_back(p.activation_offload);
      child.choice.activation_offload = small(ao);
      const SearchTree::Held& held = before.of(p);
      const SearchTree::Flight flight = tree_.flight(p, chunks);
      for (std::size_t po = 0; po < space_.parameter_offload.size(); ++po)
        for (std::size_t oo = 0; oo < space_.optimizer_offload.size(); ++oo) {
          p.optimizer_offload = space_.optimizer_offload[oo];
          p.parameter_offload = space_.parameter_offload[po] != 0;
          if (!lawful(p) || space_.idle_horizon(p) || !tree_.host_holds_state(p)) continue;
          child.choice.optimizer_offload = small(oo);
          child.choice.parameter_offload = small(po);
          add(child, Decided::stages, tree_.stages_floor(p, tree_.state_of_element(p), chunks, flight, held),
              out);
        }
    }
  }

  void measure(const LowestMemoryNode& node, SearchCache& cache, Outcome& out) const {
    Choice choice = node.choice;
    std::vector<SearchTree::Buckets> seen;
    for (std::size_t gr = 0; gr < space_.overlap_grad_reduce.size(); ++gr)
      for (std::size_t b = 0; b < space_.bucket_elements.size(); ++b)
        for (std::size_t lb = 0; lb < space_.last_bucket_split.size(); ++lb)
          for (const std::size_t pg : gathers_) {
            choice.overlap_grad_reduce = small(gr);
            choice.overlap_param_gather = small(pg);
            choice.bucket_elements = small(b);
            choice.last_bucket_split = small(lb);
            const ParallelPlan p = tree_.plan(choice, cache);
            if (!lawful(p)) continue;
            const SearchTree::Buckets buckets = tree_.buckets(p);
            if (std::find(seen.begin(), seen.end(), buckets) != seen.end()) break;
            seen.push_back(buckets);
            const PlanMemory memory = plan_memory(job_, p);
            if (memory.host_of_node <= job_.cluster.node.host_memory && memory.peak.v <= out.peak) {
              if (memory.peak.v < out.peak) out.found.clear();
              out.peak = memory.peak.v;
              out.found.push_back(choice);
            }
            break;  // gathered beside compute, no less is held
          }
  }

  // One list of values per field that memory depends on.
  SearchSpace space_of_found() const {
    SearchSpace s = space_;
    const auto keep = [&](auto SearchSpace::*list, std::uint8_t Choice::*field) {
      const auto& all = space_.*list;
      auto& some = s.*list;
      some.clear();
      for (std::size_t i = 0; i < all.size(); ++i)
        if (std::any_of(found_.begin(), found_.end(), [&](const Choice& c) { return c.*field == i; }))
          some.push_back(all[i]);
    };
    keep(&SearchSpace::tp, &Choice::tp);
    keep(&SearchSpace::cp, &Choice::cp);
    keep(&SearchSpace::pp, &Choice::pp);
    keep(&SearchSpace::micro_batch, &Choice::micro_batch);
    keep(&SearchSpace::zero_stage, &Choice::zero_stage);
    keep(&SearchSpace::shard_degree, &Choice::shard_degree);
    keep(&SearchSpace::sequence_parallel, &Choice::sequence_parallel);
    keep(&SearchSpace::recompute, &Choice::recompute);
    keep(&SearchSpace::form, &Choice::form);
    keep(&SearchSpace::optimizer_offload, &Choice::optimizer_offload);
    keep(&SearchSpace::parameter_offload, &Choice::parameter_offload);
    keep(&SearchSpace::activation_offload, &Choice::activation_offload);
    keep(&SearchSpace::overlap_grad_reduce, &Choice::overlap_grad_reduce);
    keep(&SearchSpace::bucket_elements, &Choice::bucket_elements);
    keep(&SearchSpace::last_bucket_split, &Choice::last_bucket_split);
    return s;
  }

  const Job& job_;
  const SearchSpace& space_;
  const SearchOptions& options_;
  bool any_;
  std::int64_t limit_;
  SearchTree tree_;
  std::shared_ptr<SearchCache::Shared> shared_ = SearchCache::make_shared();
  tbb::enumerable_thread_specific<SearchCache> caches_;
  // What needs less comes first.
  const std::vector<std::size_t> horizons_ =
      ordered(space_.activation_offload,
              [](const ActivationOffload& a, const ActivationOffload& b) { return a.horizon < b.horizon; });
  const std::vector<std::size_t> gathers_ = ordered(space_.overlap_param_gather, std::less<>());
  std::vector<LowestMemoryNode> queue_;  // a heap
  std::vector<Choice> found_;            // of peak limit_
  Clock::time_point begin_ = Clock::now();
};

}  // namespace

LowestMemoryLayout lowest_memory_layout(const Job& job, const SearchSpace& space,
                                        const SearchOptions& options) {
  return LowestMemorySearch(job, space, options, Wanted::lowest).run();
}

LowestMemoryLayout any_layout(const Job& job, const SearchSpace& space, const SearchOptions& options) {
  return LowestMemorySearch(job, space, options, Wanted::any_that_fits).run();
}

}  // namespace sextant

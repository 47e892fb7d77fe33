// Members of the space that are worth simulating before the tree is walked.
#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "planner/lowering/graph_size.hpp"
#include "planner/search/search_tree.hpp"

namespace sextant {
namespace {

constexpr int kFetchedAhead = 4;        // units of parameters on the host
constexpr std::size_t kRoomySizes = 4;  // micro-batches where room is made for them

// The index of a value, or of the first where it is not listed; and of the greatest.
std::uint8_t index(const auto& list, const auto& wanted) {
  const auto found = std::find(list.begin(), list.end(), wanted);
  return small(found == list.end() ? 0 : static_cast<std::size_t>(found - list.begin()));
}
std::uint8_t most(const auto& list) {
  return small(static_cast<std::size_t>(std::max_element(list.begin(), list.end()) - list.begin()));
}

// How many layers of a chunk may be listed as on the host, ascending.
std::vector<int> layers_on_host(const std::vector<ActivationOffload>& list, int longest) {
  std::set<int> layers;
  for (const ActivationOffload& a : list) layers.insert(std::min(a.layers, longest));
  return {layers.begin(), layers.end()};
}

constexpr bool kNear = false;

// Where about as many are there, fetched as little ahead as is listed, or as far.
std::uint8_t offloaded(const std::vector<ActivationOffload>& list, int longest, double layers, bool far) {
  const auto order = [&](const ActivationOffload& a) {
    return std::pair(std::abs(std::min(a.layers, longest) - layers), far ? -a.horizon : a.horizon);
  };
  return small(static_cast<std::size_t>(std::ranges::min_element(list, {}, order) - list.begin()));
}

}  // namespace

// What is tried of one division of the ranks: of the members that fit, that of the least bound.
class SearchTree::Trial {
 public:
  Trial(const SearchTree& tree, const Node& division, double limit, SearchCache& cache)
      : tree_(tree), space_(tree.space_), can_(tree.job_.stack.can), limit_(limit), cache_(cache) {
    c = division.choice;
    d = plan_of(space_, c);
    c.sequence_parallel = index(space_.sequence_parallel, static_cast<std::uint8_t>(d.tp > 1));
    if (d.tp > 1) c.overlap_tp = index(space_.overlap_tp, std::uint8_t{1});
    if (!tree.has_kernels(plan_of(space_, c))) c.overlap_tp = index(space_.overlap_tp, std::uint8_t{0});
    shards_optimizer = std::ranges::count(can_.zero_stages, 1) > 0;
  }

  void consider() {
    const ParallelPlan p = tree_.plan(c, cache_);
    const auto least = tree_.bound(p, best ? std::min(limit_, best->bound) : limit_, cache_);
    if (!least || (best && *least >= best->bound)) return;
    Node node;
    node.level = Level::full;
    node.choice = c;
    node.refined = 1;
    node.bound = *least;
    Expansion ignored;
    if (tree_.fits(node, cache_, ignored)) best = node;
  }

  // Runs `visit` with small micro-batches, every form of the pipeline and the usual kinds of recomputation.
  template <class F>
  void each(F visit) {
    each(2, visit);
  }
  template <class F>
  void each(std::size_t sizes, F visit) {
    for (const std::size_t mbs : smallest_sizes(sizes))
      for (std::size_t f = 0; f < space_.form.size(); ++f)
        for (const RecomputeKind kind :
             {RecomputeKind::none, RecomputeKind::selective, RecomputeKind::full}) {
          if (d.pp == 1 && space_.form[f].schedule != PipelineSchedule::one_f_one_b) continue;
          c.micro_batch = small(mbs);
          c.form = small(f);
          c.recompute = index(space_.recompute, Recompute{kind, -1});
          if (tree_.stopped_()) return;
          visit();
        }
  }

  // Sharded optimizer state; of stacks that shard nothing or gradients too, each of what they offer, with parameters on the
  // device or on the host.
  void usual(bool on_host) {
    if (on_host && (shards_optimizer || !tree_.may_offload_parameters_)) return;
    c.parameter_offload = index(space_.parameter_offload, static_cast<std::uint8_t>(on_host));
    c.optimizer_offload =
        index(space_.optimizer_offload, on_host && can_.parameter_offload_needs_optimizer ? 1.0 : 0.0);
    c.activation_offload =
        index(space_.activation_offload, ActivationOffload{0, on_host ? kFetchedAhead : 1});
    std::vector<int> stages = {d.replicas() > 1 && shards_optimizer ? 1 : 0};
    if (d.replicas() > 1 && !shards_optimizer) stages = can_.zero_stages;
    std::erase_if(stages, [&](int stage) { return std::ranges::count(space_.zero_stage, stage) == 0; });
    if (stages.empty()) stages = space_.zero_stage;
    each([&] {
      for (const int stage : stages) {
        c.zero_stage = index(space_.zero_stage, stage);
        consider();
      }
    });
  }

  // Without a pipeline: all sharded that can be, and parameters and activations on the host as far as that helps.
  void sharded() {
    const int highest = std::ranges::max(can_.zero_stages);
    if (d.pp > 1 || d.replicas() == 1 || !shards_optimizer || highest < 2 ||
        std::ranges::count(space_.zero_stage, highest) == 0)
      return;
    c.zero_stage = index(space_.zero_stage, highest);
    const auto& ao = space_.activation_offload;
    const std::vector<int> layers = layers_on_host(ao, longest());
    each([&] {
      for (const std::uint8_t parameters :
           std::set(space_.parameter_offload.begin(), space_.parameter_offload.end())) {
        c.parameter_offload = index(space_.parameter_offload, parameters);
        c.optimizer_offload = index(space_.optimizer_offload,
                                    parameters != 0 && can_.parameter_offload_needs_optimizer ? 1.0 : 0.0);
        for (const bool far : {false, true}) {
          const auto on_host = [&](int n) { c.activation_offload = offloaded(ao, longest(), n, far); };
          std::set<int> tried = {0, layers.back() / 2, layers.back()};
          const auto fitting = std::ranges::partition_point(layers, [&](int n) {
            on_host(n);
            const ParallelPlan p = tree_.plan(c, cache_);
            return unlawful_reason(tree_.job_, p) || !tree_.fits(p);
          });
          if (fitting != layers.end()) tried.insert(*fitting);
          for (const int n : tried) {
            on_host(n);
            consider();
          }
        }
      }
    });
  }

  // Activations on the host as far as that helps, with or without parameters, and then no more of the optimizer than must
  // leave.
  void roomy(bool on_host) {
    if (on_host && !tree_.may_offload_parameters_) return;
    std::vector<int> stages;
    for (const int stage : can_.zero_stages)
      if (std::ranges::count(space_.zero_stage, stage) > 0 && (stage > 0) == (d.replicas() > 1))
        stages.push_back(stage);
    c.parameter_offload = index(space_.parameter_offload, static_cast<std::uint8_t>(on_host));
    const int most_vp = space_.n_layers / d.pp;
    each(kRoomySizes, [&] {
      const int vp = space_.form[c.form].vp;
      if (vp > 2 && vp != 4 && vp != 8 && vp != most_vp) return;
      for (const int stage : stages)
        for (const double part : {0.0, 0.5, 1.0}) {
          c.zero_stage = index(space_.zero_stage, stage);
          c.activation_offload = offloaded(space_.activation_offload, longest(), part * longest(), kNear);
          if (tree_.quickest(tree_.plan(c, cache_), cache_) > (best ? std::min(limit_, best->bound) : limit_))
            continue;
          if (const auto found = tree_.with_least_share(c, cache_)) {
            c = *found;
            consider();
          }
        }
    });
  }

  // From a little of what saves memory to all of it.
  void lean() {
    each([&] {
      for (int saved = 0; saved < 4 && !best; ++saved) {
        c.zero_stage = most(space_.zero_stage);
        c.optimizer_offload = saved > 0 ? most(space_.optimizer_offload) : small(0);
        c.parameter_offload = saved > 1 ? most(space_.parameter_offload) : small(0);
        c.activation_offload =
            saved > 2 ? offloaded(space_.activation_offload, longest(), longest(), kNear) : small(0);
        consider();
      }
    });
  }

  std::optional<Node> best;
  ParallelPlan d;  // the division alone

 private:
  int longest() const {  // of an even split
    const int n_chunks = d.pp * space_.form[c.form].vp;
    return (space_.n_layers + n_chunks - 1) / n_chunks;
  }

  // The smallest micro-batches; of very large batches those that leave few enough.
  std::vector<std::size_t> smallest_sizes(std::size_t most) const {
    std::vector<std::size_t> out;
    bool passed_over = false;
    ParallelPlan p = d;
    for (std::size_t i = 0; i < space_.micro_batch.size() && out.size() < most; ++i) {
      p.micro_batch = space_.micro_batch[i];
      const int m = microbatches(p, tree_.job_.training);
      const bool useless = has_too_many_passes(tree_.job_.model, m) || (passed_over && m == 0);
      passed_over = passed_over || useless;
      if (!useless) out.push_back(i);
    }
    return out;
  }

  const SearchTree& tree_;
  const SearchSpace& space_;
  const StackCapabilities& can_;
  double limit_;
  SearchCache& cache_;
  Choice c;
  bool shards_optimizer = false;
};

std::optional<Node> SearchTree::guess(const Node& division, Guess what, double limit,
                                      SearchCache& cache) const {
  Trial trial(*this, division, limit, cache);
  if (trial.d.tp > job_.cluster.node.gpus && what != Guess::lean) return std::nullopt;
  if (what == Guess::lean)
    trial.lean();
  else if (what == Guess::roomy || what == Guess::roomy_on_host)
    trial.roomy(what == Guess::roomy_on_host);
  else
    trial.usual(what == Guess::on_host);
  if (what == Guess::on_host) trial.sharded();
  return trial.best;
}

}  // namespace sextant

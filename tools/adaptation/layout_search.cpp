#include "tools/adaptation/layout_search.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>
#include <set>

#include "planner/answers/balance_replicas.hpp"
#include "planner/answers/balance_shards.hpp"
#include "planner/answers/goodput.hpp"
#include "planner/answers/shortlist.hpp"
#include "planner/answers/sub_cluster.hpp"
#include "planner/calibration/profile_priors.hpp"

namespace sextant {
namespace {

constexpr std::size_t kMostSizes = 4;
constexpr int kShapes = 12;  // of a sound machine, whose replicas are then balanced
constexpr int kByGpu = 64;   // GPUs up to which each number of them is tried; above, whole nodes are left out

// What the layout does without, others do without as well.
PlanLimits as_plain_as(const ParallelPlan& plan) {
  PlanLimits limits;
  const auto none_of = [&](PlanField field) { limits.limits.push_back({field, Relation::equal, 0}); };
  if (plan.optimizer_offload == 0) none_of(PlanField::optimizer_offload);
  if (!plan.parameter_offload) none_of(PlanField::parameter_offload);
  if (plan.activation_offload == 0) none_of(PlanField::activation_offload);
  return limits;
}

// Numbers of GPUs, fewer than there are, that the batch and the layers divide among whole nodes: 8 x 63 x 32 of 16,376.
std::vector<int> sizes_that_divide(const ClusterSpec& all, const ModelSpec& model,
                                   const TrainingSpec& training) {
  const int gpus = all.gpus(), node = all.node.gpus;
  std::set<int, std::greater<>> sizes;
  for (int replicas = 1; replicas <= std::min(training.global_batch, gpus / node); ++replicas) {
    if (training.global_batch % replicas != 0) continue;
    const int stages = std::min(model.n_layers, gpus / (node * replicas));
    if (const int size = node * replicas * stages; 2 * size > gpus && size < gpus) sizes.insert(size);
  }
  std::vector<int> most(sizes.begin(), sizes.end());
  if (most.size() > kMostSizes) most.resize(kMostSizes);
  return most;
}

// Clusters with fewer and fewer of the slow parts in use.
std::vector<ClusterSpec> worth_a_look(const ClusterSpec& all, const ModelSpec& model,
                                      const TrainingSpec& training) {
  std::vector<ClusterSpec> clusters = {all};
  const int gpus = all.gpus();
  if (gpus <= kByGpu) {
    for (int n = gpus - 1; n >= std::max(1, (gpus + 1) / 2); --n) clusters.push_back(keep_fastest(all, n));
    return clusters;
  }
  std::set<int, std::greater<>> sizes;
  for (const int n : gpus_without_slow_nodes(all)) sizes.insert(n);
  if (gpus < all.nodes * all.node.gpus || !sizes.empty())
    for (const int n : sizes_that_divide(all, model, training)) sizes.insert(n);
  for (const int n : sizes) clusters.push_back(keep_fastest(all, n));
  return clusters;
}

}  // namespace

Layout layout_on(const ParallelPlan& plan, const ClusterSpec& used, const ClusterSpec& all) {
  const std::vector<GpuPlace> some = usable_gpus(used);
  const std::set<GpuPlace> ranks(some.begin(), some.begin() + plan.world());
  Layout layout{plan, {}};
  for (const GpuPlace& gpu : usable_gpus(all))
    if (!ranks.contains(gpu)) layout.idle.push_back(gpu);
  return layout;
}

Question question_of(const PlanFile& file, const std::string& profile, const std::filesystem::path& presets) {
  Question q;
  q.model = file.model;
  q.training = file.training;
  q.stack = file.stack;
  q.cluster = file.cluster;
  if (!profile.empty()) q.profile = GivenProfile{profile, load_profile(profile, presets)};
  return q;
}

LayoutSearch::LayoutSearch(Question question, const ParallelPlan& present, std::filesystem::path presets,
                           int threads, Idle idle)
    : asked_(std::move(question)),
      presets_(std::move(presets)),
      threads_(threads),
      idle_(idle),
      runs_here_(asked_.stack.name == kProfiledStack),
      basis_{load_decision_rule(presets_), load_evidence(presets_)} {
  asked_.limits = as_plain_as(present);
  asked_.plan.reset();
  asked_.file.reset();
}

Question LayoutSearch::question(ClusterSpec cluster) const {
  Question q = asked_;
  q.cluster = std::move(cluster);
  return q;
}

std::vector<ParallelPlan> LayoutSearch::shapes(const ClusterSpec& all,
                                               const std::atomic<bool>& abandoned) const {
  if (!asked_.stack.can.uneven_microbatches) return {};
  ClusterSpec sound = all;
  for (Defect& d : sound.defects) d.compute_factor = 1;
  std::vector<ParallelPlan> found;
  std::set<int> sizes = {all.gpus()};
  if (idle_ == Idle::some) sizes.insert(static_cast<int>(std::bit_floor(static_cast<unsigned>(all.gpus()))));
  for (const int gpus : sizes) {
    if (abandoned) break;
    const Planning planning(question(keep_fastest(sound, gpus)), presets_);
    const Question& q = planning.question();
    PlanLimits limits = q.limits;
    limits.limits.push_back({PlanField::zero_stage, Relation::less_equal, 1});
    SearchOptions options;
    options.top = kShapes;
    options.cancel = &abandoned;
    options.threads = threads_;
    const SearchReport report = search_possible(
        planning.job(), default_space(q.model, q.training, q.cluster.device, gpus, limits), options);
    for (const RankedPlan& ranked : report.ranked) found.push_back(ranked.plan);
  }
  return found;
}

std::vector<Forecast> LayoutSearch::plans(const ClusterSpec& all, const std::atomic<bool>& abandoned) const {
  std::vector<Forecast> found;
  std::optional<Seconds> best;
  const std::vector<ParallelPlan> unlike = shapes(all, abandoned);
  const auto clusters =
      idle_ == Idle::none ? std::vector{all} : worth_a_look(all, asked_.model, asked_.training);
  for (const ClusterSpec& used : clusters) {
    if (abandoned) break;
    const Planning planning(question(used), presets_);
    const Question& q = planning.question();
    const auto add = [&](const ParallelPlan& plan) {
      for (const auto& p : {std::optional(plan), with_balanced_shards(planning.job(), plan)}) {
        if (!p) continue;
        const Layout layout = layout_on(*p, used, all);
        found.push_back({layout, step(layout, all)});
        if (!best || found.back().step < *best) best = found.back().step;
      }
    };
    if (const auto balanced = best_balanced(planning.job(), unlike);
        balanced && (!best || balanced->prediction.step < *best))
      add(balanced->plan);
    SearchOptions options;
    options.top = 1;
    options.threads = threads_;
    options.cancel = &abandoned;
    if (best) options.at_most = simulated_of(planning.job(), used.gpus(), *best);
    const SearchReport report = search_possible(
        planning.job(), default_space(q.model, q.training, q.cluster.device, used.gpus(), q.limits), options);
    if (report.ranked.empty()) continue;
    options.at_most.reset();
    const ParallelPlan plan = runs_here_
                                  ? report.ranked.front().plan
                                  : recommend(planning.job(), q.limits, report, basis_, options).plan.plan;
    add(plan);
  }
  std::ranges::stable_sort(found, {}, [](const Forecast& f) { return f.step.v; });
  return found;
}

std::vector<Forecast> LayoutSearch::kinds(const Layout& present, const ClusterSpec& all, int count) const {
  const Planning planning(question(all), presets_);
  const Question& q = planning.question();
  SearchOptions options;
  options.top = count;
  options.threads = threads_;
  const SearchReport report = search_possible(
      planning.job(), default_space(q.model, q.training, q.cluster.device, all.gpus(), q.limits), options);
  std::vector<RankedPlan> pool = report.ranked;
  if (!pool.empty())
    std::ranges::move(other_kinds(planning.job(), q.limits, pool.front(), options), std::back_inserter(pool));
  std::vector<Forecast> found = {{present, step(present, all)}};
  for (const std::size_t i : shortlist(pool, count)) {
    const Layout layout = layout_on(pool[i].plan, all, all);
    if (layout != present && static_cast<int>(found.size()) < count)
      found.push_back({layout, step(layout, all)});
  }
  return found;
}

Seconds LayoutSearch::step(const Layout& layout, const ClusterSpec& cluster) const {
  const Planning planning(question(used_by(layout, cluster)), presets_);
  return predict(planning.predicted_job(), layout.plan).step;
}

Seconds LayoutSearch::move(const Layout& to, const ClusterSpec& cluster) const {
  const Bytes state = checkpoint_size(asked_.model, asked_.training, asked_.stack).total();
  const ParallelPlan& p = to.plan;
  const std::vector<int> weights = shard_weights_of(p);
  const double share = static_cast<double>(std::ranges::max(weights)) /
                       std::accumulate(weights.begin(), weights.end(), 0) / (p.tp * p.pp);
  const int nodes = cluster.nodes;
  const BytesPerSecond link = nodes > 1
                                  ? cluster.fabric.bandwidth * (cluster.fabric.efficiency / cluster.node.gpus)
                                  : cluster.node.link_bandwidth;
  return link.v > 0 ? Seconds(static_cast<double>(state.v) * share / link.v) : Seconds(0);
}

AdaptationTools LayoutSearch::tools() const {
  return {.plans = [this](const ClusterSpec& cluster,
                          const std::atomic<bool>& abandoned) { return plans(cluster, abandoned); },
          .step = [this](const Layout& layout, const ClusterSpec& cluster) { return step(layout, cluster); },
          .move = [this](const Layout& to, const ClusterSpec& cluster) { return move(to, cluster); }};
}

}  // namespace sextant

#include "tools/adaptation/layout_search.hpp"

#include <algorithm>
#include <set>

#include "planner/answers/goodput.hpp"
#include "planner/answers/shortlist.hpp"
#include "planner/answers/sub_cluster.hpp"

namespace sextant {
namespace {

constexpr int kByGpu = 64;  // GPUs up to which each number of them is tried; above, whole nodes are left out

// What the layout does without, others do without as well.
PlanLimits as_plain_as(const ParallelPlan& plan) {
  PlanLimits limits;
  const auto none_of = [&](PlanField field) { limits.limits.push_back({field, Relation::equal, 0}); };
  if (plan.optimizer_offload == 0) none_of(PlanField::optimizer_offload);
  if (!plan.parameter_offload) none_of(PlanField::parameter_offload);
  if (plan.activation_offload == 0) none_of(PlanField::activation_offload);
  return limits;
}

// Clusters with fewer and fewer of the slow parts in use.
std::vector<ClusterSpec> worth_a_look(const ClusterSpec& all) {
  std::vector<ClusterSpec> clusters = {all};
  const int gpus = all.gpus();
  if (gpus <= kByGpu)
    for (int n = gpus - 1; n >= std::max(1, (gpus + 1) / 2); --n) clusters.push_back(keep_fastest(all, n));
  else
    for (const int n : gpus_without_slow_nodes(all)) clusters.push_back(keep_fastest(all, n));
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

LayoutSearch::LayoutSearch(const PlanFile& file, std::string profile, std::filesystem::path presets, int threads)
    : file_(file), profile_(std::move(profile)), presets_(std::move(presets)), threads_(threads) {}

Question LayoutSearch::question(ClusterSpec cluster) const {
  Question q;
  q.model = file_.model, q.training = file_.training, q.stack = file_.stack;
  q.cluster = std::move(cluster);
  q.limits = as_plain_as(file_.plan);
  if (!profile_.empty()) q.profile = GivenProfile{profile_, load_profile(profile_, presets_)};
  return q;
}

std::vector<Forecast> LayoutSearch::plans(const ClusterSpec& all) const {
  std::vector<Forecast> found;
  std::optional<Seconds> best;
  for (const ClusterSpec& used : worth_a_look(all)) {
    const Planning planning(question(used), presets_);
    const Question& q = planning.question();
    SearchOptions options;
    options.top = 1, options.threads = threads_;
    if (best) options.at_most = simulated_of(planning.job(), used.gpus(), *best);
    const SearchReport report = search_possible(
        planning.job(), default_space(q.model, q.training, q.cluster.device, used.gpus(), q.limits), options);
    if (report.ranked.empty()) continue;
    const ParallelPlan& plan = report.ranked.front().plan;
    const Layout layout = layout_on(plan, used, all);
    found.push_back({layout, step(layout, all)});
    if (!best || found.back().step < *best) best = found.back().step;
  }
  std::ranges::stable_sort(found, {}, [](const Forecast& f) { return f.step.v; });
  return found;
}

std::vector<Forecast> LayoutSearch::kinds(const Layout& present, const ClusterSpec& all, int count) const {
  const Planning planning(question(all), presets_);
  const Question& q = planning.question();
  SearchOptions options;
  options.top = count, options.threads = threads_;
  const SearchReport report = search_possible(
      planning.job(), default_space(q.model, q.training, q.cluster.device, all.gpus(), q.limits), options);
  std::vector<RankedPlan> pool = report.ranked;
  if (!pool.empty()) std::ranges::move(other_kinds(planning.job(), q.limits, pool.front(), options), std::back_inserter(pool));
  std::vector<Forecast> found = {{present, step(present, all)}};
  for (const std::size_t i : shortlist(pool, count)) {
    const Layout layout = layout_on(pool[i].plan, all, all);
    if (layout != present && static_cast<int>(found.size()) < count) found.push_back({layout, step(layout, all)});
  }
  return found;
}

Seconds LayoutSearch::step(const Layout& layout, const ClusterSpec& cluster) const {
  const Planning planning(question(used_by(layout, cluster)), presets_);
  return predict(planning.predicted_job(), layout.plan).step;
}

Seconds LayoutSearch::move(const Layout& to, const ClusterSpec& cluster) const {
  const Bytes state = checkpoint_size(file_.model, file_.training, file_.stack).total();
  const ParallelPlan& p = to.plan;
  const double share = 1.0 / (p.tp * p.pp * p.shards());
  const int nodes = cluster.nodes;
  const BytesPerSecond link = nodes > 1 ? cluster.fabric.bandwidth * (cluster.fabric.efficiency / cluster.node.gpus)
                                        : cluster.node.link_bandwidth;
  return link.v > 0 ? Seconds(static_cast<double>(state.v) * share / link.v) : Seconds(0);
}

AdaptationTools LayoutSearch::tools() const {
  return {.plans = [this](const ClusterSpec& cluster) { return plans(cluster); },
          .step = [this](const Layout& layout, const ClusterSpec& cluster) { return step(layout, cluster); },
          .move = [this](const Layout&, const Layout& to, const ClusterSpec& cluster) { return move(to, cluster); }};
}

}  // namespace sextant

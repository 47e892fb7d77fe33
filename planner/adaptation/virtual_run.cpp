#include "planner/adaptation/virtual_run.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <random>
#include <string>

#include <nlohmann/json.hpp>

namespace sextant {
namespace {

constexpr std::int64_t kPlayed =
    300;  // steps behind an event in which a policy learns, finds, changes and verifies

// Whether each piece of the state is with another rank as well.
bool replicated(const ParallelPlan& plan) { return plan.shards() < plan.replicas(); }

class Player {
 public:
  Player(const ClusterSpec& given, const ClusterEvents& events, const Layout& start,
         const AdaptationTools& tools, const VirtualRunOptions& options)
      : given_(given),
        events_(events),
        tools_(tools),
        options_(options),
        start_(start),
        random_(options.seed) {
    AdaptationOptions how;
    how.waits = true;
    if (options.adapt) policy_.emplace(given, start, tools, how);
    sound_step_ = tools.step(start, given);
  }

  VirtualRun play() {
    std::int64_t unchanged_since = 0;
    while (run_.steps < options_.steps) {
      const std::int64_t step = run_.steps;
      const std::int64_t reached = std::max(step, furthest_);  // the machine does not go back with the run
      if (reached > 0 && reached == step && events_.changes(step)) unchanged_since = step;
      if (!meet_lost(reached)) break;
      if (run_.steps < step) {
        unchanged_since = run_.steps;
        continue;
      }
      const ClusterSpec now = events_.at(given_, reached);
      const Seconds took = step_under(now);
      if (step - unchanged_since >= kPlayed) {
        make((step < furthest_ ? furthest_ : next_event(step)) - step, took);
        continue;
      }
      if (options_.progress) options_.progress(step);
      const StepObservation seen = observed(now, step, took);
      make(1, seen.duration);
      if (!policy_) continue;
      if (const auto decision = policy_->observe(seen, options_.steps - run_.steps)) {
        run_.decisions.push_back(*decision);
        if (decision->changes()) {
          change(*decision);
          unchanged_since = run_.steps;
        }
      }
    }
    run_.sound = sound_step_ * static_cast<double>(run_.steps);
    run_.last = layout();
    return run_;
  }

 private:
  void make(std::int64_t steps, Seconds each) {
    const std::int64_t again = std::min(steps, std::max<std::int64_t>(0, furthest_ - run_.steps));
    run_.redone += again;
    run_.redoing += each * static_cast<double>(again);
    run_.wall += each * static_cast<double>(steps);
    run_.steps += steps;
    furthest_ = std::max(furthest_, run_.steps);
  }
  // Of a policy, as GPUs that are back are idle in it at once.
  const Layout& layout() const { return policy_ ? policy_->layout() : start_; }
  void change(const Decision& d) {
    policy_->changed(d.move);
    run_.moving += d.move;
    run_.wall += d.move;
  }
  Seconds step_under(const ClusterSpec& now) {
    std::string key = plan_key(layout().plan);
    for (const GpuPlace& gpu : layout().idle)
      key += "-" + std::to_string(gpu.node) + "." + std::to_string(gpu.gpu);
    const nlohmann::json defects = now.defects;
    const auto [found, is_new] = known_.try_emplace(key + defects.dump());
    // A run that does not adapt has a spare in the place of what is lost.
    if (is_new) found->second = tools_.step(layout(), policy_ ? now : with_none_missing(now));
    return found->second;
  }
  std::int64_t next_event(std::int64_t step) const {
    std::int64_t next = options_.steps;
    for (const ClusterEvent& e : events_.events())
      for (const std::int64_t at : {e.from, e.until})
        if (at > step) next = std::min(next, at);
    return next;
  }
  double noise() { return std::exp(options_.noise * normal_(random_)); }

  StepObservation observed(const ClusterSpec& now, std::int64_t step, Seconds took) {
    StepObservation seen{.step = step, .duration = took * noise(), .compute = {}, .network = {}};
    if (!policy_) return seen;
    const auto defective = defective_nodes(now);
    const std::vector<GpuPlace> gpus = usable_gpus(used_by(layout(), policy_->belief().cluster()));
    for (int rank = 0; rank < layout().plan.world(); ++rank)
      seen.compute.push_back(noise() / state_of(defective, gpus[static_cast<std::size_t>(rank)]).compute);
    for (int node = 0; node < given_.nodes; ++node)
      seen.network.push_back(noise() / state_of(defective, {node, 0}).network);
    return seen;
  }

  // False when no layout is left.
  bool meet_lost(std::int64_t step) {
    const auto [gone, back] = events_.change(lost_, step);
    lost_ = events_.lost(step);
    if (policy_ && !back.empty()) policy_->find(back, step - 1);
    if (gone.empty()) return true;
    if (!policy_) return go_back();
    const bool kept = replicated(layout().plan);
    const Decision d = policy_->lose(gone, step - 1, options_.steps - step);
    run_.decisions.push_back(d);
    if (d.kind == DecisionKind::no_layout) {
      run_.ended = true;
      return false;
    }
    if (!d.changes()) return true;  // it was idle
    change(d);
    return kept || go_back();
  }
  bool go_back() {
    run_.restarting += options_.restart;
    run_.wall += options_.restart;
    run_.steps = options_.save_every > 0 ? run_.steps / options_.save_every * options_.save_every : 0;
    return true;
  }

  const ClusterSpec& given_;
  const ClusterEvents& events_;
  const AdaptationTools& tools_;
  const VirtualRunOptions& options_;
  const Layout& start_;
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  std::optional<AdaptationPolicy> policy_;
  std::map<std::string, Seconds> known_;
  std::vector<GpuPlace> lost_;
  Seconds sound_step_;
  std::int64_t furthest_ = 0;
  VirtualRun run_;
};

}  // namespace

VirtualRun run_virtually(const ClusterSpec& given, const ClusterEvents& events, const Layout& start,
                         const AdaptationTools& tools, const VirtualRunOptions& options) {
  return Player(given, events, start, tools, options).play();
}

}  // namespace sextant

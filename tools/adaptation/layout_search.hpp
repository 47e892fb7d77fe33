// How a run that adapts finds layouts: the planner's own search, for what the run trains, on the machine as it is believed to
// be. Slow parts are used where they hurt least, get fewer layers or micro-batches, or are left idle.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>

#include "planner/adaptation/adaptation_policy.hpp"
#include "planner/answers/recommend.hpp"
#include "tools/inputs/planning.hpp"

namespace sextant {

class LayoutSearch {
 public:
  // What the question asks but for its cluster and limits, of layouts as plain as `present`: without offload where it has
  // none. `threads`: of a search beside training; 0 = all cores.
  // Idle::none: of layouts that use all GPUs.
  enum class Idle : std::uint8_t { none, some };
  LayoutSearch(Question, const ParallelPlan& present, std::filesystem::path presets, int threads,
               Idle = Idle::some);

  AdaptationTools tools() const;

  // Of the layouts for this cluster, best first, the best of each number of GPUs that is worth a look: of the embedded
  // runtime the fastest, since it is measured at once; of another framework what `sextant plan` would recommend.
  // Once `abandoned` is true: what has been found by then.
  std::vector<Forecast> plans(const ClusterSpec&, const std::atomic<bool>& abandoned) const;
  // The best layouts that differ in kind, on all of the cluster's GPUs; the one at hand among them.
  std::vector<Forecast> kinds(const Layout& present, const ClusterSpec&, int count) const;
  Seconds step(const Layout&, const ClusterSpec&) const;
  // What every rank will own, over the links there are: an upper bound, as if it had nothing of it.
  Seconds move(const Layout& to, const ClusterSpec&) const;

 private:
  Question question(ClusterSpec) const;
  // Layouts that are good where nothing is slow, for replicas with unequally many micro-batches.
  std::vector<ParallelPlan> shapes(const ClusterSpec&, const std::atomic<bool>& abandoned) const;

  Question asked_;
  const std::filesystem::path presets_;
  const int threads_;
  const Idle idle_;
  const bool runs_here_;
  const DecisionBasis basis_;
};

// The question that a plan file answers; `profile`: of --profile, may be empty.
Question question_of(const PlanFile&, const std::string& profile, const std::filesystem::path& presets);

// A plan on the usable GPUs of the cluster; those that it does not need are idle.
Layout layout_on(const ParallelPlan&, const ClusterSpec& used, const ClusterSpec& all);

}  // namespace sextant

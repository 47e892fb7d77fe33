// What did a step say about the machine? The spans of all ranks against what a sound machine takes: a rank's own work by
// itself; collectives between nodes from when the last rank had come, which is what the network took.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "core/cluster/topology.hpp"
#include "core/graph/execution_graph.hpp"
#include "core/timeline/timeline.hpp"
#include "cost_models/cost_model.hpp"
#include "planner/adaptation/drift.hpp"

namespace sextant {

// What some ranks saw of a step: their own work, in times of what a sound machine takes, and collectives between nodes.
struct StepView {
  std::vector<double> compute;  // by rank; 0: another's
  std::vector<double>
      collectives;  // seconds, as the last rank to come saw them; infinite: only others are in it
  void add(const StepView& of_others);
};

class StepObserver {
 public:
  // `sound`: of each op of the graph on a machine without defects. `nodes`: of the whole cluster. The graph outlives the
  // observer.
  StepObserver(const ExecutionGraph&, std::vector<Seconds> sound, const Topology&, int nodes);

  // On any thread.
  StepView view(int rank, const std::vector<Span>&) const;
  void add(std::int64_t step, const StepView&, int ranks);  // of so many ranks that have not been added yet
  void step_took(std::int64_t step, Seconds);
  // The oldest step of which everything is known.
  std::optional<StepObservation> take();

 private:
  struct Collective {
    OpId op = 0;
    std::vector<int> nodes;
  };
  struct Step {
    StepView view;
    int ranks = 0;
    std::optional<Seconds> took;
  };
  StepObservation judge(std::int64_t step, const Step&) const;

  const ExecutionGraph& graph_;
  std::vector<Seconds> sound_;
  int ranks_, nodes_;
  std::vector<std::vector<OpId>> own_;                    // by stage
  std::vector<RankCoord> at_;                             // by rank
  std::vector<Collective> collectives_;                   // that leave a node
  std::vector<std::vector<std::size_t>> collectives_of_;  // by rank
  std::mutex mutex_;
  std::map<std::int64_t, Step> steps_;
};

}  // namespace sextant

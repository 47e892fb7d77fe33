// What did a step say about the machine? The spans of all ranks against what a sound machine takes: a rank's own work by
// itself; exchanges between nodes from when the last rank had come, which is what the network took.
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

class StepObserver {
 public:
  // `sound`: of each op of the graph on a machine without defects. `nodes`: of the whole cluster. The graph outlives the
  // observer.
  StepObserver(const ExecutionGraph&, std::vector<Seconds> sound, const Topology&, int nodes);

  // On any thread: the spans of one rank.
  void record(int rank, std::int64_t step, const std::vector<Span>&);
  void step_took(std::int64_t step, Seconds);
  // The oldest step of which everything is known.
  std::optional<StepObservation> take();

 private:
  struct Exchange {
    OpId op = 0;
    std::vector<int> ranks;
    std::vector<int> nodes;
  };
  struct Step {
    std::vector<std::vector<float>> durations;  // [rank][op]
    int ranks = 0;
    std::optional<Seconds> took;
  };
  StepObservation judge(std::int64_t step, const Step&) const;

  const ExecutionGraph& graph_;
  std::vector<Seconds> sound_;
  int ranks_, nodes_;
  std::vector<std::vector<OpId>> own_;  // by stage
  std::vector<RankCoord> at_;           // by rank
  std::vector<Exchange> exchanges_;     // that leave a node
  std::mutex mutex_;
  std::map<std::int64_t, Step> steps_;
};

}  // namespace sextant

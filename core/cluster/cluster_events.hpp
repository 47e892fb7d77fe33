// What happens to a cluster while a run lasts, step by step: a device computes slower, a network is slower, a rank is lost, a
// lost one comes back. Text that people write or turn a trace of failures into, one event a line; '#' begins a comment:
//
//   step 40 rank 3 compute x2 until 120       rank 3 takes twice as long to compute, in steps 40 .. 119
//   step 40 node 1 compute x1.5               every rank of node 1
//   step 60 node 1 network x0.25              what node 1 exchanges with others has a quarter of its bandwidth
//   step 60 node 1 links x0.5                 the links inside node 1
//   step 60 link node0-node1 bandwidth x0.25  of two nodes, which have one network between them
//   step 90 kill rank 5                       or: kill node 1
//   step 150 join 1                           so many of the lost ranks are back, those lost first
//
// A rank here is the r-th usable GPU of the cluster as it was before the first event, whatever ranks a plan has later.
// Where several events act on one part, the worst counts.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/cluster/cluster_spec.hpp"
#include "core/cluster/gpu_state.hpp"

namespace sextant {

struct ClusterEvent {
  static constexpr std::int64_t kForEver = std::numeric_limits<std::int64_t>::max();
  std::int64_t from = 0, until = kForEver;  // steps [from, until)
  Defect defect;                            // what is added to the cluster's own
  int joins = 0;                            // in place of a defect: lost GPUs that come back
  std::string text;                         // the line
};

class ClusterEvents {
 public:
  ClusterEvents() = default;
  // Throws ConfigError with every line that is wrong: file, line, what was found and what is expected.
  ClusterEvents(std::string_view text, const std::string& file, const ClusterSpec&);

  bool empty() const { return events_.empty(); }
  const std::vector<ClusterEvent>& events() const { return events_; }
  // The cluster as it is in this step.
  ClusterSpec at(const ClusterSpec&, std::int64_t step) const;
  // GPUs that are lost in this step, ascending.
  std::vector<GpuPlace> lost(std::int64_t step) const;
  // What of them is news to one who knows of `known_lost`, ascending.
  struct Change {
    std::vector<GpuPlace> lost, back;
  };
  Change change(const std::vector<GpuPlace>& known_lost, std::int64_t step) const;
  // Whether anything begins or ends with this step.
  bool changes(std::int64_t step) const;

 private:
  std::vector<ClusterEvent> events_;
  int gpus_per_node_ = 0;
};

}  // namespace sextant

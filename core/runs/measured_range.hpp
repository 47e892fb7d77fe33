// How far does a run lie from those that were timed? Presets say, for each generation of devices, how far the published
// runs reach that constants were fitted to or compared with.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/cluster/cluster_spec.hpp"
#include "core/model/model_spec.hpp"
#include "core/model/training_spec.hpp"

namespace sextant {

struct MeasuredRange {
  std::string generation;  // of the device
  int runs = 0;
  int gpus = 0, seq_len = 0;    // the most of any run
  std::int64_t parameters = 0;  // likewise
  // The least of any run, and of those on several nodes the slowest and the fastest network of a node, nominal GB/s;
  // 0 = nothing is known.
  int least_seq_len = 0;
  std::int64_t least_parameters = 0;
  double least_GBps = 0, most_GBps = 0;
  std::vector<std::string> devices = {};  // presets, sorted; empty = all of the generation
  bool operator==(const MeasuredRange&) const = default;
};

// Why the run lies far from all of them: "16384 GPUs, at most 2304 in 594 runs on hopper devices". Empty when such a device
// was among them and none of its sizes is more than twice the largest or less than half the least; networks are held
// against those of all generations. Machines profiled on the spot (CPU ranks) are never far.
std::string far_from_measured(std::span<const MeasuredRange>, const ModelSpec&, const TrainingSpec&,
                              const ClusterSpec&);

}  // namespace sextant

// How far does a run lie from those that were timed? Presets say, for each generation of devices, how far the published
// runs reach that constants were fitted to or compared with.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/cluster_spec.hpp"
#include "core/model_spec.hpp"
#include "core/training_spec.hpp"

namespace sextant {

struct MeasuredRange {
  std::string generation;  // of the device
  int runs = 0;
  int gpus = 0, seq_len = 0;    // the most of any run
  std::int64_t parameters = 0;  // likewise
  bool operator==(const MeasuredRange&) const = default;
};

// Why the run lies far from all of them: "16384 GPUs, at most 2304 in 594 runs on hopper devices". Empty when none of
// its sizes is more than twice the largest. Machines profiled on the spot (CPU ranks) are never far.
std::string far_from_measured(std::span<const MeasuredRange>, const ModelSpec&, const TrainingSpec&,
                              const ClusterSpec&);

}  // namespace sextant

// What does a profile of a machine (`sextant profile`) say about its constants? The ceiling of GEMMs, memory
// bandwidth, what launches cost, the host link, and start-up and reachable rates of collectives alone. Each work is
// priced as the runtime that was profiled does it and compared with its time; least squares on the logarithm of time,
// priors as for step times. What no work tells the machine's own measurements do, if they were made.
//
// Ignores attention cores and embeddings (their rates are no calibrated constants), exchanges of a plan below 1 MiB
// (start-up, not rate) and transfers between stages.
#pragma once

#include <string>
#include <vector>

#include "core/cluster/cluster_spec.hpp"
#include "core/timeline/work_profile.hpp"
#include "planner/calibration/calibrate.hpp"

namespace sextant {

inline constexpr const char* kProfiledStack = "sextant";  // profiles are taken by our own runtime

struct ProfileFit {
  std::string file, machine, date;
  std::vector<ConstantFit> constants = {};  // those that the profile tells
  int works = 0, measurements = 0;          // used: of plans, and of the machine by itself
  double mape_before = 0, mape_after = 0;   // percent, of all that were used
};

// Was this profile taken on such a device? By the name that driver or kernel gave: model, size, PCIe or NVL form.
bool taken_on(const WorkProfile&, const DeviceSpec&);

// Throws ConfigError when nothing in the profile says anything about such a cluster.
ProfileFit profile_priors(const WorkProfile&, const std::string& file, const ClusterSpec&,
                          const std::filesystem::path& preset_dir, const CalibrationRules&);

}  // namespace sextant

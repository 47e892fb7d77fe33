// What collectors of logs put before each line, taken off again: the time of Docker and Kubernetes (`kubectl logs --timestamps`), the pod
// (`--prefix`), the service of `docker compose logs`, the worker of Ray, the host of journald and of pdsh. Names become tags of ranks,
// "[from0]: ", so that several of them in one file are told apart as ranks are (planner/calibration/launcher_tags.hpp).
#pragma once

#include <string>
#include <string_view>

namespace sextant {

inline constexpr std::string_view kMachineTag = "from";

// Lines keep their numbers. A prefix counts where nine lines of ten have one of its kind.
std::string without_collector_tags(std::string text);

}  // namespace sextant

#include "core/runs/measured_range.hpp"

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace sextant {

std::string far_from_measured(std::span<const MeasuredRange> ranges, const ModelSpec& model,
                              const TrainingSpec& training, const ClusterSpec& cluster) {
  constexpr double kFar = 2;
  constexpr double kGiga = 1e9;
  const std::string& generation = cluster.device.generation;
  if (generation == "cpu") return "";
  const auto range = std::ranges::find(ranges, generation, &MeasuredRange::generation);
  if (range == ranges.end()) return fmt::format("no run on {} devices", generation);
  std::vector<std::string> far;
  const auto shown = [](double x) { return x < 100 ? fmt::format("{:.3g}", x) : fmt::format("{:.0f}", x); };
  const auto compare = [&](double value, double least, double most, const std::string& format) {
    const auto say = [&](const char* bound, double limit) {
      far.push_back(fmt::format(fmt::runtime(format + ", {} {}"), shown(value), bound, shown(limit)));
    };
    if (most > 0 && value > kFar * most) say("at most", most);
    if (value < least / kFar) say("at least", least);
  };
  if (!range->devices.empty() &&
      std::ranges::find(range->devices, cluster.device.name) == range->devices.end())
    far.push_back(fmt::format("none on {}", cluster.device.name));
  compare(cluster.gpus(), 0, range->gpus, "{} GPUs");
  compare(static_cast<double>(parameter_counts(model).total) / kGiga,
          static_cast<double>(range->least_parameters) / kGiga,
          static_cast<double>(range->parameters) / kGiga, "{} billion parameters");
  compare(training.seq_len, range->least_seq_len, range->seq_len, "sequences of {} tokens");
  if (cluster.nodes > 1) {
    double least = 0, most = 0;
    for (const MeasuredRange& r : ranges) {
      if (r.least_GBps > 0) least = least > 0 ? std::min(least, r.least_GBps) : r.least_GBps;
      most = std::max(most, r.most_GBps);
    }
    compare(cluster.fabric.bandwidth.v / kGiga, least, most, "a network of {} GB/s a node");
  }
  if (far.empty()) return "";
  return fmt::format("{} in {} runs on {} devices", fmt::join(far, "; "), range->runs, generation);
}

}  // namespace sextant

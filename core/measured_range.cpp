#include "core/measured_range.hpp"

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace sextant {

std::string far_from_measured(std::span<const MeasuredRange> ranges, const ModelSpec& model,
                              const TrainingSpec& training, const ClusterSpec& cluster) {
  constexpr double kFar = 2;
  const std::string& generation = cluster.device.generation;
  if (generation == "cpu") return "";
  const auto range = std::ranges::find(ranges, generation, &MeasuredRange::generation);
  if (range == ranges.end()) return fmt::format("no run on {} devices", generation);
  std::vector<std::string> far;
  const auto compare = [&](double value, double most, std::string text) {
    if (value > kFar * most) far.push_back(std::move(text));
  };
  compare(cluster.gpus(), range->gpus, fmt::format("{} GPUs, at most {}", cluster.gpus(), range->gpus));
  const auto parameters = static_cast<double>(parameter_counts(model).total),
             most = static_cast<double>(range->parameters);
  compare(parameters, most,
          fmt::format("{:.0f} billion parameters, at most {:.0f}", parameters * 1e-9, most * 1e-9));
  compare(training.seq_len, range->seq_len,
          fmt::format("sequences of {} tokens, at most {}", training.seq_len, range->seq_len));
  if (far.empty()) return "";
  return fmt::format("{} in {} runs on {} devices", fmt::join(far, "; "), range->runs, generation);
}

}  // namespace sextant

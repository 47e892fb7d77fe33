#include "planner/simulation/machine_samples.hpp"

#include <algorithm>

namespace sextant {
namespace {

constexpr double kSmallestBytes = 128;  // sixteen fp32 numbers, read and written

Kernel priced(const SquareGemm& p) {
  return Gemm{p.extent, p.extent, p.extent, alignment_of(p.extent, p.extent), p.format};
}
// Bytes are read and written.
Kernel priced(const CopyWithin& c) { return Pointwise{2.0 * static_cast<double>(c.bytes.v), 1}; }
Kernel priced(const SmallestKernel&) { return Pointwise{kSmallestBytes, 1}; }

std::optional<MachineSample> sample_of(const MachineMeasurement& m) {
  const Seconds took(1e-6 * m.median_us);
  if (took.v <= 0) return std::nullopt;
  const Measured what = parse_measurement(m.what);
  if (const auto* copy = std::get_if<CopyWork>(&what)) {
    const bool overlaps_copy = std::holds_alternative<CopyWork>(parse_measurement(m.concurrent_with));
    if (m.concurrent_with.empty() || overlaps_copy) return MachineSample{*copy, took};
  }
  if (!m.concurrent_with.empty()) return std::nullopt;
  if (const auto* gemm = std::get_if<SquareGemm>(&what); gemm && gemm->ranks == 1)
    return MachineSample{priced(*gemm), took};
  if (const auto* within = std::get_if<CopyWithin>(&what)) return MachineSample{priced(*within), took};
  if (const auto* kernel = std::get_if<SmallestKernel>(&what); kernel && !kernel->by_host)
    return MachineSample{priced(*kernel), took};
  if (const auto* collective = std::get_if<MeasuredCollective>(&what); collective && !collective->one_device)
    return MachineSample{*collective, took};
  return std::nullopt;
}

}  // namespace

bool is_launch(const Pointwise& p) { return p.bytes <= kSmallestBytes; }

CollectiveWork work_of(const MeasuredCollective& e) {
  CollectiveWork work{e.kind, e.bytes, {}, false};
  work.group.size = e.ranks;
  work.group.nodes = e.nodes;
  work.group.ranks_per_node = e.ranks / e.nodes;
  return work;
}

std::optional<std::vector<int>> first_ranks(int ranks, int nodes, const ClusterSpec& cluster) {
  if (nodes < 1 || ranks % nodes != 0 || nodes > cluster.nodes) return std::nullopt;
  const int each = ranks / nodes;
  if (each > cluster.node.gpus) return std::nullopt;
  std::vector<int> out;
  for (int node = 0; node < nodes; ++node)
    for (int r = 0; r < each; ++r) out.push_back(node * cluster.node.gpus + r);
  return out;
}

std::vector<MachineSample> machine_samples(const MachineFacts& facts) {
  std::vector<MachineSample> out;
  for (const MachineMeasurement& m : facts.measurements)
    if (const auto sample = sample_of(m)) out.push_back(*sample);
  return out;
}

std::map<std::string, double> interference_of(const MachineFacts& facts) {
  struct Mean {
    double sum = 0;
    int n = 0;
  };
  std::map<std::string, Mean> found;
  const auto is_gemm = [](const Measured& m) { return std::holds_alternative<SquareGemm>(m); };
  // "comm" or "copy"; empty: neither.
  const auto kind_of = [](const Measured& m) -> std::string {
    if (const auto* collective = std::get_if<MeasuredCollective>(&m))
      return collective->one_device ? "" : "comm";
    return std::holds_alternative<CopyWork>(m) ? "copy" : "";
  };
  for (const MachineMeasurement& m : facts.measurements) {
    const Measured what = parse_measurement(m.what), other = parse_measurement(m.concurrent_with);
    const double longer = facts.lengthening(m.what, m.concurrent_with);
    const std::string kind = kind_of(is_gemm(what) ? other : what);
    if (longer <= 0 || kind.empty() || is_gemm(what) == is_gemm(other)) continue;
    Mean& mean = found[is_gemm(what) ? kind + "_slows_compute" : "compute_slows_" + kind];
    mean.sum += longer - 1;
    ++mean.n;
  }
  std::map<std::string, double> out;
  for (const auto& [key, mean] : found) out[key] = std::clamp(mean.sum / mean.n, 0.0, 1.0);
  return out;
}

}  // namespace sextant

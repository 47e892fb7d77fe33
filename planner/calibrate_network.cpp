#include "planner/calibrate_network.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "core/topology.hpp"
#include "cost_models/collective.hpp"
#include "planner/fit_problem.hpp"

namespace sextant {

namespace {

constexpr std::int64_t kLarge = std::int64_t{16} << 20;

// Logarithms of predicted times with the knobs at prior * exp(theta).
Eigen::VectorXd log_times(const NcclTable& table, const std::vector<NcclSample>& samples, ClusterSpec cluster,
                          CostConstants constants, const std::vector<Knob>& knobs,
                          const Eigen::VectorXd& theta) {
  std::vector<Setting> settings;
  for (std::size_t k = 0; k < knobs.size(); ++k)
    settings.push_back({knobs[k].of, knobs[k].owner, knobs[k].key,
                        knobs[k].prior * std::exp(theta[static_cast<Eigen::Index>(k)])});
  use_settings(settings, cluster.fabric);
  use_settings(settings, cluster.device.generation, constants);
  const Topology topology(cluster);
  std::vector<int> ranks(static_cast<std::size_t>(table.ranks));
  std::iota(ranks.begin(), ranks.end(), 0);
  const GroupShape group = topology.group_of(ranks);
  const Machine machine(cluster.device, cluster.node, alone(constants));
  Eigen::VectorXd out(static_cast<Eigen::Index>(samples.size()));
  for (std::size_t i = 0; i < samples.size(); ++i)
    out[static_cast<Eigen::Index>(i)] =
        std::log(price_collective({table.kind, Bytes(samples[i].bytes), group, false}, machine).duration.v);
  return out;
}

}  // namespace

NetworkFit calibrate_network(const NcclTable& table, ClusterSpec cluster, const CostConstants& constants,
                             const CalibrationRules& rules, const QuietNetwork* idle) {
  const bool across = table.nodes > 1;
  const int needed = std::max(table.nodes, (table.ranks + cluster.node.gpus - 1) / cluster.node.gpus);
  if (needed > cluster.nodes)
    throw ConfigError(Problem{table.file, "ranks", fmt::format("{} on {} nodes", table.ranks, table.nodes),
                              fmt::format("at most the {} nodes of the cluster", cluster.nodes), ""});
  std::vector<NcclSample> samples;
  for (const NcclSample& s : table.samples)
    if (s.bytes >= kLarge) samples.push_back(s);
  NetworkFit out;
  out.samples = static_cast<int>(samples.size());
  if (samples.empty()) return out;

  std::vector<Knob> knobs;
  const FabricSpec of_steps = cluster.fabric;
  if (across) {
    FabricSpec& f = cluster.fabric;
    out.fabric = f.name, out.idle_known = idle != nullptr;
    if (idle) use_network(*idle, f);
    knobs.push_back(
        {KnobOf::fabric, f.name, "efficiency", f.efficiency, rules.rule("efficiency").sigma, 0.02, 1});
    knobs.push_back({KnobOf::fabric, f.name, "latency_us", f.latency.v * 1e6, rules.rule("latency_us").sigma,
                     f.latency.v * 1e5, f.latency.v * 1e7});
  } else {
    const bool reduces_in_switch = table.kind == CollectiveKind::all_reduce && cluster.node.nvls;
    const char* key = cluster.node.link != NodeLinkKind::nvswitch ? "link_efficiency_mesh"
                      : reduces_in_switch                         ? "link_efficiency_in_switch"
                                                                  : "link_efficiency";
    CostConstants copy = constants;
    knobs.push_back({KnobOf::device, cluster.device.generation, key, constant(copy, key), 0.15, 0.02, 1});
  }
  const auto n = static_cast<Eigen::Index>(knobs.size());
  Eigen::VectorXd measured(static_cast<Eigen::Index>(samples.size()));
  for (std::size_t i = 0; i < samples.size(); ++i)
    measured[static_cast<Eigen::Index>(i)] = std::log(samples[i].time_s);
  const auto at = [&](const Eigen::VectorXd& theta) {
    return log_times(table, samples, cluster, constants, knobs, theta);
  };

  // Wider than for step times: this is the measurement of the thing itself. Published tables of one fabric agree better.
  constexpr double kWider = 3, kPublished = 0.1;
  Posterior prior{Eigen::VectorXd::Zero(n), Eigen::MatrixXd::Zero(n, n)};
  for (Eigen::Index k = 0; k < n; ++k) {
    const double sigma = idle && across ? kPublished : kWider * knobs[static_cast<std::size_t>(k)].sigma;
    prior.covariance(k, k) = sigma * sigma;
  }
  Eigen::VectorXd x = prior.mean, now = at(x);
  out.mape_before = mape(measured - now);
  Posterior fit = prior;
  constexpr int kIterations = 8;
  constexpr double kStep = 0.02;
  for (int iteration = 0; iteration < kIterations; ++iteration) {
    Eigen::MatrixXd j(now.size(), n);
    for (Eigen::Index k = 0; k < n; ++k) {
      Eigen::VectorXd moved = x;
      moved[k] += kStep;
      j.col(k) = (at(moved) - now) / kStep;
    }
    fit = update(prior, j, measured - now, x, Eigen::VectorXd::Ones(now.size()), rules.noise);
    for (Eigen::Index k = 0; k < n; ++k) {
      const Knob& knob = knobs[static_cast<std::size_t>(k)];
      x[k] = std::clamp(fit.mean[k], std::log(knob.low / knob.prior), std::log(knob.high / knob.prior));
    }
    now = at(x);
  }
  out.mape_after = mape(measured - now);
  for (Eigen::Index k = 0; k < n; ++k) {
    Knob knob = knobs[static_cast<std::size_t>(k)];
    if (across) {
      const double before = setting_value(of_steps, knob.key) / knob.prior;
      knob.prior *= before, knob.low *= before, knob.high *= knob.key == "efficiency" ? 1 : before;
    }
    const double value = knob.prior * std::exp(x[k]);
    out.constants.push_back({knob, std::min(value, knob.high), std::sqrt(fit.covariance(k, k))});
  }
  return out;
}

}  // namespace sextant

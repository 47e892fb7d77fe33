#include "planner/calibration/calibrate_network.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "core/cluster/topology.hpp"
#include "cost_models/collective.hpp"
#include "planner/calibration/fit_problem.hpp"

namespace sextant {

namespace {

constexpr std::int64_t kLarge = std::int64_t{16} << 20;

// Where the table's ranks sit: on the nodes that it names, from the first GPU of each on.
std::vector<int> seats(const NcclTable& table, const ClusterSpec& cluster) {
  std::vector<int> taken(static_cast<std::size_t>(table.nodes), 0), out;
  for (const int node : table.node_of)
    out.push_back(node * cluster.node.gpus + taken[static_cast<std::size_t>(node)]++);
  if (const int most = *std::max_element(taken.begin(), taken.end()); most > cluster.node.gpus)
    throw ConfigError(Problem{table.file, "ranks", fmt::format("{} on one node", most),
                              fmt::format("at most the {} GPUs of a node of the cluster", cluster.node.gpus),
                              ""});
  return out;
}

// Logarithms of predicted times with the calibrated constants at prior * exp(theta).
Eigen::VectorXd log_times(const NcclTable& table, const std::vector<NcclSample>& samples, ClusterSpec cluster,
                          CostConstants constants, const std::vector<FreeConstant>& calibrated,
                          const Eigen::VectorXd& theta) {
  std::vector<Setting> settings;
  for (std::size_t k = 0; k < calibrated.size(); ++k)
    settings.push_back({calibrated[k].of, calibrated[k].owner, calibrated[k].key,
                        calibrated[k].prior * std::exp(theta[static_cast<Eigen::Index>(k)])});
  use_settings(settings, cluster.fabric);
  use_settings(settings, cluster.device.generation, constants);
  const GroupShape group = Topology(cluster).group_of(seats(table, cluster));
  const Machine machine(cluster.device, cluster.node, alone(constants));
  Eigen::VectorXd out(static_cast<Eigen::Index>(samples.size()));
  for (std::size_t i = 0; i < samples.size(); ++i)
    out[static_cast<Eigen::Index>(i)] =
        std::log(price_collective({table.kind, Bytes(samples[i].bytes), group, false}, machine).duration.v);
  return out;
}

// How unlikely measured times and a move of the calibrated constants are together: Huber's measure of the residuals, as in update(), and
// the prior's squares.
double unlikely(const Eigen::VectorXd& residual, const Eigen::VectorXd& theta, const Posterior& prior,
                double noise) {
  double sum = 0.5 * theta.dot(prior.covariance.diagonal().cwiseInverse().cwiseProduct(theta));
  for (Eigen::Index i = 0; i < residual.size(); ++i) sum += 0.5 * huber(residual[i] / noise);
  return sum;
}

// The likeliest move on a grid over the calibrated constants' bounds. A rate above that of the links inside the node has no effect, so that
// no slope leads from there to one below.
template <class LogTimes>
Eigen::VectorXd likeliest_start(const std::vector<FreeConstant>& calibrated, const LogTimes& at,
                                const Eigen::VectorXd& measured, const Posterior& prior, double noise) {
  constexpr int kPoints = 40;  // of each calibrated constant
  const auto n = static_cast<Eigen::Index>(calibrated.size());
  Eigen::VectorXd best = prior.mean;
  double least = unlikely(measured - at(best), best, prior, noise);
  int all = 1;
  for (Eigen::Index k = 0; k < n; ++k) all *= kPoints;
  for (int point = 0; point < all; ++point) {
    Eigen::VectorXd x(n);
    int rest = point;
    for (Eigen::Index k = 0; k < n; ++k, rest /= kPoints) {
      const FreeConstant& constant = calibrated[static_cast<std::size_t>(k)];
      const double low = std::log(constant.low / constant.prior),
                   high = std::log(constant.high / constant.prior);
      x[k] = low + (high - low) * (rest % kPoints) / (kPoints - 1);
    }
    if (const double now = unlikely(measured - at(x), x, prior, noise); now < least) {
      least = now;
      best = x;
    }
  }
  return best;
}

// Percent, of the largest sizes, which say the rate.
double error_of_largest(const Eigen::VectorXd& residual, const std::vector<NcclSample>& samples) {
  std::int64_t most = 0;
  for (const NcclSample& s : samples) most = std::max(most, s.bytes);
  double sum = 0, count = 0;
  for (std::size_t i = 0; i < samples.size(); ++i)
    if (samples[i].bytes >= most / 4) {
      sum += std::abs(std::expm1(-residual[static_cast<Eigen::Index>(i)]));
      count += 1;
    }
  return 100 * sum / count;
}

// What nccl-tests call bus bandwidth.
double bus_GBps(const NcclTable& table, const NcclSample& sample) {
  const double n = table.ranks;
  const double factor = (table.kind == CollectiveKind::all_reduce ? 2 : 1) * (n - 1) / n;
  return factor * static_cast<double>(sample.bytes) / sample.time_s / 1e9;
}

constexpr double kLeastShare = 0.3, kMostShare = 1.1;
// Between nodes: a network of half the rate reaches at most half of what is stated.
constexpr double kLeastShareAcross = 0.55;

// Why links carry so little of what they are stated to, or more, in the order of how often.
std::string usual_causes(bool across, double share, int nics) {
  if (share > kMostShare)
    return across
               ? "more than these NICs carry: another fabric than --cluster states (--cluster "
                 "NxGxDEVICE@FABRIC), "
                 "sums inside its switches (SHARP; fabric.in_network), or ranks that were all on one node"
               : "more than these links carry: another device, or another form of it, than --cluster states";
  if (!across)
    return "usual causes: PCIe in place of NVLink (nvidia-smi topo -m shows PIX, PHB or SYS), "
           "NCCL_P2P_DISABLE=1 or IOMMU/ACS "
           "that turn peer-to-peer off (NCCL_DEBUG=INFO shows 'via SHM'), another job on these GPUs";
  if (share >= kLeastShare)
    return "usual causes: a network of half the rate (--cluster NxGxDEVICE@FABRIC names it; sextant presets "
           "fabrics), half of the NICs in use (NCCL_IB_HCA; 'NET/IB : Using' lists them), no GPUDirect RDMA, "
           "or a network that other jobs shared";
  const bool one_nic = nics > 1 && share < 1.5 / nics;
  return fmt::format(
      "usual causes: {}NCCL on the wrong interface (NCCL_DEBUG=INFO shows 'Using network Socket', or "
      "Ethernet under NET/IB; "
      "NCCL_SOCKET_IFNAME, NCCL_IB_HCA), no GPUDirect RDMA (nvidia-peermem is not loaded; the lines of "
      "channels lack "
      "'/GDRDMA'){}, or a network that other jobs shared",
      one_nic ? fmt::format("one NIC of {} in use (NCCL_IB_HCA; 'NET/IB : Using' lists them), ", nics) : "",
      one_nic || nics < 2 ? "" : fmt::format(", few of the {} NICs in use", nics));
}

}  // namespace

std::optional<std::string> odd_rate(const NcclTable& table, const NetworkFit& fit,
                                    const ClusterSpec& cluster) {
  const double share = fit.share_of_stated;
  const bool across = !fit.fabric.empty();
  if (share <= 0 || (share >= (across ? kLeastShareAcross : kLeastShare) && share <= kMostShare))
    return std::nullopt;
  const std::string links =
      across ? fmt::format("{} ({} NICs of {:g} GB/s a node)", fit.fabric, cluster.node.nics,
                           cluster.node.nic_bandwidth.v / 1e9)
             : fmt::format("{:g} GB/s of links inside a node{}", cluster.node.link_bandwidth.v / 1e9,
                           fit.in_switch ? " whose switch reduces (NVLS)" : "");
  return fmt::format(
      "{}: {:.3g} GB/s of bus bandwidth is {:.0f} % of what --cluster states, {}: {}. The fit takes it as it "
      "is: if the "
      "machine can do better, mend it and measure again before planning with it",
      table.file, fit.bus_GBps, 100 * share, links, usual_causes(across, share, cluster.node.nics));
}

double most_in_switch(int ranks) { return 2.0 * (ranks - 1) / ranks; }

NetworkFit calibrate_network(const NcclTable& table, ClusterSpec cluster, const CostConstants& constants,
                             const CalibrationRules& rules, const NcclBaseline* idle) {
  if (table.nodes > cluster.nodes)
    throw ConfigError(Problem{table.file, "ranks", fmt::format("{} on {} nodes", table.ranks, table.nodes),
                              fmt::format("at most the {} nodes of the cluster", cluster.nodes), ""});
  const bool across = Topology(cluster).group_of(seats(table, cluster)).nodes > 1;
  std::vector<NcclSample> samples;
  for (const NcclSample& s : table.samples)
    if (s.bytes >= kLarge) samples.push_back(s);
  NetworkFit out;
  out.samples = static_cast<int>(samples.size());
  if (samples.empty()) return out;

  std::vector<FreeConstant> calibrated;
  const FabricSpec of_steps = cluster.fabric;
  if (across) {
    FabricSpec& f = cluster.fabric;
    out.fabric = f.name;
    out.idle_known = idle != nullptr;
    if (idle) use_network(*idle, f);
    calibrated.push_back(
        {ConstantOwner::fabric, f.name, "efficiency", f.efficiency, rules.rule("efficiency").sigma, 0.02, 1});
    calibrated.push_back({ConstantOwner::fabric, f.name, "latency_us", f.latency.v * 1e6,
                          rules.rule("latency_us").sigma, f.latency.v * 1e5, f.latency.v * 1e7});
  } else {
    const bool reduces_in_switch = table.kind == CollectiveKind::all_reduce && cluster.node.nvls &&
                                   constants.link_efficiency_in_switch > 0;
    const char* key = cluster.node.link != NodeLinkKind::nvswitch ? "link_efficiency_mesh"
                      : reduces_in_switch                         ? "link_efficiency_in_switch"
                                                                  : "link_efficiency";
    CostConstants copy = constants;
    const double most = reduces_in_switch ? most_in_switch(table.ranks) : 1;
    const double preset = constant(copy, key);
    calibrated.push_back(
        {ConstantOwner::device, cluster.device.generation, key, preset, 0.15, 0.02, std::max(most, preset)});
    out.in_switch = reduces_in_switch;
  }
  const auto n = static_cast<Eigen::Index>(calibrated.size());
  Eigen::VectorXd measured(static_cast<Eigen::Index>(samples.size()));
  for (std::size_t i = 0; i < samples.size(); ++i)
    measured[static_cast<Eigen::Index>(i)] = std::log(samples[i].time_s);
  const auto at = [&](const Eigen::VectorXd& theta) {
    return log_times(table, samples, cluster, constants, calibrated, theta);
  };

  const auto largest =
      static_cast<Eigen::Index>(std::ranges::max_element(samples, {}, &NcclSample::bytes) - samples.begin());
  Eigen::VectorXd whole_rate = Eigen::VectorXd::Zero(n);
  // Nothing reaches the bound in the switch: what published tables show of it is compared with.
  const double whole = out.in_switch ? std::max(1.0, calibrated[0].prior) : calibrated[0].high;
  whole_rate[0] = std::log(whole / calibrated[0].prior);
  out.bus_GBps = bus_GBps(table, samples[static_cast<std::size_t>(largest)]);
  out.share_of_stated = std::exp(at(whole_rate)[largest] - measured[largest]);

  // Wider than for step times: this is the measurement of the thing itself. Published tables of one fabric agree better.
  constexpr double kWider = 3, kPublished = 0.1;
  Posterior prior{Eigen::VectorXd::Zero(n), Eigen::MatrixXd::Zero(n, n)};
  for (Eigen::Index k = 0; k < n; ++k) {
    const double sigma = idle && across ? kPublished : kWider * calibrated[static_cast<std::size_t>(k)].sigma;
    prior.covariance(k, k) = sigma * sigma;
  }
  constexpr double kNoticed = 0.05;  // percent: as far as the error is printed
  // Squares of errors weigh sizes that start-up rules, which is not fitted, above their share in the mean error; and below
  // the rate of the ring the one in the switch has no effect, so that steps may overshoot. What counts is the mean error:
  // of all that is tried, the presets first, the best is kept.
  Eigen::VectorXd now = at(prior.mean), best = prior.mean, log_best = now;
  out.mape_before = out.mape_after = mape(measured - now);
  const double largest_most =
      std::max(100 * rules.noise, error_of_largest(measured - now, samples) + kNoticed);
  Eigen::VectorXd x = likeliest_start(calibrated, at, measured, prior, rules.noise);
  // What is as far off as that was not known to its prior's width.
  for (Eigen::Index k = 0; k < n; ++k) prior.covariance(k, k) = std::max(prior.covariance(k, k), x[k] * x[k]);
  now = at(x);
  Posterior fit = prior;
  Eigen::MatrixXd covariance = prior.covariance, j(now.size(), n);
  constexpr int kIterations = 8;
  constexpr double kStep = 0.02;
  for (int iteration = 0; iteration < kIterations; ++iteration) {
    for (Eigen::Index k = 0; k < n; ++k) {
      Eigen::VectorXd moved = x;
      moved[k] += kStep;
      j.col(k) = (at(moved) - now) / kStep;
    }
    fit = update(prior, j, measured - now, x, Eigen::VectorXd::Ones(now.size()), rules.noise);
    for (Eigen::Index k = 0; k < n; ++k) {
      const FreeConstant& constant = calibrated[static_cast<std::size_t>(k)];
      x[k] = std::clamp(fit.mean[k], std::log(constant.low / constant.prior),
                        std::log(constant.high / constant.prior));
    }
    now = at(x);
    const double error = mape(measured - now);
    out.mape_fit = iteration == 0 ? error : std::min(out.mape_fit, error);
    if (error > out.mape_before + kNoticed) continue;
    if (error_of_largest(measured - now, samples) > largest_most) {
      out.costs_largest = true;
      continue;
    }
    if (out.taken && error > out.mape_after) continue;
    out.taken = true;
    covariance = fit.covariance;
    if (error > out.mape_after) continue;
    best = x;
    log_best = now;
    out.mape_after = error;
  }
  // What the table does not tell stays: a rate that the links inside the node hide.
  for (Eigen::Index k = 0; k < n; ++k) {
    Eigen::VectorXd stays = best;
    stays[k] = 0;
    const Eigen::VectorXd log_stays = at(stays);
    if (const double error = mape(measured - log_stays);
        error <= std::min(out.mape_after + kNoticed, out.mape_before)) {
      best = stays;
      log_best = log_stays;
      out.mape_after = error;
    }
  }
  constexpr double kAbsurd = 60;  // percent: other hardware, another unit, or a run that did not end well
  if (out.mape_after > kAbsurd)
    throw ConfigError(Problem{
        table.file, "time",
        fmt::format("{:g} us for {} bytes", 1e6 * samples.back().time_s, samples.back().bytes),
        fmt::format("times of {} ranks on {} nodes of {}: predicted {:.4g} us", table.ranks, table.nodes,
                    cluster.device.name, 1e6 * std::exp(log_best[now.size() - 1])),
        fmt::format(
            "no rate of this cluster's links comes near: is --cluster the one that the table is of, and "
            "are the times microseconds? Else {}",
            usual_causes(across, out.share_of_stated, cluster.node.nics))});
  if (!out.taken) return out;
  for (Eigen::Index k = 0; k < n; ++k) {
    FreeConstant constant = calibrated[static_cast<std::size_t>(k)];
    if (across) {
      const double before = setting_value(of_steps, constant.key) / constant.prior;
      constant.prior *= before;
      constant.low *= before;
      constant.high *= constant.key == "efficiency" ? 1 : before;
    }
    const double value = constant.prior * std::exp(best[k]);
    out.constants.push_back({constant, std::min(value, constant.high), std::sqrt(covariance(k, k))});
  }
  return out;
}

}  // namespace sextant

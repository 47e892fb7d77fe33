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
std::vector<int> placed_ranks(const NcclTable& table, const ClusterSpec& cluster) {
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
  const GroupShape group = Topology(cluster).group_of(placed_ranks(table, cluster));
  const Machine machine(cluster.device, cluster.node, alone(constants));
  Eigen::VectorXd out(static_cast<Eigen::Index>(samples.size()));
  for (std::size_t i = 0; i < samples.size(); ++i)
    out[static_cast<Eigen::Index>(i)] =
        std::log(price_collective({table.kind, Bytes(samples[i].bytes), group}, machine).duration.v);
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

namespace {

constexpr double kNoticed = 0.05;  // percent: as far as the error is printed

// Between nodes; published tables of the fabric, where there are any, are what its constants begin from.
std::vector<FreeConstant> fabric_constants(FabricSpec& f, const CalibrationRules& rules,
                                           const NcclBaseline* idle) {
  if (idle) use_network(*idle, f);
  return {
      {ConstantOwner::fabric, f.name, "efficiency", f.efficiency, rules.rule("efficiency").sigma, 0.02, 1},
      {ConstantOwner::fabric, f.name, "latency_us", f.latency.v * 1e6, rules.rule("latency_us").sigma,
       f.latency.v * 1e5, f.latency.v * 1e7}};
}

// Inside a node.
FreeConstant link_constant(const NcclTable& table, const ClusterSpec& cluster, CostConstants constants,
                           bool in_switch) {
  const char* key = cluster.node.link != NodeLinkKind::nvswitch ? "link_efficiency_mesh"
                    : in_switch                                 ? "link_efficiency_in_switch"
                                                                : "link_efficiency";
  const double most = in_switch ? most_in_switch(table.ranks) : 1;
  const double preset = constant(constants, key);
  return {ConstantOwner::device, cluster.device.generation, key, preset, 0.15, 0.02, std::max(most, preset)};
}

// Wider than for step times: this is the measurement of the thing itself. Published tables of one fabric agree better.
Posterior network_prior(const std::vector<FreeConstant>& calibrated, bool published) {
  constexpr double kWider = 3, kPublished = 0.1;
  const auto n = static_cast<Eigen::Index>(calibrated.size());
  Posterior prior{Eigen::VectorXd::Zero(n), Eigen::MatrixXd::Zero(n, n)};
  for (Eigen::Index k = 0; k < n; ++k) {
    const double sigma = published ? kPublished : kWider * calibrated[static_cast<std::size_t>(k)].sigma;
    prior.covariance(k, k) = sigma * sigma;
  }
  return prior;
}

// The fit of a table's large samples, iteration by iteration. Squares of errors weigh sizes that start-up rules, which is not
// fitted, above their share in the mean error; and below the rate of the ring the one in the switch has no effect, so that steps may
// overshoot. What counts is the mean error: of all that is tried, the presets first, the best is kept.
class NetworkSearch {
 public:
  NetworkSearch(const NcclTable& table, const std::vector<NcclSample>& samples, const ClusterSpec& cluster,
                const CostConstants& constants, const std::vector<FreeConstant>& calibrated, double noise)
      : table_(table),
        samples_(samples),
        cluster_(cluster),
        constants_(constants),
        calibrated_(calibrated),
        noise_(noise),
        measured_(static_cast<Eigen::Index>(samples.size())) {
    for (std::size_t i = 0; i < samples.size(); ++i)
      measured_[static_cast<Eigen::Index>(i)] = std::log(samples[i].time_s);
  }

  void say_rate(NetworkFit& out) const;
  void fit(Posterior prior, NetworkFit& out);
  // What the table does not tell stays: a rate that the links inside the node hide.
  void keep_untold(NetworkFit& out);

  const Eigen::VectorXd& best() const { return best_; }
  double sigma(Eigen::Index k) const { return std::sqrt(covariance_(k, k)); }
  double last_predicted() const { return std::exp(log_best_[log_best_.size() - 1]); }  // seconds

 private:
  Eigen::VectorXd at(const Eigen::VectorXd& theta) const {
    return log_times(table_, samples_, cluster_, constants_, calibrated_, theta);
  }
  Posterior step(const Posterior& prior, Eigen::VectorXd& x, const Eigen::VectorXd& now) const;
  void judge(const Eigen::VectorXd& x, const Eigen::VectorXd& now, double error, double largest_most,
             const Posterior& updated, NetworkFit& out);

  const NcclTable& table_;
  const std::vector<NcclSample>& samples_;
  const ClusterSpec& cluster_;
  const CostConstants& constants_;
  const std::vector<FreeConstant>& calibrated_;
  double noise_;
  Eigen::VectorXd measured_;
  Eigen::VectorXd best_, log_best_;  // logarithms of factors, and of times
  Eigen::MatrixXd covariance_;
};

// Of the largest size: its bus bandwidth, and its share of what the links are stated to carry.
void NetworkSearch::say_rate(NetworkFit& out) const {
  const auto largest = static_cast<Eigen::Index>(std::ranges::max_element(samples_, {}, &NcclSample::bytes) -
                                                 samples_.begin());
  Eigen::VectorXd whole_rate = Eigen::VectorXd::Zero(static_cast<Eigen::Index>(calibrated_.size()));
  // Nothing reaches the bound in the switch: what published tables show of it is compared with.
  const double whole = out.in_switch ? std::max(1.0, calibrated_[0].prior) : calibrated_[0].high;
  whole_rate[0] = std::log(whole / calibrated_[0].prior);
  out.bus_GBps = bus_GBps(table_, samples_[static_cast<std::size_t>(largest)]);
  out.share_of_stated = std::exp(at(whole_rate)[largest] - measured_[largest]);
}

// One update of the prior from `x`, which moves to where that is likeliest within the constants' bounds.
Posterior NetworkSearch::step(const Posterior& prior, Eigen::VectorXd& x, const Eigen::VectorXd& now) const {
  constexpr double kStep = 0.02;
  Eigen::MatrixXd j(now.size(), x.size());
  for (Eigen::Index k = 0; k < x.size(); ++k) {
    Eigen::VectorXd moved = x;
    moved[k] += kStep;
    j.col(k) = (at(moved) - now) / kStep;
  }
  Posterior updated = update(prior, j, measured_ - now, x, Eigen::VectorXd::Ones(now.size()), noise_);
  for (Eigen::Index k = 0; k < x.size(); ++k) {
    const FreeConstant& constant = calibrated_[static_cast<std::size_t>(k)];
    x[k] = std::clamp(updated.mean[k], std::log(constant.low / constant.prior),
                      std::log(constant.high / constant.prior));
  }
  return updated;
}

// Takes a trial that is no worse than what it started from, and keeps it where it betters the best.
void NetworkSearch::judge(const Eigen::VectorXd& x, const Eigen::VectorXd& now, double error,
                          double largest_most, const Posterior& updated, NetworkFit& out) {
  if (error > out.mape_before + kNoticed) return;
  if (error_of_largest(measured_ - now, samples_) > largest_most) {
    out.costs_largest = true;
    return;
  }
  if (out.taken && error > out.mape_after) return;
  out.taken = true;
  covariance_ = updated.covariance;
  if (error > out.mape_after) return;
  best_ = x;
  log_best_ = now;
  out.mape_after = error;
}

void NetworkSearch::fit(Posterior prior, NetworkFit& out) {
  best_ = prior.mean;
  log_best_ = at(best_);
  out.mape_before = out.mape_after = mape(measured_ - log_best_);
  const double largest_most =
      std::max(100 * noise_, error_of_largest(measured_ - log_best_, samples_) + kNoticed);
  Eigen::VectorXd x = likeliest_start(
      calibrated_, [&](const Eigen::VectorXd& theta) { return at(theta); }, measured_, prior, noise_);
  // What is as far off as that was not known to its prior's width.
  for (Eigen::Index k = 0; k < x.size(); ++k)
    prior.covariance(k, k) = std::max(prior.covariance(k, k), x[k] * x[k]);
  covariance_ = prior.covariance;
  Eigen::VectorXd now = at(x);
  constexpr int kIterations = 8;
  for (int iteration = 0; iteration < kIterations; ++iteration) {
    const Posterior updated = step(prior, x, now);
    now = at(x);
    const double error = mape(measured_ - now);
    out.mape_fit = iteration == 0 ? error : std::min(out.mape_fit, error);
    judge(x, now, error, largest_most, updated, out);
  }
}

void NetworkSearch::keep_untold(NetworkFit& out) {
  for (Eigen::Index k = 0; k < best_.size(); ++k) {
    Eigen::VectorXd stays = best_;
    stays[k] = 0;
    const Eigen::VectorXd log_stays = at(stays);
    if (const double error = mape(measured_ - log_stays);
        error <= std::min(out.mape_after + kNoticed, out.mape_before)) {
      best_ = stays;
      log_best_ = log_stays;
      out.mape_after = error;
    }
  }
}

// Other hardware, another unit, or a run that did not end well.
void refuse_absurd(const NcclTable& table, const NcclSample& last, const ClusterSpec& cluster, bool across,
                   double predicted, const NetworkFit& out) {
  constexpr double kAbsurd = 60;  // percent
  if (out.mape_after <= kAbsurd) return;
  throw ConfigError(Problem{
      table.file, "time", fmt::format("{:g} us for {} bytes", 1e6 * last.time_s, last.bytes),
      fmt::format("times of {} ranks on {} nodes of {}: predicted {:.4g} us", table.ranks, table.nodes,
                  cluster.device.name, 1e6 * predicted),
      fmt::format(
          "no rate of this cluster's links comes near: is --cluster the one that the table is of, and "
          "are the times microseconds? Else {}",
          usual_causes(across, out.share_of_stated, cluster.node.nics))});
}

}  // namespace

NetworkFit calibrate_network(const NcclTable& table, ClusterSpec cluster, const CostConstants& constants,
                             const CalibrationRules& rules, const NcclBaseline* idle) {
  if (table.nodes > cluster.nodes)
    throw ConfigError(Problem{table.file, "ranks", fmt::format("{} on {} nodes", table.ranks, table.nodes),
                              fmt::format("at most the {} nodes of the cluster", cluster.nodes), ""});
  const bool across = Topology(cluster).group_of(placed_ranks(table, cluster)).nodes > 1;
  std::vector<NcclSample> samples;
  for (const NcclSample& s : table.samples)
    if (s.bytes >= kLarge) samples.push_back(s);
  NetworkFit out;
  out.samples = static_cast<int>(samples.size());
  if (samples.empty()) return out;

  std::vector<FreeConstant> calibrated;
  const FabricSpec of_steps = cluster.fabric;
  if (across) {
    out.fabric = cluster.fabric.name;
    out.idle_known = idle != nullptr;
    calibrated = fabric_constants(cluster.fabric, rules, idle);
  } else {
    out.in_switch = table.kind == CollectiveKind::all_reduce && cluster.node.nvls &&
                    constants.link_efficiency_in_switch > 0;
    calibrated.push_back(link_constant(table, cluster, constants, out.in_switch));
  }
  NetworkSearch search(table, samples, cluster, constants, calibrated, rules.noise);
  search.say_rate(out);
  search.fit(network_prior(calibrated, idle && across), out);
  search.keep_untold(out);
  refuse_absurd(table, samples.back(), cluster, across, search.last_predicted(), out);
  if (!out.taken) return out;
  for (std::size_t k = 0; k < calibrated.size(); ++k) {
    FreeConstant constant = calibrated[k];
    const auto row = static_cast<Eigen::Index>(k);
    if (across) {
      const double before = setting_value(of_steps, constant.key) / constant.prior;
      constant.prior *= before;
      constant.low *= before;
      constant.high *= constant.key == "efficiency" ? 1 : before;
    }
    const double value = constant.prior * std::exp(search.best()[row]);
    out.constants.push_back({constant, std::min(value, constant.high), search.sigma(row)});
  }
  return out;
}

}  // namespace sextant

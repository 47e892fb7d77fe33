#include "planner/calibration/profile_priors.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <optional>
#include <set>
#include <variant>

#include <fmt/format.h>

#include "core/cluster/device_words.hpp"
#include "core/cluster/topology.hpp"
#include "core/plan/stack_spec.hpp"
#include "cost_models/analytic.hpp"
#include "cost_models/collective.hpp"
#include "planner/calibration/calibrate_network.hpp"
#include "planner/calibration/fit_problem.hpp"
#include "planner/simulation/machine_samples.hpp"

namespace sextant {

namespace {

constexpr std::int64_t kLargeBytes = std::int64_t{1} << 20;
// One kind of work against the model of its kind: what is nobody's fault is wider than for a whole step.
constexpr double kWorkNoise = 0.1;
// The preset speaks for a class of devices, the profile for this one: it may pull three times as far. Presets of
// processors are orders of magnitude.
double widen(const ClusterSpec& cluster) { return cluster.device.generation == "cpu" ? 20 : 3; }

struct Sample {
  std::variant<Work, Kernel> what;
  double seconds = 0;
  bool alone = false;  // a collective that nothing in a step delays
};

bool tells(const Work& work, const ClusterSpec& cluster) {
  if (const auto* w = std::get_if<BlockWork>(&work))
    return w->kind != BlockKind::attention && w->kind != BlockKind::embedding;
  if (const auto* w = std::get_if<CollectiveWork>(&work))
    return w->bytes.v >= kLargeBytes && w->group.size > 1 &&
           first_ranks(w->group.size, w->group.nodes, cluster).has_value();
  return !std::holds_alternative<TransferWork>(work);
}

template <class Of>
bool any_is(const std::vector<Sample>& samples) {
  return std::ranges::any_of(samples, [](const Sample& s) {
    const Work* work = std::get_if<Work>(&s.what);
    return work && std::holds_alternative<Of>(*work);
  });
}

std::vector<Sample> samples_of_works(const WorkProfile& profile, const ClusterSpec& cluster) {
  std::vector<Sample> out;
  for (const auto& [key, measured] : profile.works) {
    const Work work = parse_work_key(key);
    const bool alone = std::holds_alternative<CollectiveWork>(work) && measured.alone_us > 0;
    const double us = alone ? measured.alone_us : measured.mean_us;
    if (us > 0 && tells(work, cluster)) out.push_back({work, us * 1e-6, alone});
  }
  return out;
}

// What works of plans have not told: they are what predictions are made of.
std::vector<Sample> samples_of_machine(const MachineFacts& facts, const std::vector<Sample>& of_works,
                                       const ClusterSpec& cluster) {
  const bool blocks = any_is<BlockWork>(of_works), passes = blocks || any_is<StateWork>(of_works),
             copies = any_is<CopyWork>(of_works);
  std::vector<Sample> out;
  for (const MachineSample& m : machine_samples(facts)) {
    if (const auto* kernel = std::get_if<Kernel>(&m.what)) {
      const auto* pass = std::get_if<Pointwise>(kernel);
      if (pass == nullptr ? !blocks : is_launch(*pass) || !passes) out.push_back({*kernel, m.took.v});
    } else if (const auto* copy = std::get_if<CopyWork>(&m.what)) {
      // Where cores are devices the runtime emulates the link; what was measured is memory.
      if (!copies && cluster.device.generation != "cpu") out.push_back({Work(*copy), m.took.v});
    } else if (const auto& collective = std::get<MeasuredCollective>(m.what);
               collective.nodes == 1 || collective.bytes.v >= kLargeBytes) {
      if (first_ranks(collective.ranks, collective.nodes, cluster))
        out.push_back({Work(work_of(collective)), m.took.v, true});
    }
  }
  return out;
}

struct Trial {
  const std::vector<Sample>& samples;
  const ClusterSpec& cluster;
  const StackSpec& stack;
  const CostConstants& constants;
  const std::vector<FreeConstant>& calibrated;

  // Logarithms of predicted times with the calibrated constants at prior * exp(theta).
  Eigen::VectorXd at(const Eigen::VectorXd& theta) const {
    std::vector<Setting> settings;
    for (std::size_t k = 0; k < calibrated.size(); ++k)
      settings.push_back({calibrated[k].of, calibrated[k].owner, calibrated[k].key,
                          calibrated[k].prior * std::exp(theta[static_cast<Eigen::Index>(k)])});
    ClusterSpec c = cluster;
    StackSpec s = stack;
    CostConstants moved = constants;
    use_settings(settings, c.fabric);
    use_settings(settings, s);
    use_settings(settings, c.device);
    use_settings(settings, c.device.generation, moved);
    const Topology topology(c);
    const AnalyticCostModel in_step(c, s, moved), by_itself(c, s, alone(moved));
    Eigen::VectorXd out(static_cast<Eigen::Index>(samples.size()));
    for (std::size_t i = 0; i < samples.size(); ++i)
      out[static_cast<Eigen::Index>(i)] =
          std::log(std::max(seconds(samples[i], samples[i].alone ? by_itself : in_step, topology), 1e-12));
    return out;
  }

 private:
  double seconds(const Sample& sample, const AnalyticCostModel& model, const Topology& topology) const {
    if (const auto* kernel = std::get_if<Kernel>(&sample.what)) return model.price(*kernel).duration.v;
    Work work = std::get<Work>(sample.what);
    if (auto* w = std::get_if<CollectiveWork>(&work))
      w->group = topology.group_of(*first_ranks(w->group.size, w->group.nodes, cluster));
    return model.price(work).duration.v;
  }
};

// The constants that samples tell something of, each once.
class SampledConstants {
 public:
  SampledConstants(const ClusterSpec& cluster, const StackSpec& stack, const CostConstants& constants,
                   const CalibrationRules& rules)
      : cluster_(cluster), stack_(stack), constants_(constants), rules_(rules) {}

  void add_of(const Sample& s) {
    if (const auto* kernel = std::get_if<Kernel>(&s.what))
      add_of(*kernel);
    else
      add_of(std::get<Work>(s.what));
  }
  // What blocks and collectives between nodes tell comes last.
  std::vector<FreeConstant> take() {
    if (blocks_) add_of_blocks();
    if (across_) add_of_fabric();
    return std::move(out_);
  }

 private:
  static constexpr double kRate = 0.15, kTime = 0.3;  // of constants that whole runs do not move

  void add_once(FreeConstant constant) {
    const auto same = [&](const FreeConstant& k) { return k.key == constant.key; };
    if (std::none_of(out_.begin(), out_.end(), same)) out_.push_back(std::move(constant));
  }
  void add_below(const char* key, double sigma, double high) {
    const double preset = constant(constants_, key);
    add_once({ConstantOwner::device, cluster_.device.generation, key, preset, sigma, 0.02,
              std::max(high, preset)});
  }
  // Nominal rates of processors are orders of magnitude: there a share of them may be above one.
  void add(const char* key, double sigma) {
    add_below(key, sigma, cluster_.device.generation == "cpu" ? 20 : 1);
  }
  void add_ruled(const char* key) { add(key, rules_.rule(key).sigma); }
  // Of times nobody knows more than the order of magnitude.
  void add_time(const char* key, double preset) {
    constexpr double kOrders = 100;
    if (preset > 0)
      add_once({ConstantOwner::device, cluster_.device.generation, key, preset, kTime, preset / kOrders,
                preset * kOrders});
  }

  void add_of(const Kernel& kernel) {
    const auto* pass = std::get_if<Pointwise>(&kernel);
    if (pass == nullptr)
      add_ruled("gemm_efficiency");
    else if (is_launch(*pass))
      add_time("launch_overhead_us", setting_value(cluster_.device, "launch_overhead_us"));
    else
      add_ruled("memory_efficiency");
  }
  void add_of(const Work& work) {
    if (std::holds_alternative<BlockWork>(work)) blocks_ = true;
    if (std::holds_alternative<CopyWork>(work)) add("host_copy_efficiency", kRate);
    if (const auto* w = std::get_if<StateWork>(&work))
      add_ruled(w->host ? "host_update_efficiency" : "memory_efficiency");
    if (const auto* w = std::get_if<CollectiveWork>(&work)) add_of(*w);
  }
  void add_of(const CollectiveWork& w) {
    if (w.bytes.v < kLargeBytes)
      add_time("collective_start_us", constants_.collective_start_us);
    else if (w.group.nodes > 1)
      across_ = true;
    else if (cluster_.node.link != NodeLinkKind::nvswitch)
      add("link_efficiency_mesh", kRate);
    else if (w.kind == CollectiveKind::all_reduce && cluster_.node.nvls &&
             constants_.link_efficiency_in_switch > 0)
      add_below("link_efficiency_in_switch", kRate, most_in_switch(w.group.size));
    else
      add("link_efficiency", kRate);
  }
  void add_of_blocks() {
    add_ruled("gemm_efficiency");
    add_ruled("memory_efficiency");
    const double host = setting_value(stack_, "host_forward_per_layer_us");
    out_.push_back({ConstantOwner::stack, stack_.name, "host_forward_per_layer_us", host,
                    rules_.rule("host_forward_per_layer_us").sigma, host / 20, host * 20});
  }
  void add_of_fabric() {
    const FabricSpec& f = cluster_.fabric;
    const double hop = f.latency.v * 1e6;
    out_.push_back({ConstantOwner::fabric, f.name, "efficiency", f.efficiency,
                    rules_.rule("efficiency").sigma, 0.02, 1});
    out_.push_back({ConstantOwner::fabric, f.name, "latency_us", hop, rules_.rule("latency_us").sigma,
                    hop / 10, hop * 10});
  }

  const ClusterSpec& cluster_;
  const StackSpec& stack_;
  CostConstants constants_;
  const CalibrationRules& rules_;
  bool across_ = false, blocks_ = false;
  std::vector<FreeConstant> out_;
};

std::vector<FreeConstant> constants_for(const std::vector<Sample>& samples, const ClusterSpec& cluster,
                                        const StackSpec& stack, const CostConstants& constants,
                                        const CalibrationRules& rules) {
  SampledConstants known(cluster, stack, constants, rules);
  for (const Sample& s : samples) known.add_of(s);
  return known.take();
}

}  // namespace

bool taken_on(const WorkProfile& profile, const DeviceSpec& device) {
  // Only the device's own name counts, not the libraries behind it.
  return names_device(profile.machine.substr(0, profile.machine.find(',')), device);
}

ProfileFit profile_priors(const WorkProfile& profile, const std::string& file, const ClusterSpec& cluster,
                          const std::filesystem::path& preset_dir, const CalibrationRules& rules) {
  const StackSpec stack = load_stack(kProfiledStack, preset_dir);
  const CostConstants constants = load_cost_preset(cluster.device.generation, preset_dir / "cost").constants;
  std::vector<Sample> samples = samples_of_works(profile, cluster);
  const auto works = static_cast<int>(samples.size());
  if (profile.facts)
    std::ranges::move(samples_of_machine(*profile.facts, samples, cluster), std::back_inserter(samples));
  if (samples.empty())
    throw ConfigError(Problem{file, "operations", fmt::format("{} operations", profile.works.size()),
                              "at least one GEMM, pass over memory, copy or collective of 1 MiB that this "
                              "cluster can run",
                              "sextant profile --for plan.json -o profile.json"});
  const std::vector<FreeConstant> calibrated = constants_for(samples, cluster, stack, constants, rules);
  const Trial trial{samples, cluster, stack, constants, calibrated};
  const auto n = static_cast<Eigen::Index>(calibrated.size());
  Eigen::VectorXd measured(static_cast<Eigen::Index>(samples.size()));
  for (std::size_t i = 0; i < samples.size(); ++i)
    measured[static_cast<Eigen::Index>(i)] = std::log(samples[i].seconds);

  Posterior prior{Eigen::VectorXd::Zero(n), Eigen::MatrixXd::Zero(n, n)};
  for (Eigen::Index k = 0; k < n; ++k) {
    const double sigma = widen(cluster) * calibrated[static_cast<std::size_t>(k)].sigma;
    prior.covariance(k, k) = sigma * sigma;
  }
  ProfileFit out{.file = file,
                 .machine = profile.machine,
                 .date = profile.date,
                 .works = works,
                 .measurements = static_cast<int>(samples.size()) - works};
  Eigen::VectorXd x = prior.mean, now = trial.at(x);
  out.mape_before = mape(measured - now);
  Posterior fit = prior;
  constexpr int kIterations = 8;
  constexpr double kStep = 0.02;
  for (int iteration = 0; iteration < kIterations; ++iteration) {
    Eigen::MatrixXd j(now.size(), n);
    for (Eigen::Index k = 0; k < n; ++k) {
      Eigen::VectorXd moved = x;
      moved[k] += kStep;
      j.col(k) = (trial.at(moved) - now) / kStep;
    }
    fit = update(prior, j, measured - now, x, Eigen::VectorXd::Ones(now.size()), kWorkNoise);
    for (Eigen::Index k = 0; k < n; ++k) {
      const FreeConstant& constant = calibrated[static_cast<std::size_t>(k)];
      x[k] = std::clamp(fit.mean[k], std::log(constant.low / constant.prior),
                        std::log(constant.high / constant.prior));
    }
    now = trial.at(x);
  }
  out.mape_after = mape(measured - now);
  for (Eigen::Index k = 0; k < n; ++k) {
    const FreeConstant& constant = calibrated[static_cast<std::size_t>(k)];
    const ConstantFit known{constant, constant.prior * std::exp(x[k]), std::sqrt(fit.covariance(k, k))};
    if (known.sigma < 0.7 * widen(cluster) * constant.sigma) out.constants.push_back(known);
  }
  return out;
}

}  // namespace sextant

#include "planner/calibrate.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include <Eigen/Dense>
#include <nlohmann/json.hpp>

#include "core/cluster_files.hpp"
#include "core/json_io.hpp"

namespace sextant {

namespace {

constexpr std::array<std::string_view, 3> kKnobOfNames = {"device", "stack", "fabric"};

constexpr auto kRule = [](auto& io, auto& r) {
  io.required("of", r.of, kKnobOfNames);
  io.required("key", r.key);
  io.optional("per_generation", r.per_generation);
  io.optional("cold", r.cold, at_least(0));
  io.required("sigma", r.sigma, above(0));
  io.optional("low_factor", r.low_factor, above(0));
  io.optional("high_factor", r.high_factor, above(0));
  io.ignored("note");
};

// How a stack or fabric constant is reached by its JSON key.
double* stack_constant(StackSpec& s, const std::string& key) {
  StackKernels& k = s.kernels;
  if (key == "pointwise_passes") return &k.pointwise_passes;
  if (key == "loss_bytes_per_logit") return &k.loss_bytes_per_logit;
  if (key == "host_forward_per_layer_us") return &k.host_forward_per_layer.v;
  if (key == "host_tp_per_layer_us") return &k.host_tp_per_layer.v;
  if (key == "gemm_bonus") return &k.gemm_bonus;
  if (key == "accumulate_bytes") return &k.accumulate_bytes;
  if (key == "step_overhead_ms") return &k.step_overhead.v;
  return nullptr;
}
double* fabric_constant(FabricSpec& f, const std::string& key) {
  if (key == "efficiency") return &f.efficiency;
  if (key == "latency_us") return &f.latency.v;
  return nullptr;
}
// Keys carry units, values in code are SI.
double si(const std::string& key, double value) {
  return key.ends_with("_us") ? value * 1e-6 : key.ends_with("_ms") ? value * 1e-3 : value;
}
double in_unit(const std::string& key, double value) { return value / si(key, 1.0); }

[[noreturn]] void unknown(const Knob& knob) {
  throw ConfigError(
      Problem{"", "key", knob.key, "a constant of a device, stack or fabric that may be calibrated", ""});
}

// Presets with some constants replaced.
class Trial {
 public:
  Trial(const std::filesystem::path& preset_dir, std::span<const Knob> knobs, const Eigen::VectorXd& theta) {
    for (std::size_t i = 0; i < knobs.size(); ++i)
      values_.push_back({&knobs[i], knobs[i].prior * std::exp(theta[static_cast<Eigen::Index>(i)])});
    for (const char* generation : {"volta", "ampere", "hopper", "blackwell", "cpu"}) {
      presets_.push_back(load_cost_preset(generation, preset_dir / "cost"));
      for (const auto& [knob, value] : values_)
        if (knob->of == KnobOf::device && (knob->owner.empty() || knob->owner == generation))
          constant(presets_.back().constants, knob->key) = value;
    }
    options_ = {preset_dir, &presets_, [this](ResolvedRun& run) { adjust(run); }};
  }
  Trial(const Trial&) = delete;
  const PredictOptions& options() const { return options_; }

 private:
  void adjust(ResolvedRun& run) const {
    for (const auto& [knob, value] : values_) {
      double* target = nullptr;
      if (knob->of == KnobOf::stack && knob->owner == run.stack.name)
        target = stack_constant(run.stack, knob->key);
      else if (knob->of == KnobOf::fabric && knob->owner == run.cluster.fabric.name)
        target = fabric_constant(run.cluster.fabric, knob->key);
      else
        continue;
      if (target == nullptr) unknown(*knob);
      *target = si(knob->key, value);
    }
  }
  std::vector<std::pair<const Knob*, double>> values_;
  std::vector<CostPreset> presets_;
  PredictOptions options_;
};

// Whose constants a row uses.
struct Owners {
  std::string generation, stack, fabric;
  bool has(const Knob& k) const {
    switch (k.of) {
      case KnobOf::device:
        return k.owner.empty() || k.owner == generation;
      case KnobOf::stack:
        return k.owner == stack;
      case KnobOf::fabric:
        return k.owner == fabric;
    }
    return false;
  }
};

struct FitProblem {
  std::vector<RunRow> rows;
  std::vector<Owners> owners;
  std::vector<Knob> knobs;
  const FrameworkMap& map;
  const std::filesystem::path& presets;

  // Logarithm of the predicted step; a row without a prediction counts as exact.
  Eigen::VectorXd log_time(const Eigen::VectorXd& theta) const {
    const Trial trial(presets, knobs, theta);
    const auto predictions = predict_runs(rows, map, trial.options());
    Eigen::VectorXd out(static_cast<Eigen::Index>(rows.size()));
    for (std::size_t i = 0; i < rows.size(); ++i)
      out[static_cast<Eigen::Index>(i)] = std::log(predictions[i].step_s.value_or(rows[i].step_time->v));
    return out;
  }
  Eigen::VectorXd measured() const {
    Eigen::VectorXd out(static_cast<Eigen::Index>(rows.size()));
    for (std::size_t i = 0; i < rows.size(); ++i)
      out[static_cast<Eigen::Index>(i)] = std::log(rows[i].step_time->v);
    return out;
  }
  // Forward differences; knobs of one key with different owners touch different rows and are moved together.
  Eigen::MatrixXd jacobian(const Eigen::VectorXd& theta, const Eigen::VectorXd& at) const {
    constexpr double kStep = 0.05;
    Eigen::MatrixXd j = Eigen::MatrixXd::Zero(at.size(), theta.size());
    std::map<std::pair<KnobOf, std::string>, std::vector<std::size_t>> together;
    for (std::size_t k = 0; k < knobs.size(); ++k) together[{knobs[k].of, knobs[k].key}].push_back(k);
    for (const auto& [key, members] : together) {
      Eigen::VectorXd moved = theta;
      for (const std::size_t k : members) moved[static_cast<Eigen::Index>(k)] += kStep;
      const Eigen::VectorXd change = (log_time(moved) - at) / kStep;
      for (const std::size_t k : members)
        for (std::size_t r = 0; r < rows.size(); ++r)
          if (owners[r].has(knobs[k]))
            j(static_cast<Eigen::Index>(r), static_cast<Eigen::Index>(k)) =
                change[static_cast<Eigen::Index>(r)];
    }
    return j;
  }
  Eigen::VectorXd clamped(Eigen::VectorXd theta) const {
    for (std::size_t k = 0; k < knobs.size(); ++k) {
      double& x = theta[static_cast<Eigen::Index>(k)];
      if (knobs[k].low > 0) x = std::max(x, std::log(knobs[k].low / knobs[k].prior));
      if (knobs[k].high > 0) x = std::min(x, std::log(knobs[k].high / knobs[k].prior));
    }
    return theta;
  }
  Eigen::MatrixXd prior_covariance() const {
    Eigen::VectorXd variance(static_cast<Eigen::Index>(knobs.size()));
    for (std::size_t k = 0; k < knobs.size(); ++k)
      variance[static_cast<Eigen::Index>(k)] = knobs[k].sigma * knobs[k].sigma;
    return variance.asDiagonal();
  }
};

FitProblem problem(std::span<const RunRow> rows, const FrameworkMap& map,
                   const std::filesystem::path& presets, std::span<const Knob> knobs) {
  FitProblem p{{}, {}, {knobs.begin(), knobs.end()}, map, presets};
  for (const RunRow& row : rows) {
    if (!row.step_time) continue;
    const ResolvedRun run = resolve(row, map, presets);
    if (!validate(run.plan, run.model, run.training).empty()) continue;
    p.rows.push_back(row);
    p.owners.push_back({run.cluster.device.generation, run.stack.name, run.cluster.fabric.name});
  }
  return p;
}

struct Posterior {
  Eigen::VectorXd mean;
  Eigen::MatrixXd covariance;
};

// Maximum of prior N(mean, covariance) times Huber likelihood of residual = j (x - at).
Posterior update(const Posterior& prior, const Eigen::MatrixXd& j, const Eigen::VectorXd& residual,
                 const Eigen::VectorXd& at, const Eigen::VectorXd& weight, double noise) {
  constexpr double kHuber = 2.0;
  const Eigen::MatrixXd precision = prior.covariance.inverse();
  Posterior out{at, prior.covariance};
  for (int pass = 0; pass < 8; ++pass) {
    const Eigen::VectorXd left = residual - j * (out.mean - at);
    Eigen::VectorXd w = weight / (noise * noise);
    for (Eigen::Index r = 0; r < w.size(); ++r)
      w[r] *= std::min(1.0, kHuber * noise / std::max(std::abs(left[r]), 1e-12));
    const Eigen::MatrixXd weighted = j.transpose() * w.asDiagonal();
    out.covariance = (weighted * j + precision).inverse();
    out.mean = out.covariance * (weighted * (residual + j * at) + precision * prior.mean);
  }
  return out;
}

double mape(const Eigen::VectorXd& residual) {
  double sum = 0;
  for (Eigen::Index r = 0; r < residual.size(); ++r) sum += std::abs(std::expm1(-residual[r]));
  return residual.size() == 0 ? 0 : 100 * sum / static_cast<double>(residual.size());
}

double median_error(const Eigen::VectorXd& residual) {
  std::vector<double> e;
  for (Eigen::Index r = 0; r < residual.size(); ++r) e.push_back(100 * std::abs(std::expm1(-residual[r])));
  if (e.empty()) return 0;
  std::nth_element(e.begin(), e.begin() + static_cast<std::ptrdiff_t>(e.size() / 2), e.end());
  return e[e.size() / 2];
}

double class_value(const CalibrationRules& rules, const std::string& stack, const std::string& key) {
  for (const StackClass& c : rules.classes)
    if (std::find(c.stacks.begin(), c.stacks.end(), stack) != c.stacks.end())
      for (const auto& [name, value] : c.values)
        if (name == key) return value;
  return 0;
}

double device_prior(const std::string& generation, const KnobRule& rule, const std::filesystem::path& presets,
                    bool cold, double& low, double& high) {
  const CostPreset preset = load_cost_preset(generation, presets / "cost");
  for (const ConstantRecord& r : preset.records) {
    if (r.key != rule.key) continue;
    const bool bounded = r.low > 0 && r.high > r.low;
    if (bounded) low = r.low, high = r.high;
    if (!cold) return r.value;
    return rule.cold > 0 ? rule.cold : bounded ? 0.5 * (r.low + r.high) : r.value;
  }
  throw ConfigError(Problem{"", "key", rule.key, "a constant of the cost presets", ""});
}

}  // namespace

void from_json(const nlohmann::json& j, KnobRule& r) { read_object(j, r, kRule); }

CalibrationRules load_calibration_rules(const std::filesystem::path& preset_dir) {
  CalibrationRules rules;
  const auto path = preset_dir / "calibration/step_time.json";
  const nlohmann::json j = read_json_file(path);
  with_file(path.string(), [&] {
    rules.noise = j.at("noise").get<double>();
    rules.common_sigma = j.at("common_sigma").get<double>();
    rules.knobs = j.at("knobs").get<std::vector<KnobRule>>();
    for (const auto& [name, c] : j.at("classes").items()) {
      StackClass one{name, c.at("stacks").get<std::vector<std::string>>(), {}};
      for (const auto& [key, value] : c.at("values").items())
        one.values.emplace_back(key, value.get<double>());
      rules.classes.push_back(std::move(one));
    }
  });
  return rules;
}

std::vector<Knob> knobs_of(std::span<const RunRow> rows, const FrameworkMap& map,
                           const std::filesystem::path& preset_dir, const CalibrationRules& rules,
                           bool cold) {
  const FitProblem p = problem(rows, map, preset_dir, {});
  std::map<std::string, FabricSpec> fabrics;
  std::set<std::string> generations, stacks;
  for (std::size_t i = 0; i < p.rows.size(); ++i) {
    generations.insert(p.owners[i].generation), stacks.insert(p.owners[i].stack);
    if (p.rows[i].nodes > 1)
      fabrics.try_emplace(p.owners[i].fabric, resolve(p.rows[i], map, preset_dir).cluster.fabric);
  }
  std::vector<Knob> out;
  const auto add = [&](const KnobRule& rule, const std::string& owner, double prior, double low,
                       double high) {
    if (!(prior > 0)) return;  // a constant that is zero is a fact: the cost does not exist here
    out.push_back({rule.of, owner, rule.key, prior, rule.sigma, low > 0 ? low : prior * rule.low_factor,
                   high > 0 ? high : prior * rule.high_factor});
  };
  for (const KnobRule& rule : rules.knobs) {
    if (rule.of == KnobOf::device) {
      std::set<std::string> owners = generations;
      if (!rule.per_generation && !generations.empty()) owners = {*generations.begin()};
      for (const std::string& g : owners) {
        double low = 0, high = 0;
        const double prior = device_prior(g, rule, preset_dir, cold, low, high);
        add(rule, rule.per_generation ? g : "", prior, low, high);
      }
    }
    if (rule.of == KnobOf::stack)
      for (const std::string& s : stacks) {
        StackSpec spec = load_stack(s, preset_dir);
        const double* at = stack_constant(spec, rule.key);
        if (at == nullptr) unknown({rule.of, s, rule.key, 0, 0, 0, 0});
        double prior = in_unit(rule.key, *at);
        if (cold && prior > 0)
          if (const double by_class = class_value(rules, s, rule.key); by_class > 0) prior = by_class;
        add(rule, s, prior, 0, 0);
      }
    if (rule.of == KnobOf::fabric)
      for (auto& [name, spec] : fabrics) {
        const double* at = fabric_constant(spec, rule.key);
        if (at == nullptr) unknown({rule.of, name, rule.key, 0, 0, 0, 0});
        add(rule, name, in_unit(rule.key, *at), 0, 0);
      }
  }
  return out;
}

Calibration calibrate(std::span<const RunRow> rows, const FrameworkMap& map,
                      const std::filesystem::path& preset_dir, const CalibrationRules& rules,
                      std::span<const Knob> knobs) {
  const FitProblem p = problem(rows, map, preset_dir, knobs);
  const auto n = static_cast<Eigen::Index>(knobs.size());
  Calibration out;
  out.rows = static_cast<int>(p.rows.size());
  if (p.rows.empty()) return out;
  const Eigen::VectorXd measured = p.measured();
  const Eigen::VectorXd even = Eigen::VectorXd::Ones(measured.size());

  // The common factor is one more unknown, with a column of ones.
  Posterior prior{Eigen::VectorXd::Zero(n + 1), Eigen::MatrixXd::Zero(n + 1, n + 1)};
  prior.covariance.topLeftCorner(n, n) = p.prior_covariance();
  prior.covariance(n, n) = rules.common_sigma * rules.common_sigma;
  Eigen::VectorXd x = prior.mean;
  Posterior fit = prior;
  Eigen::VectorXd now = p.log_time(x.head(n));
  out.mape_before = mape(measured - now);
  for (int iteration = 0; iteration < 2; ++iteration) {
    Eigen::MatrixXd j(now.size(), n + 1);
    j << p.jacobian(x.head(n), now), even;
    const Eigen::VectorXd residual = measured - now - Eigen::VectorXd::Constant(now.size(), x[n]);
    fit = update(prior, j, residual, x, even, rules.noise);
    x = fit.mean;
    x.head(n) = p.clamped(x.head(n));
    now = p.log_time(x.head(n));
  }
  out.common = std::exp(x[n]);
  out.mape_after = mape(measured - now - Eigen::VectorXd::Constant(now.size(), x[n]));
  for (Eigen::Index k = 0; k < n; ++k) {
    const Knob& knob = knobs[static_cast<std::size_t>(k)];
    out.constants.push_back({knob, knob.prior * std::exp(x[k]), std::sqrt(fit.covariance(k, k))});
  }
  for (Eigen::Index r = 0; r < n; ++r)
    for (Eigen::Index c = 0; c < n; ++c) out.covariance.push_back(fit.covariance(r, c));
  return out;
}

std::vector<RunPrediction> predict_calibrated(std::span<const RunRow> rows, const FrameworkMap& map,
                                              const std::filesystem::path& preset_dir,
                                              const Calibration& calibration) {
  std::vector<Knob> knobs;
  Eigen::VectorXd theta(static_cast<Eigen::Index>(calibration.constants.size()));
  for (const KnobFit& c : calibration.constants) {
    theta[static_cast<Eigen::Index>(knobs.size())] = std::log(c.value / c.knob.prior);
    knobs.push_back(c.knob);
  }
  const Trial trial(preset_dir, knobs, theta);
  auto predictions = predict_runs(rows, map, trial.options());
  for (RunPrediction& p : predictions)
    for (auto* time : {&p.step_s, &p.step_lower_s, &p.step_upper_s})
      if (*time) **time *= calibration.common;
  return predictions;
}

namespace {

// At most `most` of each source, drawn without replacement.
std::vector<bool> drawn(const FitProblem& p, int most, std::mt19937_64& random) {
  std::map<std::string, std::vector<std::size_t>> by_source;
  for (std::size_t r = 0; r < p.rows.size(); ++r) by_source[p.rows[r].source].push_back(r);
  std::vector<bool> in(p.rows.size(), false);
  for (auto& [source, list] : by_source) {
    std::shuffle(list.begin(), list.end(), random);
    for (std::size_t i = 0; i < list.size() && i < static_cast<std::size_t>(most); ++i) in[list[i]] = true;
  }
  return in;
}

struct Few {
  double mape = 0, median = 0;
};

// Fits the posterior of the other sources once more, to `few` rows of this one, and scores the rest.
Few after_few(const Posterior& known, const Eigen::MatrixXd& j, const Eigen::VectorXd& residual,
              const CalibrationRules& rules, const LeaveOutOptions& options, std::mt19937_64& random) {
  const Eigen::Index n = known.mean.size(), rows = residual.size();
  Posterior prior{Eigen::VectorXd::Zero(n + 1), Eigen::MatrixXd::Zero(n + 1, n + 1)};
  prior.covariance.topLeftCorner(n, n) = known.covariance;
  prior.covariance(n, n) = rules.common_sigma * rules.common_sigma;
  std::vector<Eigen::Index> order(static_cast<std::size_t>(rows));
  std::iota(order.begin(), order.end(), 0);
  Few sum;
  for (int draw = 0; draw < options.draws; ++draw) {
    std::shuffle(order.begin(), order.end(), random);
    const Eigen::Index few = std::min<Eigen::Index>(options.few, rows - 1);
    Eigen::MatrixXd part(few, n + 1), rest(rows - few, n + 1);
    Eigen::VectorXd seen(few), unseen(rows - few);
    for (Eigen::Index i = 0; i < rows; ++i) {
      const Eigen::Index r = order[static_cast<std::size_t>(i)];
      if (i < few) {
        part.row(i) << j.row(r), 1.0;
        seen[i] = residual[r];
      } else {
        rest.row(i - few) << j.row(r), 1.0;
        unseen[i - few] = residual[r];
      }
    }
    const Posterior fit = update(prior, part, seen, prior.mean, Eigen::VectorXd::Ones(few), rules.noise);
    const Eigen::VectorXd left = unseen - rest * fit.mean;
    sum.mape += mape(left) / options.draws, sum.median += median_error(left) / options.draws;
  }
  return sum;
}

}  // namespace

std::vector<LeftOut> leave_one_source_out(std::span<const RunRow> rows, const FrameworkMap& map,
                                          const std::filesystem::path& preset_dir,
                                          const CalibrationRules& rules, const LeaveOutOptions& options) {
  std::vector<RunRow> kept;
  for (const RunRow& row : rows)
    if (row.step_time && row.quality != 'c') kept.push_back(row);
  const std::vector<Knob> knobs = knobs_of(kept, map, preset_dir, rules, true);
  const FitProblem p = problem(kept, map, preset_dir, knobs);
  const auto n = static_cast<Eigen::Index>(knobs.size());
  const auto all = static_cast<Eigen::Index>(p.rows.size());
  std::mt19937_64 random(options.seed);
  const std::vector<bool> fitted = drawn(p, options.fit_rows_per_source, random);
  std::map<std::string, int> count;
  for (const RunRow& row : p.rows) ++count[row.source];

  // One Jacobian, at the cold start, serves every fit; residuals are simulated anew after each step.
  const Eigen::VectorXd measured = p.measured(), cold = Eigen::VectorXd::Zero(n);
  const Eigen::VectorXd at_cold = p.log_time(cold);
  const Eigen::MatrixXd j = p.jacobian(cold, at_cold);

  std::vector<LeftOut> out;
  for (const auto& [source, size] : count) {
    if (size < options.min_rows) continue;
    Eigen::VectorXd weight(all);
    for (Eigen::Index r = 0; r < all; ++r) {
      const auto i = static_cast<std::size_t>(r);
      weight[r] = fitted[i] && p.rows[i].source != source ? 1 : 0;
    }
    const Posterior prior{cold, p.prior_covariance()};
    Posterior fit = update(prior, j, measured - at_cold, cold, weight, rules.noise);
    Eigen::VectorXd x = p.clamped(fit.mean);
    Eigen::VectorXd now = p.log_time(x);
    fit = update(prior, j, measured - now, x, weight, rules.noise);
    x = p.clamped(fit.mean);
    now = p.log_time(x);

    LeftOut one{source, size, 0, 0, 0, 0};
    Eigen::VectorXd residual(size);
    Eigen::MatrixXd own(size, n);
    Eigen::Index next = 0;
    for (Eigen::Index r = 0; r < all; ++r) {
      if (p.rows[static_cast<std::size_t>(r)].source != source) continue;
      residual[next] = measured[r] - now[r];
      own.row(next++) = j.row(r);
    }
    one.mape = mape(residual), one.median = median_error(residual);
    const Few few = after_few(fit, own, residual, rules, options, random);
    one.mape_few = few.mape, one.median_few = few.median;
    out.push_back(one);
  }
  return out;
}

}  // namespace sextant

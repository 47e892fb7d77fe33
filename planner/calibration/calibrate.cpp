#include "planner/calibration/calibrate.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/median.hpp"
#include "planner/calibration/fit_problem.hpp"

namespace sextant {

namespace {

std::vector<double> seconds_of(const Eigen::VectorXd& log_time) {
  std::vector<double> out;
  for (Eigen::Index r = 0; r < log_time.size(); ++r) out.push_back(std::exp(log_time[r]));
  return out;
}

// What of a user's rows constants do not explain is an unknown of its own for each row; `likeness` is its prior covariance.
// Empty in a fit of the presets, and where the rules learn none.
struct Beyond {
  std::vector<LayoutPoint> points;
  Eigen::MatrixXd covariance;
};
Beyond beyond_constants(std::span<const MeasuredRun> runs, const LikenessRule& rule, FitOf fit_of) {
  Beyond out;
  if (fit_of == FitOf::presets || !(rule.sigma > 0)) return out;
  for (const MeasuredRun& r : runs) out.points.push_back(layout_point(r.run));
  out.covariance = covariance(out.points, rule);
  return out;
}

// Block by block: constants first.
Eigen::MatrixXd joined(const Eigen::MatrixXd& constants, const Eigen::MatrixXd& beyond) {
  const Eigen::Index n = constants.rows(), m = beyond.rows();
  Eigen::MatrixXd out = Eigen::MatrixXd::Zero(n + m, n + m);
  out.topLeftCorner(n, n) = constants;
  out.bottomRightCorner(m, m) = beyond;
  return out;
}

LearnedResidual learned(const Beyond& beyond, const LikenessRule& rule, const Posterior& fit, Eigen::Index n,
                        bool taken) {
  LearnedResidual out;
  const auto m = static_cast<Eigen::Index>(beyond.points.size());
  if (m == 0) return out;
  out.of.rule = rule;
  // log_factor() of a run's own layout is then its unknown.
  const Eigen::VectorXd weight = beyond.covariance.ldlt().solve(fit.mean.tail(m));
  for (Eigen::Index r = 0; r < m; ++r)
    out.of.runs.push_back({beyond.points[static_cast<std::size_t>(r)], taken ? weight[r] : 0.0});
  for (Eigen::Index r = 0; r < m; ++r)
    for (Eigen::Index c = 0; c < m; ++c) out.covariance.push_back(fit.covariance(n + r, n + c));
  for (Eigen::Index k = 0; k < n; ++k)
    for (Eigen::Index r = 0; r < m; ++r) out.with_constants.push_back(fit.covariance(k, n + r));
  return out;
}

// Residuals that each row would have had without its own say: r / (1 - h), h its leverage. Source: the hat matrix of
// generalised least squares; exact for a linear model without Huber weights.
Eigen::VectorXd left_out(const Eigen::VectorXd& residual, const Eigen::MatrixXd& j, const Posterior& fit,
                         double noise) {
  Eigen::VectorXd out = residual;
  for (Eigen::Index r = 0; r < residual.size(); ++r) {
    const double leverage = (j.row(r) * fit.covariance).dot(j.row(r)) / (noise * noise);
    out[r] = residual[r] / std::max(1 - leverage, 0.05);
  }
  return out;
}

// How far the factor of a whole machine may be from its prior, where its rows lie further off together than prior and noise
// allow (two standard deviations): as far as they do. `residual` is measured minus predicted, in logarithms. Source: empirical
// Bayes; the variance that makes a mean residual r of n rows most likely is r^2 - noise^2 / n.
void widen_machine_factors(Eigen::MatrixXd& covariance, std::span<const FreeConstant> calibrated,
                           std::span<const MeasuredRun> runs, const Eigen::VectorXd& residual, double noise) {
  for (std::size_t k = 0; k < calibrated.size(); ++k) {
    if (calibrated[k].key != kMachineFactor) continue;
    double sum = 0, n = 0;
    for (std::size_t r = 0; r < runs.size(); ++r)
      if (concerns(calibrated[k], runs[r].run)) {
        sum += residual[static_cast<Eigen::Index>(r)];
        n += 1;
      }
    if (n < 2) continue;  // one row may be off for reasons of its own
    double& variance = covariance(static_cast<Eigen::Index>(k), static_cast<Eigen::Index>(k));
    const double mean = sum / n, of_mean = noise * noise / n;
    constexpr double kBeyond = 2;
    if (mean * mean > kBeyond * kBeyond * (variance + of_mean)) variance = mean * mean - of_mean;
  }
}

// Where the rows of a machine agree that it is a seventh or more off, its factor starts from their median, so that no other
// constant takes a part of what all rows share. They agree where three of four are at least half as far off.
void start_machine_factors(const FitProblem& p, const Eigen::VectorXd& measured, Posterior& prior) {
  constexpr double kFar = 0.14, kAlike = 0.5, kMost = 0.75;
  constexpr int kPasses = 3;  // what a step costs beside its works is no part of the factor
  for (std::size_t k = 0; k < p.calibrated.size(); ++k) {
    if (p.calibrated[k].key != kMachineFactor) continue;
    const auto at = static_cast<Eigen::Index>(k);
    for (int pass = 0; pass < kPasses; ++pass) {
      const Eigen::VectorXd off = measured - p.log_time(prior.mean);
      std::vector<double> own;
      for (std::size_t r = 0; r < p.runs.size(); ++r)
        if (concerns(p.calibrated[k], p.runs[r].run)) own.push_back(off[static_cast<Eigen::Index>(r)]);
      if (own.size() < 2) break;  // one row may be off for reasons of its own
      const double shared = median(own);
      const auto alike = std::ranges::count_if(own, [&](double x) { return x / shared >= kAlike; });
      if (pass == 0 &&
          (std::abs(shared) < kFar || static_cast<double>(alike) < kMost * static_cast<double>(own.size())))
        break;
      prior.mean[at] += shared;
    }
  }
}

}  // namespace

Calibration calibrate(std::span<const MeasuredRun> runs, const std::filesystem::path& preset_dir,
                      const CalibrationRules& rules, std::span<const FreeConstant> calibrated, FitOf fit_of,
                      std::vector<Setting> base) {
  constexpr int kIterations = 2;
  const bool own = fit_of == FitOf::own_runs;
  const double noise = own ? rules.own_noise : rules.noise, huber = own ? rules.own_huber : 2.0;
  const FitProblem p{runs, calibrated, preset_dir, std::move(base)};
  Calibration out;
  out.rows = static_cast<int>(runs.size());
  if (runs.empty() || calibrated.empty()) return out;
  const auto n = static_cast<Eigen::Index>(calibrated.size());
  const Eigen::VectorXd measured = p.measured();
  const Eigen::VectorXd even = Eigen::VectorXd::Ones(measured.size());
  const Beyond beyond = beyond_constants(runs, rules.own_residual, fit_of);
  const auto m = static_cast<Eigen::Index>(beyond.points.size());
  Posterior prior{Eigen::VectorXd::Zero(n + m), joined(p.prior_covariance(), beyond.covariance)};
  const Eigen::VectorXd untouched = p.log_time(prior.mean);
  out.before = seconds_of(untouched);
  out.mape_before = mape(measured - untouched);
  if (own) {
    start_machine_factors(p, measured, prior);
    widen_machine_factors(prior.covariance, calibrated, runs, measured - p.log_time(prior.mean),
                          std::hypot(noise, m > 0 ? rules.own_residual.sigma : 0));
  }
  Eigen::VectorXd x = prior.mean, now = p.log_time(x);
  // Of each run beyond constants; a fit of the presets has nothing there.
  const auto beyond_of = [&](const Eigen::VectorXd& at) -> Eigen::VectorXd {
    return m > 0 ? Eigen::VectorXd(at.tail(m)) : Eigen::VectorXd::Zero(measured.size());
  };
  Posterior fit = prior;
  Eigen::MatrixXd j;
  for (int iteration = 0; iteration < kIterations; ++iteration) {
    j = p.jacobian(x, now - beyond_of(x));
    if (m > 0) j.rightCols(m).setIdentity();
    fit = update(prior, j, measured - now, x, even, noise, huber);
    x = p.clamped(fit.mean);
    now = p.log_time(x) + beyond_of(x);
  }
  out.mape_left_out = mape(left_out(measured - now, j, fit, noise));
  out.taken =
      fit_of == FitOf::presets || out.rows < 2 || out.mape_left_out <= rules.own_tolerance * out.mape_before;
  if (!out.taken) {
    x.setZero();
    now = untouched;
  }
  out.after = seconds_of(now);
  out.mape_after = mape(measured - now);
  for (Eigen::Index k = 0; k < n; ++k) {
    const FreeConstant& constant = calibrated[static_cast<std::size_t>(k)];
    out.constants.push_back({constant, constant.prior * std::exp(x[k]), std::sqrt(fit.covariance(k, k))});
  }
  for (Eigen::Index r = 0; r < n; ++r)
    for (Eigen::Index c = 0; c < n; ++c) out.covariance.push_back(fit.covariance(r, c));
  out.residual = learned(beyond, rules.own_residual, fit, n, out.taken);
  return out;
}

std::vector<Setting> settings_of(const Calibration& calibration) {
  std::vector<Setting> out;
  for (const ConstantFit& c : calibration.constants)
    for (Setting& s : settings_of(c.constant, c.value)) out.push_back(std::move(s));
  return out;
}

}  // namespace sextant

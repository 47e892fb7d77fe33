#include "planner/calibration/fit_problem.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <utility>

#include <tbb/parallel_for.h>

#include "core/base/median.hpp"

namespace sextant {

std::vector<Setting> FitProblem::settings(const Eigen::VectorXd& theta) const {
  std::vector<Setting> out = base;
  for (std::size_t i = 0; i < calibrated.size(); ++i)
    for (Setting& s :
         settings_of(calibrated[i], calibrated[i].prior * std::exp(theta[static_cast<Eigen::Index>(i)])))
      out.push_back(std::move(s));
  return out;
}

namespace {

// A run that cannot be predicted counts as exact: it speaks for no constant.
double log_of(const std::optional<Seconds>& predicted, const MeasuredRun& run) {
  return std::log(predicted.value_or(run.step).v);
}

}  // namespace

Eigen::VectorXd log_times(std::span<const MeasuredRun> runs, const PredictOptions& options) {
  Eigen::VectorXd out(static_cast<Eigen::Index>(runs.size()));
  tbb::parallel_for(std::size_t{0}, runs.size(), [&](std::size_t i) {
    out[static_cast<Eigen::Index>(i)] = log_of(predict_step(runs[i].run, options), runs[i]);
  });
  return out;
}

Eigen::VectorXd FitProblem::log_time(const Eigen::VectorXd& theta) const {
  const CalibratedPresets trial(presets, settings(theta));
  return log_times(runs, trial.options());
}

Eigen::MatrixXd FitProblem::log_times_at(std::span<const Eigen::VectorXd> thetas,
                                         const std::function<bool(std::size_t, std::size_t)>& asked) const {
  std::vector<std::unique_ptr<const CalibratedPresets>> trials;
  for (const Eigen::VectorXd& theta : thetas)
    trials.push_back(std::make_unique<const CalibratedPresets>(presets, settings(theta)));
  Eigen::MatrixXd out =
      Eigen::MatrixXd::Zero(static_cast<Eigen::Index>(runs.size()), static_cast<Eigen::Index>(thetas.size()));
  tbb::parallel_for(std::size_t{0}, runs.size(), [&](std::size_t r) {
    std::vector<std::size_t> columns;
    std::vector<const CalibratedPresets*> wanted;
    for (std::size_t c = 0; c < trials.size(); ++c)
      if (asked(r, c)) {
        columns.push_back(c);
        wanted.push_back(trials[c].get());
      }
    const auto steps = predict_steps(runs[r].run, wanted);
    for (std::size_t i = 0; i < columns.size(); ++i)
      out(static_cast<Eigen::Index>(r), static_cast<Eigen::Index>(columns[i])) = log_of(steps[i], runs[r]);
  });
  return out;
}

Eigen::VectorXd FitProblem::measured() const {
  Eigen::VectorXd out(static_cast<Eigen::Index>(runs.size()));
  for (std::size_t i = 0; i < runs.size(); ++i) out[static_cast<Eigen::Index>(i)] = std::log(runs[i].step.v);
  return out;
}

Eigen::MatrixXd FitProblem::jacobian(const Eigen::VectorXd& theta, const Eigen::VectorXd& at) const {
  constexpr double kStep = 0.05;
  Eigen::MatrixXd j = Eigen::MatrixXd::Zero(at.size(), theta.size());
  std::map<std::pair<ConstantOwner, std::string>, std::vector<std::size_t>> together;
  for (std::size_t k = 0; k < calibrated.size(); ++k)
    together[{calibrated[k].of, calibrated[k].key}].push_back(k);
  std::vector<std::vector<std::size_t>> moved_together;
  std::vector<Eigen::VectorXd> moved;
  for (const auto& [key, members] : together) {
    moved.push_back(theta);
    for (const std::size_t k : members) moved.back()[static_cast<Eigen::Index>(k)] += kStep;
    moved_together.push_back(members);
  }
  const Eigen::MatrixXd times = log_times_at(moved, [&](std::size_t r, std::size_t c) {
    return std::ranges::any_of(moved_together[c],
                               [&](std::size_t k) { return concerns(calibrated[k], runs[r].run); });
  });
  for (std::size_t c = 0; c < moved.size(); ++c)
    for (const std::size_t k : moved_together[c])
      for (std::size_t r = 0; r < runs.size(); ++r)
        if (const auto row = static_cast<Eigen::Index>(r); concerns(calibrated[k], runs[r].run))
          j(row, static_cast<Eigen::Index>(k)) = (times(row, static_cast<Eigen::Index>(c)) - at[row]) / kStep;
  return j;
}
Eigen::VectorXd FitProblem::clamped(Eigen::VectorXd theta) const {
  for (std::size_t k = 0; k < calibrated.size(); ++k) {
    double& x = theta[static_cast<Eigen::Index>(k)];
    if (calibrated[k].low > 0) x = std::max(x, std::log(calibrated[k].low / calibrated[k].prior));
    if (calibrated[k].high > 0) x = std::min(x, std::log(calibrated[k].high / calibrated[k].prior));
  }
  return theta;
}
Eigen::MatrixXd FitProblem::prior_covariance() const {
  Eigen::VectorXd variance(static_cast<Eigen::Index>(calibrated.size()));
  for (std::size_t k = 0; k < calibrated.size(); ++k)
    variance[static_cast<Eigen::Index>(k)] = calibrated[k].sigma * calibrated[k].sigma;
  Eigen::MatrixXd out = variance.asDiagonal();
  for (std::size_t a = 0; a < calibrated.size(); ++a)
    for (std::size_t b = 0; b < calibrated.size(); ++b) {
      const FreeConstant &one = calibrated[a], &other = calibrated[b];
      if (a == b || one.kin.empty() || one.of != other.of || one.key != other.key || one.kin != other.kin)
        continue;
      out(static_cast<Eigen::Index>(a), static_cast<Eigen::Index>(b)) =
          std::sqrt(one.kinship * other.kinship) * one.sigma * other.sigma;
    }
  return out;
}

Eigen::MatrixXd covariance(std::span<const LayoutPoint> points, const LikenessRule& rule) {
  const auto n = static_cast<Eigen::Index>(points.size());
  Eigen::MatrixXd out(n, n);
  for (Eigen::Index r = 0; r < n; ++r)
    for (Eigen::Index c = 0; c < n; ++c)
      out(r, c) =
          rule.sigma * rule.sigma *
          (likeness(points[static_cast<std::size_t>(r)], points[static_cast<std::size_t>(c)], rule.length) +
           (r == c ? 1e-6 : 0));
  return out;
}

Posterior update(const Posterior& prior, const Eigen::MatrixXd& j, const Eigen::VectorXd& residual,
                 const Eigen::VectorXd& at, const Eigen::VectorXd& weight, double noise, double huber) {
  const Eigen::MatrixXd precision = prior.covariance.inverse();
  Posterior out{at, prior.covariance};
  for (int pass = 0; pass < 8; ++pass) {
    const Eigen::VectorXd left = residual - j * (out.mean - at);
    Eigen::VectorXd w = weight / (noise * noise);
    for (Eigen::Index r = 0; r < w.size(); ++r)
      w[r] *= std::min(1.0, huber * noise / std::max(std::abs(left[r]), 1e-12));
    const Eigen::MatrixXd weighted = j.transpose() * w.asDiagonal();
    out.covariance = (weighted * j + precision).inverse();
    out.mean = out.covariance * (weighted * (residual + j * at) + precision * prior.mean);
  }
  return out;
}

double huber(double r) { return std::abs(r) <= 2 ? r * r : 4 * std::abs(r) - 4; }

double mape(const Eigen::VectorXd& residual) {
  double sum = 0;
  for (Eigen::Index r = 0; r < residual.size(); ++r) sum += std::abs(std::expm1(-residual[r]));
  return residual.size() == 0 ? 0 : 100 * sum / static_cast<double>(residual.size());
}

double median_error(const Eigen::VectorXd& residual) {
  std::vector<double> e;
  for (Eigen::Index r = 0; r < residual.size(); ++r) e.push_back(100 * std::abs(std::expm1(-residual[r])));
  return e.empty() ? 0 : median(std::move(e));
}

}  // namespace sextant

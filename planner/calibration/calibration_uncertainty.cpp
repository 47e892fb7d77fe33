#include "planner/calibration/calibration_uncertainty.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "planner/calibration/fit_problem.hpp"

namespace sextant {

namespace {

// Derivatives of the logarithm of the step to those of the constants; zero for constants of other owners.
std::vector<double> sensitivity(const ResolvedRun& run, const CalibrationFile& file,
                                const std::filesystem::path& presets, std::span<const Setting> base) {
  constexpr double kStep = 0.05;
  std::vector<double> out(file.constants.size(), 0.0);
  std::vector<Setting> settings = file.settings();
  const auto log_step = [&](const std::vector<Setting>& at) {
    std::vector<Setting> all(base.begin(), base.end());
    all.insert(all.end(), at.begin(), at.end());
    const CalibratedPresets trial(presets, std::move(all));
    const auto step = predict_step(run, trial.options());
    return step ? std::log(step->v) : 0.0;
  };
  const double now = log_step(settings);
  for (std::size_t k = 0; k < out.size(); ++k) {
    FreeConstant constant;
    constant.of = settings[k].of;
    constant.owner = settings[k].owner;
    constant.key = settings[k].key;
    if (!concerns(constant, run)) continue;
    const double value = settings[k].value;
    settings[k].value = value * std::exp(kStep);
    out[k] = (log_step(settings) - now) / kStep;
    settings[k].value = value;
  }
  return out;
}

// Variance of what the layout is off by beyond constants, after and before the fit; `with` is its covariance with the
// constants after the fit, one number for each.
struct OfLikeness {
  double after = 0, before = 0;
  std::vector<double> with;
};
// Source: the conditional of a Gaussian process whose values at the runs are known up to a covariance.
OfLikeness of_likeness(const ResolvedRun& run, const CalibrationFile& file) {
  OfLikeness out;
  if (!file.residual) return out;
  const Residual learned = file.learned();
  const auto m = static_cast<Eigen::Index>(learned.runs.size());
  const CalibratedResidual& stored = *file.residual;
  out.before = stored.sigma * stored.sigma;
  if (stored.covariance.size() != learned.runs.size() * learned.runs.size()) {
    out.after = out.before;
    return out;
  }
  std::vector<LayoutPoint> points;
  Eigen::VectorXd shared(m);
  for (Eigen::Index r = 0; r < m; ++r) {
    points.push_back(learned.runs[static_cast<std::size_t>(r)].point);
    shared[r] = out.before * likeness(points.back(), layout_point(run), learned.rule.length);
  }
  const Eigen::VectorXd of_run = covariance(points, learned.rule).ldlt().solve(shared);
  using Rows = Eigen::Map<const Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;
  out.after = out.before - shared.dot(of_run) + of_run.dot(Rows(stored.covariance.data(), m, m) * of_run);
  for (std::size_t at = 0; at + learned.runs.size() <= stored.with_constants.size();
       at += learned.runs.size())
    out.with.push_back(Eigen::Map<const Eigen::VectorXd>(stored.with_constants.data() + at, m).dot(of_run));
  return out;
}

}  // namespace

// Source: propagation of the covariance to first order; 1.645 standard deviations hold 90 % of a normal error, whose mean
// absolute value is 0.798 of one.
CalibratedUncertainty calibrated_uncertainty(const ResolvedRun& run, const CalibrationFile& file,
                                             const std::filesystem::path& preset_dir, double published,
                                             std::span<const Setting> base) {
  const std::size_t n = file.constants.size();
  CalibratedUncertainty out{published, 0};
  if (n == 0 || file.covariance.size() != n * n) return out;
  const std::vector<double> g = sensitivity(run, file, preset_dir, base);
  const OfLikeness beyond = of_likeness(run, file);
  double after = beyond.after, before = beyond.before;
  for (std::size_t r = 0; r < beyond.with.size(); ++r) after += 2 * g[r] * beyond.with[r];
  for (std::size_t r = 0; r < n; ++r) {
    before += g[r] * g[r] * file.constants[r].preset_sigma * file.constants[r].preset_sigma;
    for (std::size_t c = 0; c < n; ++c) after += g[r] * file.covariance[r * n + c] * g[c];
  }
  if (!(before > 0)) return out;
  after = std::max(after, 0.0);
  out.known = std::clamp(1 - after / before, 0.0, 1.0);
  // What the model is off by beside its constants: the published scatter counts as many runs as a few of one's own,
  // which alone would often agree by chance (conjugate estimate of a variance).
  const double published_runs = load_uncertainty_rules(preset_dir).published_runs;
  const double own = 0.01 * file.error_left_out_percent / 0.798, of_published = std::log1p(published) / 1.645;
  const auto runs = static_cast<double>(file.runs.size());
  const double variance =
      (runs * own * own + published_runs * of_published * of_published) / (runs + published_runs);
  const double fitted = std::expm1(1.645 * std::sqrt(variance + after));
  out.half_width = out.known * fitted + (1 - out.known) * std::max(published, fitted);
  return out;
}

}  // namespace sextant

#include "planner/calibration/suggest.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "planner/calibration/fit_problem.hpp"

namespace sextant {

namespace {

// What is left of a covariance once run i was measured with this variance of its noise.
void measure(Eigen::MatrixXd& c, Eigen::Index i, double noise2) {
  const Eigen::VectorXd shared = c.col(i);
  c.noalias() -= shared * shared.transpose() / (shared[i] + noise2);
}

double mean_deviation(const Eigen::VectorXd& variance) { return variance.cwiseMax(0).cwiseSqrt().mean(); }

}  // namespace

Suggestions suggest_runs(std::span<const MeasuredRun> candidates, std::span<const std::size_t> known,
                         std::size_t count, const std::filesystem::path& preset_dir,
                         const CalibrationRules& rules, std::span<const FreeConstant> calibrated,
                         std::vector<Setting> base) {
  Suggestions out;
  if (candidates.empty()) return out;
  const FitProblem p{candidates, calibrated, preset_dir, std::move(base)};
  const Eigen::VectorXd priors = Eigen::VectorXd::Zero(static_cast<Eigen::Index>(calibrated.size()));
  const Eigen::MatrixXd j = p.jacobian(priors, p.log_time(priors));
  std::vector<LayoutPoint> points;
  for (const MeasuredRun& r : candidates) points.push_back(layout_point(r.run));
  Eigen::MatrixXd c = j * p.prior_covariance() * j.transpose() + covariance(points, rules.own_residual);

  const double noise2 = rules.own_noise * rules.own_noise;
  std::vector<bool> taken(candidates.size(), false);
  const auto take = [&](std::size_t i) {
    measure(c, static_cast<Eigen::Index>(i), noise2);
    taken[i] = true;
  };
  for (const std::size_t i : known) take(i);
  out.uncertainty = mean_deviation(c.diagonal());
  while (out.runs.size() < count && std::ranges::count(taken, false) > 0) {
    Suggestion best{0, INFINITY};
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      if (taken[i]) continue;
      const auto at = static_cast<Eigen::Index>(i);
      const Eigen::VectorXd left = c.diagonal() - c.col(at).cwiseAbs2() / (c(at, at) + noise2);
      if (const double uncertainty = mean_deviation(left); uncertainty < best.uncertainty)
        best = {i, uncertainty};
    }
    take(best.run);
    out.runs.push_back(best);
  }
  return out;
}

}  // namespace sextant

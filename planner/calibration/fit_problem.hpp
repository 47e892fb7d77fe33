// The arithmetic below calibration: how log step times answer to constants, and the least-squares update of a Gaussian
// prior by measured ones (Gauss-Newton step, Huber weights). Used by calibrate and leave_out alone.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include <Eigen/Dense>

#include "planner/calibration/calibrated_constants.hpp"
#include "planner/validation/validate.hpp"

namespace sextant {

// Logarithms of the predicted steps.
Eigen::VectorXd log_times(std::span<const MeasuredRun>, const PredictOptions&);

struct FitProblem {
  std::span<const MeasuredRun> runs;
  std::span<const FreeConstant> calibrated;
  const std::filesystem::path& presets;
  std::vector<Setting> base = {};  // in the place of the presets, below the calibrated constants

  std::vector<Setting> settings(const Eigen::VectorXd& theta) const;
  // Logarithm of the predicted step at the priors times exp(theta).
  Eigen::VectorXd log_time(const Eigen::VectorXd& theta) const;
  // The same of several, a column each, where `asked(run, column)`; zero elsewhere.
  Eigen::MatrixXd log_times_at(std::span<const Eigen::VectorXd> thetas,
                               const std::function<bool(std::size_t, std::size_t)>& asked) const;
  Eigen::VectorXd measured() const;
  // Forward differences; calibrated constants of one key with different owners touch different rows and are moved together.
  Eigen::MatrixXd jacobian(const Eigen::VectorXd& theta, const Eigen::VectorXd& at) const;
  Eigen::VectorXd clamped(Eigen::VectorXd theta) const;
  // Constants of kin are correlated: what the rows of one say moves the others, by so much (a hierarchical prior: Gelman and
  // Hill, Data Analysis Using Regression and Multilevel Models, ch. 12, with the mean of the class integrated out).
  Eigen::MatrixXd prior_covariance() const;
};

// Of what layouts are off by beyond constants. A millionth more on the diagonal: two runs of one layout share it all.
Eigen::MatrixXd covariance(std::span<const LayoutPoint>, const LikenessRule&);

struct Posterior {
  Eigen::VectorXd mean;
  Eigen::MatrixXd covariance;
};

// Maximum of prior N(mean, covariance) times Huber likelihood of residual = j (x - at).
Posterior update(const Posterior& prior, const Eigen::MatrixXd& j, const Eigen::VectorXd& residual,
                 const Eigen::VectorXd& at, const Eigen::VectorXd& weight, double noise, double huber = 2.0);

// Of a residual in standard deviations: squared near zero, linear beyond two, so that one odd row does not steer the others.
double huber(double residual);

// Of log residuals (measured minus predicted), percent.
double mape(const Eigen::VectorXd& residual);
double median_error(const Eigen::VectorXd& residual);

}  // namespace sextant

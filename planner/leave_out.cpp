#include "planner/leave_out.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

#include "planner/fit_problem.hpp"

namespace sextant {

namespace {

// At most `most` of each source, drawn without replacement.
std::vector<bool> drawn(const FitProblem& p, int most, std::mt19937_64& random) {
  std::map<std::string, std::vector<std::size_t>> by_source;
  for (std::size_t r = 0; r < p.runs.size(); ++r) by_source[p.runs[r].source].push_back(r);
  std::vector<bool> in(p.runs.size(), false);
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
  // The machine's own time factor is one more unknown, with a column of ones.
  const double sigma = rules.rule("time_factor").sigma;
  Posterior prior{Eigen::VectorXd::Zero(n + 1), Eigen::MatrixXd::Zero(n + 1, n + 1)};
  prior.covariance.topLeftCorner(n, n) = known.covariance;
  prior.covariance(n, n) = sigma * sigma;
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

std::vector<LeftOut> leave_one_source_out(std::span<const MeasuredRun> runs,
                                          const std::filesystem::path& preset_dir,
                                          const CalibrationRules& rules, const LeaveOutOptions& options) {
  const std::vector<Knob> knobs = knobs_of(runs, preset_dir, rules, FitOf::presets);
  const FitProblem p{runs, knobs, preset_dir};
  const auto n = static_cast<Eigen::Index>(knobs.size());
  const auto all = static_cast<Eigen::Index>(p.runs.size());
  std::mt19937_64 random(options.seed);
  const std::vector<bool> fitted = drawn(p, options.fit_rows_per_source, random);
  std::map<std::string, int> count;
  for (const MeasuredRun& row : p.runs) ++count[row.source];

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
      weight[r] = fitted[i] && p.runs[i].source != source ? 1 : 0;
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
      if (p.runs[static_cast<std::size_t>(r)].source != source) continue;
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

#include "planner/leave_out.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "planner/calibrate.hpp"
#include "planner/calibration_doubt.hpp"
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
  double mape = 0, median = 0, coverage = 0;
};

// What `sextant calibrate --runs few.csv` does with `few` rows of this source, where `base` are the presets; the score of
// its other rows.
Few after_few(std::span<const MeasuredRun> own, const std::vector<Setting>& base,
              const std::filesystem::path& preset_dir, const CalibrationRules& rules,
              const LeaveOutOptions& options, std::mt19937_64& random) {
  constexpr std::size_t kScored = 60, kCovered = 10;  // rows of a draw: predicted, asked for their interval
  std::vector<MeasuredRun> shuffled(own.begin(), own.end());
  Few sum;
  std::size_t covered = 0, asked = 0;
  for (int draw = 0; draw < options.draws; ++draw) {
    std::shuffle(shuffled.begin(), shuffled.end(), random);
    const std::size_t few = std::min(static_cast<std::size_t>(options.few), shuffled.size() - 1);
    const std::span<const MeasuredRun> seen(shuffled.data(), few);
    const std::span<const MeasuredRun> unseen =
        std::span<const MeasuredRun>(shuffled).subspan(few, std::min(kScored, shuffled.size() - few));
    const std::vector<Knob> knobs = rebased(knobs_of(seen, preset_dir, rules), base);
    const Calibration fit = calibrate(seen, preset_dir, rules, knobs, FitOf::own_runs, base);
    const FitProblem rest{unseen, knobs, preset_dir, base};
    Eigen::VectorXd x(static_cast<Eigen::Index>(knobs.size()));
    for (std::size_t k = 0; k < knobs.size(); ++k)
      x[static_cast<Eigen::Index>(k)] = std::log(fit.constants[k].value / knobs[k].prior);
    const Eigen::VectorXd predicted = rest.log_time(x), left = rest.measured() - predicted;
    sum.mape += mape(left) / options.draws, sum.median += median_error(left) / options.draws;

    CalibrationFile file = calibration_file_of(fit);
    for (const MeasuredRun& r : seen) file.runs.push_back(r.id);
    const CalibratedPresets now(preset_dir, rest.settings(x));
    for (std::size_t r = 0; r < std::min(kCovered, unseen.size()); ++r) {
      const RunPrediction p = predict_resolved(unseen[r].run, now.options());
      if (!p.doubt) continue;
      const double half =
          calibrated_doubt(unseen[r].run, file, preset_dir, p.step_half_width, base).half_width;
      ++asked, covered += std::abs(left[static_cast<Eigen::Index>(r)]) <= std::log1p(half);
    }
  }
  sum.coverage = asked == 0 ? 1 : static_cast<double>(covered) / static_cast<double>(asked);
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

    LeftOut one{.source = source, .rows = size};
    Eigen::VectorXd residual(size);
    std::vector<MeasuredRun> own;
    for (Eigen::Index r = 0; r < all; ++r) {
      const MeasuredRun& run = p.runs[static_cast<std::size_t>(r)];
      if (run.source != source) continue;
      residual[static_cast<Eigen::Index>(own.size())] = measured[r] - now[r];
      own.push_back(run);
    }
    one.mape = mape(residual), one.median = median_error(residual);
    const Few few = after_few(own, p.settings(x), preset_dir, rules, options, random);
    one.mape_few = few.mape, one.median_few = few.median, one.coverage_few = few.coverage;
    out.push_back(one);
  }
  return out;
}

}  // namespace sextant

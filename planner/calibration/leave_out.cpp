#include "planner/calibration/leave_out.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <utility>

#include "planner/calibration/calibrate.hpp"
#include "planner/calibration/calibration_uncertainty.hpp"
#include "planner/calibration/fit_problem.hpp"
#include "planner/calibration/suggest.hpp"

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
  int covered = 0, asked = 0;  // of the rows whose interval was asked for

  double coverage() const { return asked == 0 ? 1 : static_cast<double>(covered) / asked; }
};

// One source, and the presets that have not seen it.
struct Newcomer {
  std::span<const MeasuredRun> own;
  const std::vector<Setting>& base;
  const std::filesystem::path& preset_dir;
  const CalibrationRules& rules;
};

// What `sextant calibrate --runs seen.csv` does with these rows: its share of the mean score of the others, the first of which
// are asked for their interval.
void score_after(const Newcomer& n, std::span<const MeasuredRun> seen, std::span<const MeasuredRun> unseen,
                 double share, std::size_t covered, Few& sum) {
  const std::vector<FreeConstant> calibrated = rebased(constants_of(seen, n.preset_dir, n.rules), n.base);
  const Calibration fit = calibrate(seen, n.preset_dir, n.rules, calibrated, FitOf::own_runs, n.base);
  std::vector<Setting> settings = n.base;
  for (Setting& s : settings_of(fit)) settings.push_back(std::move(s));
  const CalibratedPresets now(n.preset_dir, std::move(settings), fit.residual.of);
  const FitProblem rest{unseen, {}, n.preset_dir};
  const Eigen::VectorXd left = rest.measured() - log_times(unseen, now.options());
  sum.mape += mape(left) * share;
  sum.median += median_error(left) * share;

  CalibrationFile file = calibration_file_of(fit);
  for (const MeasuredRun& r : seen) file.runs.push_back(r.id);
  for (std::size_t r = 0; r < std::min(covered, unseen.size()); ++r) {
    const RunPrediction p = predict_resolved(unseen[r].run, now.options());
    if (!p.uncertainty) continue;
    const double half =
        calibrated_uncertainty(unseen[r].run, file, n.preset_dir, p.step_half_width, n.base).half_width;
    ++sum.asked;
    sum.covered += std::abs(left[static_cast<Eigen::Index>(r)]) <= std::log1p(half);
  }
}

// A few rows by chance.
Few after_few(const Newcomer& n, const LeaveOutOptions& options, std::mt19937_64& random) {
  constexpr std::size_t kScored = 60, kCovered = 10;  // rows of a draw: predicted, asked for their interval
  std::vector<MeasuredRun> shuffled(n.own.begin(), n.own.end());
  const std::span<const MeasuredRun> rows(shuffled);
  Few sum;
  for (int draw = 0; draw < options.draws; ++draw) {
    std::shuffle(shuffled.begin(), shuffled.end(), random);
    const std::size_t few = std::min(static_cast<std::size_t>(options.few), rows.size() - 1);
    score_after(n, rows.first(few), rows.subspan(few, std::min(kScored, rows.size() - few)),
                1.0 / options.draws, kCovered, sum);
  }
  return sum;
}

// As many that `sextant calibrate --suggest` names, of all rows.
Few after_chosen(const Newcomer& n, const LeaveOutOptions& options) {
  constexpr std::size_t kCovered = 60;
  const std::size_t few = std::min(static_cast<std::size_t>(options.few), n.own.size() - 1);
  const std::vector<FreeConstant> calibrated = rebased(constants_of(n.own, n.preset_dir, n.rules), n.base);
  std::vector<bool> chosen(n.own.size(), false);
  for (const Suggestion& s : suggest_runs(n.own, {}, few, n.preset_dir, n.rules, calibrated, n.base).runs)
    chosen[s.run] = true;
  std::vector<MeasuredRun> seen, unseen;
  for (std::size_t i = 0; i < n.own.size(); ++i) (chosen[i] ? seen : unseen).push_back(n.own[i]);
  Few out;
  score_after(n, seen, unseen, 1.0, kCovered, out);
  return out;
}

}  // namespace

std::vector<LeftOut> leave_one_source_out(std::span<const MeasuredRun> runs,
                                          const std::filesystem::path& preset_dir,
                                          const CalibrationRules& rules, const LeaveOutOptions& options) {
  const std::vector<FreeConstant> calibrated = constants_of(runs, preset_dir, rules, FitOf::presets);
  const FitProblem p{runs, calibrated, preset_dir};
  const auto n = static_cast<Eigen::Index>(calibrated.size());
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
    one.mape = mape(residual);
    one.median = median_error(residual);
    const std::vector<Setting> base = p.settings(x);
    const Newcomer newcomer{own, base, preset_dir, rules};
    const Few few = after_few(newcomer, options, random);
    one.mape_few = few.mape;
    one.median_few = few.median;
    one.coverage_few = few.coverage();
    const Few chosen = after_chosen(newcomer, options);
    one.mape_chosen = chosen.mape;
    one.median_chosen = chosen.median;
    one.coverage_chosen = chosen.coverage();
    out.push_back(one);
  }
  return out;
}

}  // namespace sextant

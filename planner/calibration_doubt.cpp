#include "planner/calibration_doubt.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "planner/validate.hpp"

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
    Knob knob;
    knob.of = settings[k].of, knob.owner = settings[k].owner, knob.key = settings[k].key;
    if (!concerns(knob, run)) continue;
    const double value = settings[k].value;
    settings[k].value = value * std::exp(kStep);
    out[k] = (log_step(settings) - now) / kStep;
    settings[k].value = value;
  }
  return out;
}

}  // namespace

// Source: propagation of the covariance to first order; 1.645 standard deviations hold 90 % of a normal error, whose mean
// absolute value is 0.798 of one.
CalibratedDoubt calibrated_doubt(const ResolvedRun& run, const CalibrationFile& file,
                                 const std::filesystem::path& preset_dir, double published,
                                 std::span<const Setting> base) {
  const std::size_t n = file.constants.size();
  CalibratedDoubt out{published, 0};
  if (n == 0 || file.covariance.size() != n * n) return out;
  const std::vector<double> g = sensitivity(run, file, preset_dir, base);
  double after = 0, before = 0;
  for (std::size_t r = 0; r < n; ++r) {
    before += g[r] * g[r] * file.constants[r].preset_sigma * file.constants[r].preset_sigma;
    for (std::size_t c = 0; c < n; ++c) after += g[r] * file.covariance[r * n + c] * g[c];
  }
  if (!(before > 0)) return out;
  after = std::max(after, 0.0);
  out.known = std::clamp(1 - after / before, 0.0, 1.0);
  // What the model is off by beside its constants: the published scatter counts as many runs as a few of one's own,
  // which alone would often agree by chance (conjugate estimate of a variance).
  const double published_runs = load_doubt_rules(preset_dir).published_runs;
  const double own = 0.01 * file.error_left_out_percent / 0.798, of_published = std::log1p(published) / 1.645;
  const auto runs = static_cast<double>(file.runs.size());
  const double variance =
      (runs * own * own + published_runs * of_published * of_published) / (runs + published_runs);
  const double fitted = std::expm1(1.645 * std::sqrt(variance + after));
  out.half_width = out.known * fitted + (1 - out.known) * std::max(published, fitted);
  return out;
}

}  // namespace sextant

#include "planner/calibration/fit_uncertainty.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

#include <fmt/format.h>

namespace sextant {

namespace {

// The smallest width that holds this share of the errors, |log(measured / predicted)|, rounded up to two digits.
double width_of(std::vector<double> errors, double share) {
  std::ranges::sort(errors);
  const auto held = static_cast<std::size_t>(std::ceil(share * static_cast<double>(errors.size())));
  const double width = std::expm1(errors[std::clamp<std::size_t>(held, 1, errors.size()) - 1]);
  if (width <= 0) return 0;
  const double digit = std::pow(10, std::floor(std::log10(width)) - 1);
  return std::ceil(width / digit - 1e-9) * digit;
}

using Errors = std::array<std::vector<double>, kUncertaintyClasses>;

// |log(measured / predicted)| by class.
struct ClassErrors {
  Errors step, memory;
};

ClassErrors errors_of(std::span<const RunRow> rows, std::span<const RunPrediction> predictions) {
  ClassErrors out;
  for (std::size_t i = 0; i < predictions.size(); ++i) {
    const RunPrediction& p = predictions[i];
    if (rows[i].quality == 'c' || !p.uncertainty) continue;
    const auto of = static_cast<std::size_t>(*p.uncertainty);
    if (rows[i].step_time && p.step_s)
      out.step[of].push_back(std::abs(std::log(rows[i].step_time->v / *p.step_s)));
    if (rows[i].peak_memory_GiB && p.memory_GiB)
      out.memory[of].push_back(std::abs(std::log(*rows[i].peak_memory_GiB / *p.memory_GiB)));
  }
  return out;
}

}  // namespace

std::vector<FittedWidth> fit_widths(std::span<const RunRow> rows, std::span<const RunPrediction> unseen,
                                    std::span<const RunPrediction> presets, const UncertaintyRules& rules) {
  const ClassErrors left_out = errors_of(rows, unseen), seen = errors_of(rows, presets);
  std::vector<FittedWidth> out;
  const auto add = [&](const char* of, const Errors& errors, const Errors& of_presets) {
    for (std::size_t d = 0; d < kUncertaintyClasses; ++d) {
      const auto runs = static_cast<int>(errors[d].size());
      if (runs < rules.fewest_runs) continue;
      const double width = width_of(errors[d], rules.fitted_share),
                   width_of_presets = of_presets[d].empty() ? 0 : width_of(of_presets[d], rules.fitted_share);
      const bool presets_rule = width_of_presets > width;
      out.push_back(
          {of, static_cast<UncertaintyClass>(d), runs, std::max(width, width_of_presets),
           fmt::format("sextant calibrate --refit, intervals: hold {:.0f} % of {} published runs, {}",
                       100 * rules.fitted_share, runs,
                       presets_rule ? "predicted by the presets" : "each source left out of the fit")});
    }
  };
  add("step", left_out.step, seen.step);
  add("memory", left_out.memory, {});
  return out;
}

}  // namespace sextant

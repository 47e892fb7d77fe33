#include "planner/calibration/fit_uncertainty.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

namespace sextant {

namespace {

// The smallest width that holds this share of the errors, |log(measured / predicted)|, rounded up to two digits.
double width_of(std::vector<double> errors, double share) {
  std::ranges::sort(errors);
  const auto held = static_cast<std::size_t>(std::ceil(share * static_cast<double>(errors.size())));
  const double width = std::expm1(errors[std::clamp<std::size_t>(held, 1, errors.size()) - 1]);
  const double digit = std::pow(10, std::floor(std::log10(width)) - 1);
  return std::ceil(width / digit - 1e-9) * digit;
}

}  // namespace

std::vector<FittedWidth> fit_widths(std::span<const RunRow> rows, std::span<const RunPrediction> predictions,
                                    const UncertaintyRules& rules) {
  using Errors = std::array<std::vector<double>, kUncertaintyClasses>;
  Errors step, memory;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const RunPrediction& p = predictions[i];
    if (rows[i].quality == 'c' || !p.uncertainty) continue;
    const auto of = static_cast<std::size_t>(*p.uncertainty);
    if (rows[i].step_time && p.step_s)
      step[of].push_back(std::abs(std::log(rows[i].step_time->v / *p.step_s)));
    if (rows[i].peak_memory_GiB && p.memory_GiB)
      memory[of].push_back(std::abs(std::log(*rows[i].peak_memory_GiB / *p.memory_GiB)));
  }
  std::vector<FittedWidth> out;
  const auto add = [&](const char* of, const Errors& errors) {
    for (std::size_t d = 0; d < kUncertaintyClasses; ++d) {
      const auto runs = static_cast<int>(errors[d].size());
      if (runs < rules.fewest_runs) continue;
      out.push_back({of, static_cast<UncertaintyClass>(d), runs, width_of(errors[d], rules.fitted_share),
                     fmt::format("sextant calibrate --refit, intervals: hold {:.0f} % of {} published runs, "
                                 "each source left out of the fit",
                                 100 * rules.fitted_share, runs)});
    }
  };
  add("step", step), add("memory", memory);
  return out;
}

}  // namespace sextant

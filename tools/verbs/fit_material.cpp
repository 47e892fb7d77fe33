#include "tools/verbs/fit_material.hpp"

#include <algorithm>

#include "planner/simulation/stage_memory.hpp"

namespace sextant {

namespace {

// Without runs the errors are those of tables and profiles, each by the sizes and works in it.
void use_errors_alone(const Material& m, Calibration& c) {
  double before = 0, after = 0;
  int n = 0;
  const auto add = [&](const auto& fit, int count) {
    before += count * fit.mape_before;
    after += count * fit.mape_after;
    n += count;
  };
  for (const NetworkFit& network : m.networks) add(network, network.samples);
  for (const ProfileFit& profile : m.profiles) add(profile, profile.works);
  if (n == 0) return;
  c.mape_before = before / n;
  c.mape_after = c.mape_left_out = after / n;
  c.taken = !c.constants.empty();
}

// The largest peak of the stages that were measured.
double peak_of_stages(const MeasuredRun& m) {
  const ResolvedRun& run = m.run;
  const MemoryEstimate all = estimate_memory(run.model, run.training, run.plan, run.stack);
  MemoryEstimate measured;
  for (const int stage : m.peak_stages) {
    measured.stages.push_back(all.stages.at(static_cast<std::size_t>(stage)));
    if (measured.stages.back().needed() > measured.needed())
      measured.heaviest = static_cast<int>(measured.stages.size()) - 1;
  }
  return as_measured(measured, run.plan, run.cluster, run.memory_kind);
}

}  // namespace

Calibration fit_material(const Material& m, const std::filesystem::path& presets,
                         const CalibrationRules& rules, FitOf fit_of) {
  std::vector<FreeConstant> calibrated = constants_of(m.runs, presets, rules, fit_of);
  const std::vector<ConstantFit> alone = m.measured_alone();
  const auto same = [](const FreeConstant& a, const FreeConstant& b) {
    return a.of == b.of && a.owner == b.owner && a.key == b.key;
  };
  for (const ConstantFit& one : alone) {
    std::erase_if(calibrated, [&](const FreeConstant& k) { return same(k, one.constant); });
    FreeConstant known = one.constant;
    known.prior = one.value;
    known.sigma = std::max(one.sigma, 0.03);
    calibrated.push_back(known);
  }
  Calibration c = calibrate(m.runs, presets, rules, calibrated, fit_of);
  if (m.runs.empty()) {
    for (const ConstantFit& one : alone) c.constants.push_back(one);
    use_errors_alone(m, c);
  }
  for (ConstantFit& k : c.constants)  // reported against the presets
    for (const ConstantFit& one : alone)
      if (same(k.constant, one.constant)) k.constant = one.constant;
  return c;
}

std::vector<std::optional<double>> predicted_peaks(const Material& m, const std::filesystem::path& presets) {
  std::vector<std::optional<double>> out(m.runs.size());
  for (std::size_t i = 0; i < m.runs.size(); ++i)
    if (m.runs[i].peak_memory_GiB)
      out[i] = m.runs[i].peak_stages.empty() ? predict_resolved(m.runs[i].run, {presets}).memory_GiB
                                             : peak_of_stages(m.runs[i]);
  return out;
}

}  // namespace sextant

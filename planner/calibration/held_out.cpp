#include "planner/calibration/held_out.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "planner/calibration/fit_problem.hpp"
#include "planner/calibration/leave_out_memory.hpp"

namespace sextant {

namespace {

using LeavesOut = std::function<bool(const MeasuredRun&)>;  // is it left out of the fit, and scored?

// Fits to parts of one set of runs.
class PartialFits {
 public:
  PartialFits(std::vector<MeasuredRun> runs, const std::filesystem::path& preset_dir,
              const CalibrationRules& rules)
      : runs_(std::move(runs)),
        preset_dir_(preset_dir),
        rules_(rules),
        calibrated_(constants_of(runs_, preset_dir, rules, FitOf::presets)),
        problem_{runs_, calibrated_, preset_dir_},
        cold_(Eigen::VectorXd::Zero(static_cast<Eigen::Index>(calibrated_.size()))),
        measured_(problem_.measured()),
        at_cold_(problem_.log_time(cold_)),
        jacobian_(problem_.jacobian(cold_, at_cold_)) {}

  struct Fit {
    std::vector<Setting> settings;
    int rows = 0;
  };
  // Without what each holds, all of them at once: a run is lowered for all fits that saw it.
  std::vector<Fit> without(std::span<const LeavesOut> held) const {
    std::vector<std::vector<Eigen::Index>> seen(held.size());
    for (std::size_t h = 0; h < held.size(); ++h)
      for (std::size_t r = 0; r < runs_.size(); ++r)
        if (!held[h](runs_[r])) seen[h].push_back(static_cast<Eigen::Index>(r));
    const Posterior prior{cold_, problem_.prior_covariance()};
    const auto moved = [&](const std::vector<Eigen::Index>& rows, const Eigen::VectorXd& now,
                           const Eigen::VectorXd& x) {
      const Eigen::VectorXd even = Eigen::VectorXd::Ones(static_cast<Eigen::Index>(rows.size()));
      return problem_.clamped(
          update(prior, jacobian_(rows, Eigen::all), measured_(rows) - now(rows), x, even, rules_.noise)
              .mean);
    };
    std::vector<Eigen::VectorXd> x;
    for (const auto& rows : seen) x.push_back(moved(rows, at_cold_, cold_));
    const Eigen::MatrixXd now =
        problem_.log_times_at(x, [&](std::size_t r, std::size_t h) { return !held[h](runs_[r]); });
    std::vector<Fit> out;
    for (std::size_t h = 0; h < held.size(); ++h)
      out.push_back({problem_.settings(moved(seen[h], now.col(static_cast<Eigen::Index>(h)), x[h])),
                     static_cast<int>(seen[h].size())});
    return out;
  }

 private:
  std::vector<MeasuredRun> runs_;
  const std::filesystem::path& preset_dir_;
  const CalibrationRules& rules_;
  std::vector<FreeConstant> calibrated_;
  FitProblem problem_;
  Eigen::VectorXd cold_, measured_, at_cold_;
  Eigen::MatrixXd jacobian_;
};

// Constants of memory, where a fit of their own replaces the presets'.
using Adjust = std::function<void(ResolvedRun&)>;

std::vector<RunPrediction> predicted(std::span<const RunRow> rows, const FrameworkMap& map,
                                     const std::filesystem::path& preset_dir, std::vector<Setting> settings,
                                     const Adjust& memory = {}) {
  const CalibratedPresets presets(preset_dir, std::move(settings));
  PredictOptions options = presets.options();
  if (memory)
    options.adjust = [&, step = presets.options().adjust](ResolvedRun& run) {
      step(run);
      memory(run);
    };
  return predict_runs(rows, map, options);
}

bool fp8(const MeasuredRun& m) { return m.run.training.compute == Dtype::fp8; }

std::vector<std::pair<std::string, LeavesOut>> splits(std::span<const MeasuredRun> runs) {
  constexpr int kSmall = 64, kFewest = 10;  // GPUs; rows that a device needs to be a split of its own
  std::vector<std::pair<std::string, LeavesOut>> out = {
      {fmt::format("more than {} GPUs", kSmall),
       [](const MeasuredRun& m) { return m.run.plan.world() > kSmall; }},
      {"context parallelism", [](const MeasuredRun& m) { return m.run.plan.cp > 1; }},
      {"fp8", fp8},
      {"ZeRO 0 beside TP",
       [](const MeasuredRun& m) {
         return m.run.plan.shards() == 1 && m.run.plan.dp > 1 && m.run.plan.tp > 1;
       }},
  };
  std::map<std::string, int> devices;
  for (const MeasuredRun& m : runs) ++devices[m.run.cluster.device.name];
  for (const auto& [device, rows] : devices)
    if (rows >= kFewest)
      out.emplace_back(device,
                       [name = device](const MeasuredRun& m) { return m.run.cluster.device.name == name; });
  return out;
}

Extrapolation scored(const std::string& name, std::span<const RunRow> rows,
                     std::span<const RunPrediction> predictions, int fitted) {
  Extrapolation out{.held_out = name, .fitted = fitted};
  int covered = 0;
  for (const SourceScore& s : score_runs(rows, predictions)) {
    if (s.rows == 0) continue;
    ++out.sources;
    out.rows += s.rows;
    covered += s.covered;
    out.mape += s.mape;
    out.bias += s.bias;
  }
  const double sources = std::max(1, out.sources);
  out.mape /= sources;
  out.bias /= sources;
  out.coverage = out.rows == 0 ? 1 : static_cast<double>(covered) / out.rows;
  return out;
}

}  // namespace

HeldOut held_out(std::span<const RunRow> rows, const FrameworkMap& map,
                 const std::filesystem::path& preset_dir, const CalibrationRules& rules,
                 const HeldOutOptions& options) {
  std::vector<RunRow> trusted;
  std::copy_if(rows.begin(), rows.end(), std::back_inserter(trusted), [](const RunRow& row) {
    return row.quality != 'c' && row.step_time && row.unreadable.empty();
  });
  const std::vector<MeasuredRun> runs = measured_runs(trusted, map, preset_dir);
  const PartialFits fits(balanced(runs, static_cast<std::size_t>(options.fit_rows_per_source)), preset_dir,
                         rules);

  HeldOut out;
  out.predictions.resize(rows.size());
  std::map<std::string, std::vector<std::size_t>> sources;
  for (std::size_t i = 0; i < rows.size(); ++i) sources[rows[i].source].push_back(i);
  std::vector<LeavesOut> held;
  for (const auto& [source, at] : sources)
    held.emplace_back([name = source](const MeasuredRun& m) { return m.source == name; });
  auto fit = fits.without(held);
  const MemoryFits of_memory(rows, map, preset_dir);
  for (std::size_t s = 0; const auto& [source, at] : sources) {
    std::vector<RunRow> own;
    for (const std::size_t i : at) own.push_back(rows[i]);
    const MemoryWithout memory = of_memory.without(source);
    const auto predictions = predicted(own, map, preset_dir, std::move(fit[s++].settings),
                                       [&](ResolvedRun& run) { memory.use(run); });
    for (std::size_t k = 0; k < at.size(); ++k) out.predictions[at[k]] = predictions[k];
  }
  out.sources = score_runs(rows, out.predictions, {.with_quality_c = options.with_quality_c});
  if (!options.extrapolations) return out;

  std::map<std::string, const MeasuredRun*> by_id;
  for (const MeasuredRun& m : runs) by_id[m.id] = &m;
  const auto all_splits = splits(runs);
  held.clear();
  for (const auto& split : all_splits) held.push_back(split.second);
  fit = fits.without(held);
  for (std::size_t s = 0; s < all_splits.size(); ++s) {
    std::vector<RunRow> own;
    for (const RunRow& row : trusted)
      if (const auto it = by_id.find(row.run_id); it != by_id.end() && held[s](*it->second))
        own.push_back(row);
    if (own.empty() || fit[s].rows == 0) continue;
    out.extrapolations.push_back(
        scored(all_splits[s].first, own, predicted(own, map, preset_dir, fit[s].settings), fit[s].rows));
  }
  return out;
}

RankingScore ranking_of(std::span<const SourceScore> scores) {
  RankingScore out;
  for (const SourceScore& s : scores) {
    if (s.groups == 0) continue;
    out.groups += s.groups;
    out.regret += s.groups * s.regret_1;
    out.tau += s.groups * s.kendall_tau;
    if (out.worst.empty() || s.worst_regret > out.worst_regret) {
      out.worst = s.worst_group;
      out.worst_regret = s.worst_regret;
    }
  }
  if (out.groups > 0) {
    out.regret /= out.groups;
    out.tau /= out.groups;
  }
  return out;
}

}  // namespace sextant

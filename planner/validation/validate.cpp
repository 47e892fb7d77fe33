#include "planner/validation/validate.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <tbb/parallel_for.h>

#include "core/cluster/device_formats.hpp"
#include "core/cluster/topology.hpp"
#include "core/plan/plan_links.hpp"
#include "cost_models/analytic.hpp"
#include "planner/lowering/lower.hpp"
#include "planner/simulation/predict.hpp"
#include "planner/simulation/stage_memory.hpp"
#include "planner/validation/plausible.hpp"

namespace sextant {

namespace {

CostConstants constants_of(const std::string& generation, const PredictOptions& options) {
  if (options.constants != nullptr)
    for (const CostPreset& p : *options.constants)
      if (p.generation == generation) return p.constants;
  return load_cost_preset(generation, options.preset_dir / "cost").constants;
}

// Of every generation that the presets have, each read once for many runs.
std::vector<CostPreset> all_constants(const std::filesystem::path& preset_dir) {
  std::vector<CostPreset> all;
  for (const std::string_view generation : kGenerations)
    if (std::filesystem::exists(preset_dir / "cost" / fmt::format("{}.json", generation)))
      all.push_back(load_cost_preset(std::string(generation), preset_dir / "cost"));
  return all;
}

}  // namespace

CalibratedPresets::CalibratedPresets(const std::filesystem::path& preset_dir, std::vector<Setting> settings,
                                     Residual residual)
    : settings_(std::move(settings)), residual_(std::move(residual)) {
  for (const std::string_view generation : kGenerations) {
    presets_.push_back(load_cost_preset(std::string(generation), preset_dir / "cost"));
    use_settings(settings_, std::string(generation), presets_.back().constants);
  }
  options_ = {preset_dir, &presets_, [this](ResolvedRun& run) {
                use_settings(settings_, run.stack);
                use_settings(settings_, run.cluster.fabric);
                use_settings(settings_, run.cluster.device);
              }};
  if (!residual_.empty()) options_.residual = &residual_;
}

RunPrediction predict_resolved(ResolvedRun run, const PredictOptions& options) {
  RunPrediction out;
  out.stack = run.stack.name;
  out.note = run.note;
  if (const auto problems = validate(run.plan, run.model, run.training); !problems.empty()) {
    out.note = to_string(problems.front());
    return out;
  }
  if (auto problem = unknown_format(run.cluster.device, run.training.compute)) {
    problem->key = "precision";
    out.note = to_string(*problem);
    return out;
  }
  if (const auto refused = refuses(run.stack, run.plan, run.model, run.training))
    out.note +=
        fmt::format("{}priced as the row states it, though {}", out.note.empty() ? "" : "; ", refused->text);
  if (options.adjust) options.adjust(run);
  const Topology topology(run.cluster);
  const AnalyticCostModel cost(run.cluster, run.stack, constants_of(run.cluster.device.generation, options));
  const UncertaintyRules rules =
      options.uncertainty ? *options.uncertainty : load_uncertainty_rules(options.preset_dir);
  const Prediction p = predict({run.model, run.training, run.cluster, topology, run.stack, cost, run.interval,
                                &rules, options.residual},
                               run.plan);
  out.judged = judged(run.plan, run.model.n_layers, run.cluster, run.stack.can);
  out.step_s = p.step.v;
  out.step_lower_s = p.step_lower.v;
  out.step_upper_s = p.step_upper.v;
  out.exposed_share = p.exposed_share;
  out.fits = p.fits;
  out.chance_of_overflow = p.chance_of_overflow;
  out.uncertainty = p.uncertainty;
  out.step_half_width = p.step_half_width;
  const MemoryEstimate memory = estimate_memory(run.model, run.training, run.plan, run.stack);
  const double peak = as_measured(memory, run.plan, run.cluster, run.memory_kind);
  const double m = rules.memory_half_width(p.uncertainty, run.stack) * run.interval;
  out.memory_GiB = peak;
  out.memory_lower_GiB = peak / (1 + m);
  out.memory_upper_GiB = peak * (1 + m);
  return out;
}

namespace {

// What steps of one run under several constants share.
struct Lowered {
  std::optional<PlanLinks> links;  // that `graph` is of
  FoldedGraph graph;
  SimulateScratch scratch;
};

Seconds priced_step(ResolvedRun run, const PredictOptions& options, Lowered& lowered) {
  if (options.adjust) options.adjust(run);
  const Topology topology(run.cluster);
  const AnalyticCostModel cost(run.cluster, run.stack, constants_of(run.cluster.device.generation, options));
  const Job job{run.model, run.training, run.cluster, topology,        run.stack,
                cost,      1.0,          nullptr,     options.residual};
  if (PlanLinks links = plan_links(topology, run.plan); links != lowered.links) {
    lowered.graph = lower_folded(run.model, run.training, links, run.plan, run.stack);
    lowered.links = std::move(links);
  }
  const FoldedGraph& graph = lowered.graph;
  return measured_step(
      job, run.plan,
      simulated_step(graph, price(graph, cost), simulate_options(job, run.plan), lowered.scratch));
}

}  // namespace

std::optional<Seconds> predict_step(ResolvedRun run, const PredictOptions& options) {
  if (!validate(run.plan, run.model, run.training).empty()) return std::nullopt;
  Lowered lowered;
  return priced_step(std::move(run), options, lowered);
}

std::vector<std::optional<Seconds>> predict_steps(const ResolvedRun& run,
                                                  std::span<const CalibratedPresets* const> presets) {
  std::vector<std::optional<Seconds>> out(presets.size());
  if (presets.empty() || !validate(run.plan, run.model, run.training).empty()) return out;
  Lowered lowered;
  for (std::size_t i = 0; i < presets.size(); ++i) out[i] = priced_step(run, presets[i]->options(), lowered);
  return out;
}

RunPrediction predict_run(const RunRow& row, const FrameworkMap& map, const PredictOptions& options) {
  RunPrediction out;
  if (!row.unreadable.empty()) {
    out.run_id = row.run_id;
    out.note = row.unreadable;
    return out;
  }
  try {
    ResolvedRun run = resolve(row, map, options.preset_dir);
    auto problems = impossible(run, fmt::format("{}:{}", row.file, row.line), row.run_id, row.step_time,
                               row.peak_memory_GiB);
    if (!problems.empty()) throw ConfigError(std::move(problems));
    out = predict_resolved(std::move(run), options);
  } catch (const std::exception& e) {  // one bad row does not end the others
    out.note = e.what();
  }
  out.run_id = row.run_id;
  return out;
}

std::vector<RunPrediction> predict_runs(std::span<const RunRow> rows, const FrameworkMap& map,
                                        const PredictOptions& options, const ManyRuns& many) {
  std::vector<RunPrediction> out(rows.size());
  if (rows.empty()) return out;
  const UncertaintyRules rules =
      options.uncertainty ? *options.uncertainty : load_uncertainty_rules(options.preset_dir);
  PredictOptions shared = options;
  shared.uncertainty = &rules;
  const std::vector<CostPreset> constants =
      options.constants ? std::vector<CostPreset>{} : all_constants(options.preset_dir);
  if (!options.constants) shared.constants = &constants;
  std::size_t done = 0;
  const auto predict_all = [&](const std::vector<std::size_t>& which) {
    constexpr std::size_t kBlock = 256;  // a fraction of a second: then it is told how far the work is
    for (std::size_t from = 0; from < which.size(); from += kBlock) {
      const std::size_t end = std::min(from + kBlock, which.size());
      tbb::parallel_for(from, end,
                        [&](std::size_t k) { out[which[k]] = predict_run(rows[which[k]], map, shared); });
      done += end - from;
      if (many.tell) many.tell(done);
    }
  };
  std::vector<std::size_t> first, rest;
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (many.alike.empty() || many.alike[i] == i) first.push_back(i);
  predict_all(first);
  for (std::size_t i = 0; i < rows.size() && !many.alike.empty(); ++i) {
    const std::size_t same = many.alike[i];
    if (same == i) continue;
    // What is wrong with a row is told with its own line.
    if (!out[same].step_s || !rows[i].unreadable.empty()) {
      rest.push_back(i);
      continue;
    }
    out[i] = out[same];
    out[i].run_id = rows[i].run_id;
    ++done;
  }
  predict_all(rest);
  return out;
}

}  // namespace sextant

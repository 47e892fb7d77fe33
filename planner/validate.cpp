#include "planner/validate.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <tbb/parallel_for.h>

#include "core/plan_links.hpp"
#include "core/topology.hpp"
#include "cost_models/analytic.hpp"
#include "planner/doubt.hpp"
#include "planner/lower.hpp"
#include "planner/simulate.hpp"
#include "planner/stage_memory.hpp"

namespace sextant {

namespace {

CostConstants constants_of(const std::string& generation, const PredictOptions& options) {
  if (options.constants != nullptr)
    for (const CostPreset& p : *options.constants)
      if (p.generation == generation) return p.constants;
  return load_cost_preset(generation, options.preset_dir / "cost").constants;
}

// The step if every collective, transfer and copy took no time.
double without_communication(const ExecutionGraph& graph, std::vector<OpCost> costs,
                             const SimulateOptions& how, SimulateScratch& scratch) {
  for (std::size_t w = 0; w < costs.size(); ++w)
    if (!std::holds_alternative<BlockWork>(graph.works[w]) &&
        !std::holds_alternative<StateWork>(graph.works[w]))
      costs[w].duration = Seconds(0);
  return simulated_step(graph, costs, how, scratch).v;
}

}  // namespace

RunPrediction predict_run(const RunRow& row, const FrameworkMap& map, const PredictOptions& options) {
  RunPrediction out;
  out.run_id = row.run_id;
  try {
    ResolvedRun run = resolve(row, map, options.preset_dir);
    out.stack = run.stack.name;
    out.note = run.note;
    if (const auto problems = validate(run.plan, run.model, run.training); !problems.empty()) {
      out.note = to_string(problems.front());
      return out;
    }
    if (options.adjust) options.adjust(run);
    const Topology topology(run.cluster);
    const PlanLinks links = plan_links(topology, run.plan);
    const ExecutionGraph graph =
        lower(run.model, run.training, links, run.plan, run.stack, {.operands = false});
    const AnalyticCostModel model(run.cluster, run.stack,
                                  constants_of(run.cluster.device.generation, options));
    const StackKernels& k = run.stack.kernels;
    SimulateScratch scratch;
    const SimulateOptions how{k.comm_slows_compute, k.compute_slows_comm, {}};
    const std::vector<OpCost> costs = price(graph, model);
    const double graph_s = simulated_step(graph, costs, how, scratch).v;
    const double stragglers = 1 + k.straggler_per_log2_node * std::log2(std::max(1, run.cluster.nodes));

    const MemoryEstimate memory = estimate_memory(run.model, run.training, run.plan, run.stack);
    const Bytes capacity = run.cluster.device.memory;
    const double filled = static_cast<double>(memory.reserved().v) / static_cast<double>(capacity.v);
    out.fits = memory.reserved() <= capacity;
    out.chance_of_overflow = chance_of_overflow(memory.reserved(), capacity);

    const double step = graph_s * stragglers + k.step_overhead.v;
    out.step_s = step;
    out.exposed_share = 1 - without_communication(graph, costs, how, scratch) / graph_s;

    const Doubt doubt = doubt_of(run, filled, out.exposed_share);
    const double u = step_half_width(doubt) * run.interval;
    out.doubt = doubt;
    out.step_lower_s = step / (1 + u), out.step_upper_s = step * (1 + u);
    const double peak =
        as_measured(memory.stages[static_cast<std::size_t>(memory.heaviest)], row.memory_kind);
    const double m = memory_half_width(doubt) * run.interval;
    out.memory_GiB = peak, out.memory_lower_GiB = peak / (1 + m), out.memory_upper_GiB = peak * (1 + m);
  } catch (const std::exception& e) {  // one bad row does not end the others
    out.note = e.what();
  }
  return out;
}

std::vector<RunPrediction> predict_runs(std::span<const RunRow> rows, const FrameworkMap& map,
                                        const PredictOptions& options) {
  std::vector<RunPrediction> out(rows.size());
  tbb::parallel_for(std::size_t{0}, rows.size(),
                    [&](std::size_t i) { out[i] = predict_run(rows[i], map, options); });
  return out;
}

}  // namespace sextant

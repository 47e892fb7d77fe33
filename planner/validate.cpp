#include "planner/validate.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <tbb/parallel_for.h>

#include "core/plan_links.hpp"
#include "core/topology.hpp"
#include "cost_models/analytic.hpp"
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

// Half width of the interval, relative: compute-bound steps are known best, exposed communication and tensor
// parallelism that leaves the node least (design notes on accuracy).
double uncertainty(const ResolvedRun& run) {
  double u = 0.08;
  if (run.plan.replicas() > 8 && run.cluster.nodes > 1) u = 0.15;
  if (run.plan.tp > run.cluster.node.gpus * run.cluster.node.domain_nodes) u = 0.4;
  return u * run.interval;
}

void predict_memory(const RunRow& row, const ResolvedRun& run, RunPrediction& out) {
  constexpr double kMemoryUncertainty = 0.12;  // relative, both ways
  const MemoryEstimate estimate = estimate_memory(run.model, run.training, run.plan, run.stack);
  const double peak =
      as_measured(estimate.stages[static_cast<std::size_t>(estimate.heaviest)], row.memory_kind);
  const double u = kMemoryUncertainty * run.interval;
  out.memory_GiB = peak, out.memory_lower_GiB = peak * (1 - u), out.memory_upper_GiB = peak * (1 + u);
  out.fits = estimate.reserved() <= run.cluster.device.memory;
}

}  // namespace

RunPrediction predict_run(const RunRow& row, const FrameworkMap& map, const PredictOptions& options) {
  RunPrediction out;
  out.run_id = row.run_id;
  try {
    const ResolvedRun run = resolve(row, map, options.preset_dir);
    out.stack = run.stack.name;
    out.note = run.note;
    if (const auto problems = validate(run.plan, run.model, run.training); !problems.empty()) {
      out.note = to_string(problems.front());
      return out;
    }
    const Topology topology(run.cluster);
    const PlanLinks links = plan_links(topology, run.plan);
    const ExecutionGraph graph =
        lower(run.model, run.training, links, run.plan, run.stack, {.operands = false});
    const AnalyticCostModel model(run.cluster, run.stack,
                                  constants_of(run.cluster.device.generation, options));
    const StackKernels& k = run.stack.kernels;
    SimulateScratch scratch;
    const SimulateOptions how{k.comm_slows_compute, k.compute_slows_comm, {}};
    const double graph_s = simulated_step(graph, price(graph, model), how, scratch).v;
    const double stragglers = 1 + k.straggler_per_log2_node * std::log2(std::max(1, run.cluster.nodes));
    const double step = graph_s * stragglers + k.step_overhead.v;
    const double u = uncertainty(run);
    predict_memory(row, run, out);
    out.step_s = step, out.step_lower_s = step * (1 - u), out.step_upper_s = step * (1 + u);
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

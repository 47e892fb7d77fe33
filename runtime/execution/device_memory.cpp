#include "runtime/execution/device_memory.hpp"

#include <algorithm>
#include <variant>

#include "core/graph/parameter_layout.hpp"
#include "kernels/cuda/cuda_kernels.hpp"
#include "kernels/cuda/scratch.hpp"
#include "runtime/execution/arena.hpp"
#include "runtime/execution/step_exchange.hpp"

namespace sextant {

bool takes_scratch(const KernelTable& kernels) {
  return &kernels == cuda_kernels(KernelSet::fast) || &kernels == cuda_kernels(KernelSet::reference);
}

std::int64_t fp8_table_bytes(const ExecutionGraph& graph) {
  if (graph.training.compute != Dtype::fp8) return 0;
  return std::int64_t{graph.model.n_layers} * kFp8Units * Fp8Largest::kMostParts * Fp8Largest::kWords *
         std::int64_t{sizeof(std::uint32_t)};
}

std::int64_t scratch_of_lane(const ExecutionGraph& graph, LaneId lane) {
  if (graph.lanes[lane].kind != LaneKind::compute) return cuda::kSmallScratch;
  std::int64_t most = cuda::kLibraryWorkspace;
  for (const Work& work : graph.works)
    if (const auto* block = std::get_if<BlockWork>(&work)) most = std::max(most, cuda::scratch_of(*block));
  return most;
}

std::int64_t scratch_of_stage(const ExecutionGraph& graph, int stage) {
  std::int64_t all = 0;
  const StageView view(graph, stage);
  for (const LaneId lane : view.lanes()) all += scratch_of_lane(graph, lane);
  return all;
}

DeviceMemory device_memory(const ExecutionGraph& graph, const StackRules& rules, int stage, bool scratch) {
  const ParallelPlan& plan = graph.plan;
  const Dtype wide = accumulator_of(graph.training.compute);
  const std::int64_t own = graph.training.seq_len / plan.cp;
  const bool turns = graph.model.position == PositionKind::rope;
  const std::int64_t of_positions =
      turns ? 2 * std::int64_t{graph.training.seq_len} * (graph.model.head_dim / 2)  // cosines and sines
            : graph.model.n_heads / plan.tp;                                         // slopes
  return {.arena = with_scratch(plan_arena(graph, StageView(graph, stage)),
                                scratch ? scratch_of_stage(graph, stage) : 0),
          .exchange =
              StepExchange::bytes_on_device(parameter_layout(graph.model, plan, rules, stage).buckets.size(),
                                            static_cast<std::size_t>(microbatches(plan, graph.training)),
                                            static_cast<std::size_t>(own * plan.micro_batch)),
          .tables = of_positions * size_bytes(wide) + 4 * (own + graph.training.seq_len) +
                    (scratch ? fp8_table_bytes(graph) : 0)};
}

}  // namespace sextant

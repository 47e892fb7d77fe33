// What does a rank allocate on a device that does not share the host's memory, to the byte and before it does? Ignores the
// driver's context and code, and what communicators keep for themselves.
#pragma once

#include <cstdint>

#include "core/graph/execution_graph.hpp"
#include "core/plan/stack_spec.hpp"
#include "kernels/kernel_table.hpp"

namespace sextant {

struct DeviceMemory {
  std::int64_t arena = 0;  // buffers as they are placed, and the kernels' scratch
  std::int64_t exchange = 0, tables = 0;
  std::int64_t total() const { return arena + exchange + tables; }
};
// `scratch`: whether its kernels take any (takes_scratch).
DeviceMemory device_memory(const ExecutionGraph&, const StackRules&, int stage, bool scratch);

bool takes_scratch(const KernelTable&);
// Of what kernels know of weights that they multiply in fp8: of units of a layer, of all layers. 0: it does not.
inline constexpr int kFp8Units = 3;
std::int64_t fp8_table_bytes(const ExecutionGraph&);
// Bytes of scratch for the kernels of a lane's stream, and of all lanes of a stage.
std::int64_t scratch_of_lane(const ExecutionGraph&, LaneId);
std::int64_t scratch_of_stage(const ExecutionGraph&, int stage);

}  // namespace sextant

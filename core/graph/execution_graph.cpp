#include "core/graph/execution_graph.hpp"

#include <fmt/format.h>

namespace sextant {

std::string_view name(OpRole role) {
  constexpr std::string_view names[] = {
      "block",           "tp_gather",   "tp_scatter",   "tp_reduce",    "cp_gather",
      "cp_scatter",      "send",        "param_gather", "grad_reduce",  "grad_replica_reduce",
      "grad_accumulate", "tied_reduce", "sp_reduce",    "norm_partial", "norm_reduce",
      "update",          "copy_out",    "copy_in",      "zero_grad",
  };
  return names[static_cast<std::size_t>(role)];
}

std::string_view name(LaneKind kind) {
  constexpr std::string_view names[kLaneKinds] = {
      "compute",   "tp",        "cp",        "grad_reduce",    "param_gather",   "send_next",
      "recv_prev", "send_prev", "recv_next", "device_to_host", "host_to_device", "host",
  };
  return names[static_cast<std::size_t>(kind)];
}

std::string_view name(BufferKind kind) {
  constexpr std::string_view names[kBufferKinds] = {"parameters",  "gradients", "optimizer_state",
                                                    "activations", "logits",    "communication",
                                                    "workspace",   "host"};
  return names[static_cast<std::size_t>(kind)];
}

std::string op_name(const ExecutionGraph& graph, OpId id) {
  const Op& op = graph.ops[id];
  std::string out;
  if (const auto* block = std::get_if<BlockWork>(&graph.works[op.work]); block && op.role == OpRole::block)
    out = name(block->kind);
  else
    out = name(op.role);
  if (op.pass != Pass::none) out += fmt::format(" {}", name(op.pass));
  if (op.layer != kNone16) out += fmt::format(" L{}", op.layer);
  if (op.bucket != kNone16) out += fmt::format(" b{}", op.bucket);
  if (op.microbatch != kNone16) out += fmt::format(" mb{}", op.microbatch);
  return out;
}

std::uint64_t graph_hash(const ExecutionGraph& graph) {
  std::uint64_t hash = 1469598103934665603ull;
  const auto mix = [&hash](std::uint64_t x) {
    for (int i = 0; i < 8; ++i, x >>= 8) hash = (hash ^ (x & 0xff)) * 1099511628211ull;
  };
  const auto mix_text = [&](std::string_view text) {
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  };
  mix_text(plan_key(graph.plan));
  for (const Work& work : graph.works) mix_text(work_key(work));
  for (const Op& op : graph.ops) {
    mix(static_cast<std::uint64_t>(op.role) << 56 | static_cast<std::uint64_t>(op.pass) << 48 |
        static_cast<std::uint64_t>(op.stage) << 32 | static_cast<std::uint64_t>(op.chunk) << 16 | op.layer);
    mix(static_cast<std::uint64_t>(op.bucket) << 48 | static_cast<std::uint64_t>(op.microbatch) << 32 |
        static_cast<std::uint64_t>(op.lanes[0]) << 16 | op.lanes[1]);
    mix(op.work);
    for (OpId dep : graph.deps_of(op)) mix(dep);
  }
  return hash;
}

}  // namespace sextant

// Where does each buffer of a stage lie, and how much memory is that? Offsets are assigned before anything
// runs.
//
// A buffer lives from the first op that touches it to the last, in issue order; resident ones for the whole
// step. Two buffers may share addresses only when every use of one is over before any use of the other, by
// dependencies and lane order: issue order alone proves nothing between lanes. Peaks by category are sums of
// exact sizes; alignment and gaps appear only in `extent`.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/graph/execution_graph.hpp"
#include "core/graph/graph_memory.hpp"
#include "runtime/devices/device.hpp"
#include "runtime/execution/stage_view.hpp"

namespace sextant {

inline Space space_of(BufferKind kind) { return kind == BufferKind::host ? Space::host : Space::device; }

inline std::int64_t held_in(const HeldBytes& held, Space space) {
  return space == Space::host ? held.host().v : held.device().v;
}

// What is alive while ops are issued, in whatever order: in graph order it equals walk() (core/graph/graph_memory.hpp) to the
// byte.
class MemoryLedger {
 public:
  MemoryLedger(const ExecutionGraph&, const StageView&);

  // An op of the stage begins, in whatever order they are issued; then it ends. A buffer leaves with its last
  // user.
  void begin(OpId);
  void end(OpId);
  void restart();  // a new step: only residents are alive

  const HeldBytes& now() const { return now_; }
  const HeldBytes& at_peak(Space space) const { return at_peak_[static_cast<std::size_t>(space)]; }
  const HeldBytes& peak_of_each() const { return each_; }  // every category's own high water
  std::int64_t peak(Space space) const { return held_in(at_peak(space), space); }

 private:
  void add(BufferId);
  const ExecutionGraph& graph_;
  std::vector<bool> mine_;            // by BufferId: transient and of the stage
  std::vector<std::uint32_t> users_;  // ops of the stage that touch it
  std::vector<std::uint32_t> left_;   // those still to end in this step
  std::vector<bool> alive_;
  HeldBytes resident_, now_, each_;
  std::array<HeldBytes, 2> at_peak_;
};

struct ArenaPlan {
  static constexpr std::int64_t kNotHere = -1;
  std::vector<std::int64_t> offset;      // by BufferId, in its space; kNotHere for other stages' buffers
  std::array<std::int64_t, 2> extent{};  // by Space: bytes to allocate
};
ArenaPlan plan_arena(const ExecutionGraph&, const StageView&);
// Bytes to allocate on the device for the buffers and so much scratch.
std::int64_t with_scratch(const ArenaPlan&, std::int64_t scratch);

// The addresses, allocated once.
class Arena {
 public:
  // `scratch`: bytes of the device beside the buffers, for kernels.
  Arena(Device&, const ExecutionGraph&, ArenaPlan, std::int64_t scratch = 0);
  std::byte* at(BufferId) const;
  std::byte* scratch() const;
  void fill(std::span<const std::byte> pattern);  // all of the device's, over and over; blocks
  Device& device() const { return device_; }

 private:
  Device& device_;
  const ExecutionGraph& graph_;
  ArenaPlan plan_;
  std::array<Allocation, 2> memory_;
  std::int64_t bytes_ = 0;  // of the device
};

}  // namespace sextant

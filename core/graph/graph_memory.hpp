// How many bytes does a stage hold while its operations are issued, by kind of buffer? The graph's own accounting: a
// buffer lives from the first op that touches it to the last, in order of issue (op ids); resident ones the whole step.
// Ignores what no buffer stands for: allocator gaps and rounding, library workspaces, the device context.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/base/units.hpp"
#include "core/graph/execution_graph.hpp"

namespace sextant {

// Bytes by BufferKind. Kind `host` lies in the host's memory, all others in the device's.
struct HeldBytes {
  std::array<std::int64_t, kBufferKinds> by_kind{};
  std::int64_t& operator[](BufferKind kind) { return by_kind[static_cast<std::size_t>(kind)]; }
  std::int64_t operator[](BufferKind kind) const { return by_kind[static_cast<std::size_t>(kind)]; }
  Bytes device() const;
  Bytes host() const { return Bytes((*this)[BufferKind::host]); }
  bool operator==(const HeldBytes&) const = default;
};

// What is held while `op` runs, and until the next point.
struct MemoryPoint {
  OpId op = 0;
  HeldBytes held;
};

struct MemoryWalk {
  HeldBytes resident;              // held all step
  std::vector<MemoryPoint> curve;  // where the stage's holdings change, in order of issue
  MemoryPoint peak;                // the first point with the most device bytes
  Bytes host_peak;
};

// Throws when the graph was lowered without buffers.
MemoryWalk walk(const ExecutionGraph&, int stage);

}  // namespace sextant

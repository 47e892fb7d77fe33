// A rank's optimizer state between its device and a checkpoint: copied out as it is between two updates, and written or read
// from there. Exact bits, in the accumulator's format.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/device.hpp"
#include "runtime/rank_state.hpp"

namespace sextant {

// Host memory for what this rank stores, allocated and touched once; page-locked where copies need that to run beside work.
class StagedState {
 public:
  StagedState(const RankState&, Device&);

  struct Piece {
    std::string tensor;
    Extent extent;
    std::array<std::span<const std::byte>, 3> data;  // by StateField
  };
  const std::vector<Piece>& pieces() const { return pieces_; }
  std::int64_t bytes() const;

  // Returns at once. Everything is here at the event; until then, nothing may change the state.
  Event copy_from(const RankState&, Device&, StreamId);

 private:
  std::span<std::byte> memory(Device&, std::size_t bytes);

  std::array<std::vector<std::span<std::byte>>, 3> slices_;  // [StateField][bucket]; empty: another rank's
  std::vector<Allocation> page_locked_;
  std::vector<std::vector<std::byte>> plain_;
  std::vector<Piece> pieces_;
};

// Fills the rank's state and its parameters from the checkpoint. Throws ConfigError when it is damaged.
void restore(const RankState&, Device&, const Checkpoint&);

}  // namespace sextant

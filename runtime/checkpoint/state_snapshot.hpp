// A rank's optimizer state between its device and a checkpoint: copied out as it is between two updates, and written or read
// from there. Exact bits, in the accumulator's format.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/devices/device.hpp"
#include "runtime/execution/rank_state.hpp"

namespace sextant {

// Host memory for what this rank stores, allocated and touched once; page-locked where copies need that to run beside work.
class StateSnapshot {
 public:
  StateSnapshot(const RankState&, Device&);

  struct Piece {
    std::string tensor;
    Extent extent;
    std::array<std::span<const std::byte>, 3> data;  // by StateField
  };
  const std::vector<Piece>& pieces() const { return pieces_; }
  std::int64_t bytes() const;

  // The copy is one of the device beside its work or, where the host reads the device's memory, of many parts that any
  // threads make. From begin() until finish() has returned, nothing may change the state.
  void begin(const RankState&, Device&, StreamId);  // returns at once
  // Makes parts that nobody has taken until there are none; calls `taken` when it has taken the first.
  void help(const std::function<void()>& taken = {});
  void finish(Device&);  // helps, and waits for what others have taken

 private:
  struct Part {
    std::byte* to;
    const std::byte* from;
    std::size_t bytes;
  };
  std::span<std::byte> memory(Device&, std::size_t bytes);
  void cut(const RankState&);

  std::array<std::vector<std::span<std::byte>>, 3> slices_;  // [StateField][bucket]; empty: another rank's
  std::vector<Allocation> page_locked_;
  std::vector<std::vector<std::byte>> plain_;
  std::vector<Piece> pieces_;
  std::optional<Event> copied_;  // by the device
  std::vector<Part> parts_;      // by threads
  std::atomic<std::size_t> taken_ = 0, made_ = 0;
};

// Elements of a slice of the model in the accumulator's format; elements that are padding stay as they are.
using StateReader = std::function<void(StateField, const ModelSlice&, ElementRange, std::span<std::byte>)>;
// Fills the rank's state and its parameters with what the reader gives.
void fill(const RankState&, Device&, const StateReader&);
// The owned slice of a bucket as it is; blocks.
void copy_out(const RankState&, Device&, std::size_t bucket, StateField, std::span<std::byte>);

// Fills the rank's state and its parameters from the checkpoint. Throws ConfigError when it is damaged.
void restore(const RankState&, Device&, const Checkpoint&);

}  // namespace sextant

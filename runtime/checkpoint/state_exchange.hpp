// Who sends which rectangles of a model's state to whom, and how they travel: in parts, of which each rank sends one and receives
// one at a time, so that the busiest link hardly stands still.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "runtime/checkpoint/extent.hpp"
#include "runtime/checkpoint/state_move.hpp"
#include "runtime/communicators/communicator.hpp"

namespace sextant {

// A rectangle of a tensor, named by its place in a list that all ranks have.
struct Transfer {
  int from = 0, to = 0;
  std::int64_t tensor = 0;
  Extent extent;

  // Of all fields; `element`: bytes.
  std::int64_t bytes(std::int64_t element) const {
    return static_cast<std::int64_t>(kStateFields.size()) * extent.elements() * element;
  }
};

// What a rank holds, by the place of the tensor.
using HeldPieces = std::map<std::int64_t, std::vector<const HeldState::Piece*>>;

// What one rank has sent: its rectangles one after the other, and of each the fields of StateField, row after row.
struct Arrived {
  std::vector<const Transfer*> parts;
  std::unique_ptr<std::byte[]> values;
};

// Collective; every rank with the same transfers. `element`: bytes. Of each sender what this rank has received.
std::vector<Arrived> exchange(std::span<const Transfer>, const HeldPieces&, std::int64_t element,
                              Communicator& world);

}  // namespace sextant

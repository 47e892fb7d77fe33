// The state of a run goes from one layout to another in memory: each rank keeps what it owned, in the extents of a
// checkpoint, and under the new layout asks for what it owns now. What it has itself is copied, the rest is sent by ranks that
// have it. Exact bits: the same as saving a checkpoint and resuming from it. Knows nothing of either layout but extents, so
// the new one may have more ranks or fewer, and what a lost rank held may come from any replica.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/checkpoint/extent.hpp"
#include "runtime/communicators/communicator.hpp"
#include "runtime/devices/device.hpp"
#include "runtime/execution/rank_state.hpp"
#include "runtime/execution/trainer/rank_trainer.hpp"

namespace sextant {

// What one rank owned, copied out of its memory when no update was due.
class HeldState {
 public:
  HeldState(const RankState&, Device&, const TrainerClock&);

  struct Piece {
    std::string tensor;  // Hugging Face name
    Extent extent;
    std::array<std::span<const std::byte>, 3> data;  // by StateField, row after row
  };
  const std::vector<Piece>& pieces() const { return pieces_; }
  const TrainerClock& clock() const { return clock_; }
  std::int64_t bytes() const;

 private:
  std::array<std::vector<std::vector<std::byte>>, 3> slices_;  // [StateField][bucket]
  std::vector<Piece> pieces_;
  TrainerClock clock_;
};

// What a run carries from one layout to the next; all ranks of this process.
struct CarriedState {
  std::vector<std::unique_ptr<HeldState>> ranks;  // by world rank; null: that rank is new, or was lost
  bool present() const { return !ranks.empty(); }
};

// What a layout took over from the one before.
struct StateMove {
  std::int64_t bytes = 0;       // over links, to all ranks
  std::int64_t most_bytes = 0;  // of them, to one rank
  TrainerClock clock;
  Seconds took = {};
};

// What of the model's state is with nobody: "12 pieces, first model.norm.weight[0:64]"; nothing when all of it is there.
std::optional<std::string> missing_state(const CarriedState&, const ModelSpec&);
// The same of all processes of `world`, each with what it holds; collective.
std::optional<std::string> missing_state(std::span<const HeldState* const> held, Communicator& world,
                                         const ModelSpec&);

// What rank `rank` of `ranks` has in its process: its own, and that of ranks which the new layout does not have, every
// `ranks`-th of them.
std::vector<const HeldState*> held_by(const CarriedState&, int rank, int ranks);

// Collective over `world`, the ranks of the new layout. `held`: what is in this rank's reach; may be empty. Throws ConfigError
// on all ranks when some of the state is with nobody.
StateMove take_state(std::span<const HeldState* const> held, Communicator& world, const RankState& to,
                     Device&);

}  // namespace sextant

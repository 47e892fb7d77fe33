// Whether what is the same in every step is replayed as programs of the device: never, always, or where that is faster.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <string_view>

#include "core/base/units.hpp"

namespace sextant {

enum class Replay : std::uint8_t { off, on, automatic };
inline constexpr std::array<std::string_view, 3> kReplayNames = {"off", "on", "auto"};

// Compares, in the steps of a run themselves: with programs and without by turns; the first step with them, which captures
// them, does not count. What was faster in its best step then stays.
class ReplayChoice {
 public:
  explicit ReplayChoice(Replay replay) : replay_(replay) {}

  // Whether the next step replays.
  bool next() const {
    if (replay_ != Replay::automatic) return replay_ == Replay::on;
    return decided() ? best_[1] < best_[0] : steps_ % 2 == 0;
  }
  // How long that step took.
  void took(Seconds step) {
    if (replay_ != Replay::automatic || decided()) return;
    const bool replayed = next();
    if (steps_ > 0) best_[replayed] = std::min(best_[replayed], step.v);
    ++steps_;
  }
  bool decided() const { return steps_ > kTurns; }

 private:
  static constexpr int kTurns = 6;  // three steps of either kind
  Replay replay_;
  int steps_ = 0;
  std::array<double, 2> best_{std::numeric_limits<double>::infinity(),
                              std::numeric_limits<double>::infinity()};
};

}  // namespace sextant

// Who holds a run up, from what its processes say of whom they wait for.
#pragma once

#include <map>
#include <vector>

#include "runtime/communicator.hpp"

namespace sextant {

// Ranks of the world by the ranks that each waits for a message from: of rank `me`, and of those that answered.
using Waits = std::map<int, std::vector<int>>;

// `waits` has an entry for `me`.
HoldUps hold_ups_from(int me, int size, const Waits& waits);

}  // namespace sextant

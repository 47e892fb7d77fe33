#include "runtime/hold_ups.hpp"

#include <algorithm>
#include <set>

namespace sextant {

HoldUps hold_ups_from(int me, int size, const Waits& waits) {
  HoldUps found;
  for (int rank = 0; rank < size; ++rank)
    if (!waits.contains(rank)) found.silent.push_back(rank);
  if (!found.silent.empty()) return found;
  // From those waited for here to those that they wait for, and so on.
  std::vector<int> open = waits.at(me);
  for (std::set<int> seen{me}; !open.empty();) {
    const int rank = open.back();
    open.pop_back();
    if (!seen.insert(rank).second) continue;
    const std::vector<int>& next = waits.at(rank);
    if (next.empty()) found.busy.push_back(rank);
    open.insert(open.end(), next.begin(), next.end());
  }
  std::ranges::sort(found.busy);
  return found;
}

}  // namespace sextant

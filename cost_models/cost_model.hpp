// How long does one work take? One of the four abstract classes of the project.
#pragma once

#include <cstdint>

#include "core/base/units.hpp"
#include "core/graph/work.hpp"

namespace sextant {

enum class CostSource : std::uint8_t { analytic, interpolated, measured };

// duration is what counts; the parts say what binds it (they need not sum to it: compute and memory overlap).
struct OpCost {
  Seconds duration, compute, memory, latency;
  CostSource source = CostSource::analytic;
  bool overlapped = false;  // timed while others run: interference is in it
};

class CostModel {
 public:
  virtual ~CostModel() = default;
  virtual OpCost price(const Work&) const = 0;
};

}  // namespace sextant

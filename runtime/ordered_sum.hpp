// The one definition of a reduction on CPU ranks: element by element over the parts in the order given, in
// fp32 for 16-bit and fp32 data and in fp64 for fp64, rounded once at the end. `out` may be one of the parts.
#pragma once

#include <cstdint>
#include <span>

#include "core/dtype.hpp"
#include "runtime/communicator.hpp"

namespace sextant {

void reduce_in_order(std::span<const void* const> parts, void* out, std::int64_t count, Dtype, Reduction);

}  // namespace sextant

// The one definition of a reduction on CPU ranks: element by element, in fp32 for 16-bit and fp32 data and in fp64 for
// fp64, rounded once at the end. `out` may be one of the parts.
//
// Parts are added in pairs by their place, ((0+1)+(2+3))+((4+5)+(6+7)), n of them split at the largest power of two
// below n. So the order composes: summing aligned runs of a power of two first, and the runs' sums then, gives the same
// bits as summing all at once, for any number of runs. That is why a shard degree of 1, 2, 4, ... replicas changes no
// bit; a degree of 3 or 6 sums in another order.
#pragma once

#include <cstdint>
#include <span>

#include "core/base/dtype.hpp"
#include "runtime/communicators/communicator.hpp"

namespace sextant {

void reduce_in_order(std::span<const void* const> parts, void* out, std::int64_t count, Dtype, Reduction);

}  // namespace sextant

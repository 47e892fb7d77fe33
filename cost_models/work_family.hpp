// Which works differ in size alone, so that what was measured of some tells about the others? A family has one kind of
// work: of blocks the same unit, pass, number format, head dimension and flags, whatever the other extents; of collectives
// and transfers the same kind and the same group with its links; of copies the same direction; of passes over state the
// same pass, formats and place.
#pragma once

#include <cstddef>

#include "core/graph/work.hpp"

namespace sextant {

// The family's name: the work without its size. Equal for two works exactly when they are of one family.
Work family_of(const Work&);

// Equal works have equal hashes.
struct WorkHash {
  std::size_t operator()(const Work&) const;
};

}  // namespace sextant

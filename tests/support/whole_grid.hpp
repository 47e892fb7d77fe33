// Whether a test runs all of its cases: where SEXTANT_WHOLE is set, as nightly. Elsewhere it runs a share that it names.
#pragma once

#include <cstdlib>

namespace sextant::testing {

inline bool whole_grid() { return std::getenv("SEXTANT_WHOLE") != nullptr; }

}  // namespace sextant::testing

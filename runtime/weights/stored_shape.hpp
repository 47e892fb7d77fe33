// The extents a tensor has in a Hugging Face file: norms have one, everything else two.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/weights/model_slice.hpp"

namespace sextant {

inline std::vector<std::int64_t> stored_shape(const ModelSlice& s) {  // of the whole tensor
  if (s.model_rows == 1) return {s.model_cols};
  return {s.model_rows, s.model_cols};
}

}  // namespace sextant

// The extents a tensor has in a Hugging Face file: norms and biases have one, everything else two.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/weights/model_slice.hpp"

namespace sextant {

inline bool is_row(const ModelSlice& s) { return s.model_rows == 1; }

// Of the stored tensor, which has so many rows (or elements, of one extent): more than the slice's where several are packed.
inline std::vector<std::int64_t> stored_shape(const ModelSlice& s, std::int64_t rows) {
  if (is_row(s)) return {rows};
  return {rows, s.model_cols};
}

}  // namespace sextant

// Where does a piece of a tensor lie in the model? A rectangle of the whole tensor: what is stored names its place
// without a word about the layout it came from, so that any other layout finds what it needs.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/kernel_table.hpp"
#include "runtime/weights/model_slice.hpp"

namespace sextant {

struct Extent {
  std::int64_t row = 0, col = 0, rows = 0, cols = 0;
  std::int64_t elements() const { return rows * cols; }
  bool operator==(const Extent&) const = default;
};
std::string to_string(const Extent&);  // "[0:16,0:64]", as in numpy

Extent intersection(const Extent&, const Extent&);  // without elements when they do not meet

// A rectangle and where its elements begin, row after row, in the slice's memory.
struct SliceExtent {
  Extent extent;
  std::int64_t begin = 0;
};
// Elements [begin, end) of a slice as rectangles, in order and each contiguous in memory: a part of a row, whole rows,
// a part of a row. None has more than `most` elements, unless it is a single row. Padding of the vocabulary is left out.
std::vector<SliceExtent> extents_of(const ModelSlice&, ElementRange,
                                    std::int64_t most = std::int64_t{1} << 22);

// Do the extents cover a tensor of rows x cols, each element once? If not, in what they fail.
std::optional<std::string> cover_problem(std::span<const Extent>, std::int64_t rows, std::int64_t cols);

}  // namespace sextant

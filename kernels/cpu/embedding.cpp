// Rows of a vocabulary slice, and their gradient in token order: repeated tokens add up the same way always.
#include <algorithm>

#include "kernels/cpu/element.hpp"
#include "kernels/cpu/kernels.hpp"

namespace sextant::cpu {

void embedding_forward(const EmbeddingForwardArgs& g) {
  SEXTANT_CHECK(g.out.rows == static_cast<std::int64_t>(g.ids.size()) && g.out.cols == g.table.cols,
                "embedding: extents disagree");
  with_type(g.table.dtype, [&]<class T>() {
    for (std::int64_t t = 0; t < g.out.rows; ++t) {
      const std::int64_t row = g.ids[static_cast<std::size_t>(t)] - g.first_id;
      if (row >= 0 && row < g.table.rows)
        std::copy_n(g.table.row<T>(row), g.table.cols, g.out.row<T>(t));
      else
        std::fill_n(g.out.row<T>(t), g.out.cols, T{});
    }
  });
}

void embedding_backward(const EmbeddingBackwardArgs& g) {
  SEXTANT_CHECK(g.dout.rows == static_cast<std::int64_t>(g.ids.size()) && g.dout.cols == g.dtable.cols,
                "embedding: extents disagree");
  with_type(g.dout.dtype, [&]<class T>() {
    for (std::int64_t t = 0; t < g.dout.rows; ++t) {
      const std::int64_t row = g.ids[static_cast<std::size_t>(t)] - g.first_id;
      if (row < 0 || row >= g.dtable.rows) continue;
      const T* dout = g.dout.row<T>(t);
      auto* dtable = g.dtable.row<Accumulator<T>>(row);
      for (std::int64_t i = 0; i < g.dout.cols; ++i) dtable[i] += load(dout[i]);
    }
  });
}

}  // namespace sextant::cpu

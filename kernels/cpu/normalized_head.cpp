// Rows divided by their length: the lengths, columns of logits scaled by them, and the gradient's part along a row.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/element.hpp"
#include "kernels/cpu/kernels.hpp"

namespace sextant::cpu {

void row_lengths(const RowLengthsArgs& g) {
  SEXTANT_CHECK(g.inverse.rows == 1 && g.inverse.cols == g.x.rows, "row lengths: extents disagree");
  constexpr double kShortest = 1e-12;  // torch.nn.functional.normalize
  with_type(g.x.dtype, [&]<class T>() {
    using A = Accumulator<T>;
    A* inverse = g.inverse.row<A>();
    for (std::int64_t r = 0; r < g.x.rows; ++r) {
      const T* x = g.x.row<T>(r);
      const A squares = sum_lanes<A>(g.x.cols, [&](std::int64_t i) { return load(x[i]) * load(x[i]); });
      inverse[r] = A{1} / std::max(std::sqrt(squares), static_cast<A>(kShortest));
    }
  });
}

void scale_columns(const ScaleColumnsArgs& g) {
  SEXTANT_CHECK(g.factors.rows == 1 && g.factors.cols == g.x.cols, "scaled columns: extents disagree");
  with_type(g.x.dtype, [&]<class T>() {
    using A = Accumulator<T>;
    const A* factors = g.factors.row<A>();
    for (std::int64_t r = 0; r < g.x.rows; ++r) {
      T* x = g.x.row<T>(r);
      for (std::int64_t i = 0; i < g.x.cols; ++i) x[i] = store<T>(load(x[i]) * factors[i]);
    }
  });
}

void project_rows(const ProjectRowsArgs& g) {
  SEXTANT_CHECK(
      g.weight.rows == g.dweight.rows && g.weight.cols == g.dweight.cols && g.inverse.cols == g.weight.rows,
      "projected rows: extents disagree");
  with_type(g.weight.dtype, [&]<class T>() {
    using A = Accumulator<T>;
    const A* inverse = g.inverse.row<A>();
    for (std::int64_t r = 0; r < g.weight.rows; ++r) {
      const T* w = g.weight.row<T>(r);
      A* d = g.dweight.row<A>(r);
      const A along =
          sum_lanes<A>(g.weight.cols, [&](std::int64_t i) { return load(w[i]) * inverse[r] * d[i]; });
      for (std::int64_t i = 0; i < g.weight.cols; ++i) d[i] -= load(w[i]) * inverse[r] * along;
    }
  });
}

}  // namespace sextant::cpu

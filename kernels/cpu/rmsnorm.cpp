// Root-mean-square norm (Zhang & Sennrich 2019): y = x / sqrt(mean(x^2) + eps) * weight.
// With xhat = x * r:  dx = r * (w*dy - xhat * mean(w*dy*xhat)),  dw = sum over rows of dy * xhat.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/element.hpp"
#include "kernels/cpu/kernels.hpp"

namespace sextant::cpu {
namespace {

bool same_extents(const TensorView& a, const TensorView& b) { return a.rows == b.rows && a.cols == b.cols; }

template <class T>
void apply(const T* x, const T* weight, Accumulator<T> r, T* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = store<T>(load(x[i]) * r * load(weight[i]));
}

template <class T>
void backward(const RmsnormBackwardArgs& g) {
  using A = Accumulator<T>;
  const std::int64_t rows = g.x.rows, n = g.x.cols;
  const T* weight = g.weight.row<T>();
  const A* r = g.inverse_rms.row<A>();

  // The weight gradient first: dx may stand where dy does. Sums over rows run in fp64, column block after
  // column block, so that thousands of tokens do not wear the fp32 gradient down.
  constexpr std::int64_t kBlock = 256;
  A* dweight = g.dweight.row<A>();
  for (std::int64_t first = 0; first < n; first += kBlock) {
    const std::int64_t width = std::min(kBlock, n - first);
    double sum[kBlock] = {};
    for (std::int64_t t = 0; t < rows; ++t) {
      const T* x = g.x.row<T>(t) + first;
      const T* dy = g.dy.row<T>(t) + first;
      for (std::int64_t i = 0; i < width; ++i)
        sum[i] += static_cast<double>(load(dy[i]) * (load(x[i]) * r[t]));
    }
    for (std::int64_t i = 0; i < width; ++i)
      dweight[first + i] = static_cast<A>(static_cast<double>(dweight[first + i]) + sum[i]);
  }

  for (std::int64_t t = 0; t < rows; ++t) {
    const T* x = g.x.row<T>(t);
    const T* dy = g.dy.row<T>(t);
    const T* bypass = g.bypass.data ? g.bypass.row<T>(t) : nullptr;
    T* dx = g.dx.row<T>(t);
    // The sum of dy weight x, times r^2: as much as the sum of dy y, times r.
    const auto along_row = [&] {
      if (g.dots.data) return g.dots.row<A>()[t] * r[t] / static_cast<A>(g.width);
      const A projection =
          sum_lanes<A>(n, [&](std::int64_t i) { return load(dy[i]) * load(weight[i]) * load(x[i]); });
      return projection * r[t] * r[t] / static_cast<A>(n);
    };
    const A along = along_row();
    for (std::int64_t i = 0; i < n; ++i) {
      const A d = r[t] * (load(dy[i]) * load(weight[i]) - load(x[i]) * along);
      dx[i] = store<T>(bypass ? load(bypass[i]) + d : d);
    }
  }
}

}  // namespace

void rmsnorm_forward(const RmsnormForwardArgs& g) {
  SEXTANT_CHECK(g.y.rows == g.x.rows && g.y.cols == g.x.cols && g.weight.cols == g.x.cols &&
                    g.inverse_rms.cols == g.x.rows && (!g.branch.data || same_extents(g.branch, g.x)) &&
                    (!g.kept.data || same_extents(g.kept, g.x)),
                "rmsnorm: extents disagree");
  with_type(g.x.dtype, [&]<class T>() {
    using A = Accumulator<T>;
    A* inverse_rms = g.inverse_rms.row<A>();
    for (std::int64_t t = 0; t < g.x.rows; ++t) {
      T* x = g.x.row<T>(t);
      if (g.branch.data) {
        const T* branch = g.branch.row<T>(t);
        for (std::int64_t i = 0; i < g.x.cols; ++i) x[i] = store<T>(load(x[i]) + load(branch[i]));
      }
      if (g.kept.data) std::copy_n(x, g.x.cols, g.kept.row<T>(t));
      const A squares = sum_lanes<A>(g.x.cols, [&](std::int64_t i) { return load(x[i]) * load(x[i]); });
      inverse_rms[t] = A{1} / std::sqrt(squares / static_cast<A>(g.x.cols) + static_cast<A>(g.eps));
      apply<T>(x, g.weight.row<T>(), inverse_rms[t], g.y.row<T>(t), g.x.cols);
    }
  });
}

void rmsnorm_apply(const RmsnormApplyArgs& g) {
  SEXTANT_CHECK(g.y.rows == g.x.rows && g.y.cols == g.x.cols && g.inverse_rms.cols == g.x.rows,
                "rmsnorm: extents disagree");
  with_type(g.x.dtype, [&]<class T>() {
    for (std::int64_t t = 0; t < g.x.rows; ++t)
      apply<T>(g.x.row<T>(t), g.weight.row<T>(), g.inverse_rms.row<Accumulator<T>>()[t], g.y.row<T>(t),
               g.x.cols);
  });
}

void rmsnorm_backward(const RmsnormBackwardArgs& g) {
  SEXTANT_CHECK(g.dy.rows == g.x.rows && g.dx.rows == g.x.rows && g.dy.cols == g.x.cols &&
                    g.dx.cols == g.x.cols && g.dweight.cols == g.x.cols && g.inverse_rms.cols == g.x.rows &&
                    (!g.dots.data || (g.dots.cols == g.x.rows && g.width >= g.x.cols && !g.bypass.data)),
                "rmsnorm: extents disagree");
  with_type(g.x.dtype, [&]<class T>() { backward<T>(g); });
}

void row_dots(const RowDotsArgs& g) {
  SEXTANT_CHECK(same_extents(g.a, g.b) && g.out.cols == g.a.rows, "dots of rows: extents disagree");
  with_type(g.a.dtype, [&]<class T>() {
    using A = Accumulator<T>;
    for (std::int64_t t = 0; t < g.a.rows; ++t) {
      const T *a = g.a.row<T>(t), *b = g.b.row<T>(t);
      g.out.row<A>()[t] = sum_lanes<A>(g.a.cols, [&](std::int64_t i) { return load(a[i]) * load(b[i]); });
    }
  });
}

void inverse_rms(const InverseRmsArgs& g) {
  with_type(g.x.dtype, [&]<class T>() {
    using A = Accumulator<T>;
    T* x = g.x.row<T>();
    for (std::int64_t t = 0; t < g.x.cols; ++t)
      x[t] = store<T>(A{1} / std::sqrt(load(x[t]) / static_cast<A>(g.width) + static_cast<A>(g.eps)));
  });
}

}  // namespace sextant::cpu

// Passes over flat state and the residual stream.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/element.hpp"
#include "kernels/cpu/kernels.hpp"

namespace sextant::cpu {

void squared_norm(const SquaredNormArgs& g) {
  SEXTANT_CHECK(g.sum != nullptr, "squared norm: nowhere to add");
  with_type(g.x.dtype, [&]<class T>() {
    double sum = 0;
    for (std::int64_t r = 0; r < g.x.rows; ++r) {
      const T* x = g.x.row<T>(r);
      sum += sum_lanes<double>(g.x.cols, [&](std::int64_t i) {
        const auto value = static_cast<double>(load(x[i]));
        return value * value;
      });
    }
    *g.sum += sum;
  });
}

void total(const TotalArgs& g) {
  SEXTANT_CHECK(g.sum != nullptr && g.x.contiguous(), "total: extents disagree");
  double sum = 0;
  for (std::int64_t i = 0; i < g.x.elements(); ++i) sum += g.x.row<double>()[i];
  *g.sum = sum;
}

void add(const AddArgs& g) {
  SEXTANT_CHECK(
      g.a.rows == g.out.rows && g.b.rows == g.out.rows && g.a.cols == g.out.cols && g.b.cols == g.out.cols,
      "add: extents disagree");
  with_type(g.out.dtype, [&]<class T>() {
    for (std::int64_t r = 0; r < g.out.rows; ++r) {
      const T* a = g.a.row<T>(r);
      const T* b = g.b.row<T>(r);
      T* out = g.out.row<T>(r);
      for (std::int64_t i = 0; i < g.out.cols; ++i) out[i] = store<T>(load(a[i]) + load(b[i]));
    }
  });
}

void add_bias(const AddBiasArgs& g) {
  SEXTANT_CHECK(g.bias.rows == 1 && g.bias.cols == g.x.cols, "bias: extents disagree");
  with_type(g.x.dtype, [&]<class T>() {
    const T* bias = g.bias.row<T>();
    for (std::int64_t r = 0; r < g.x.rows; ++r) {
      T* x = g.x.row<T>(r);
      for (std::int64_t i = 0; i < g.x.cols; ++i) x[i] = store<T>(load(x[i]) + load(bias[i]));
    }
  });
}

// In fp64, block of columns after block: as the gradient of a norm's weight (rmsnorm.cpp).
void bias_gradient(const BiasGradientArgs& g) {
  SEXTANT_CHECK(g.dbias.rows == 1 && g.dbias.cols == g.dy.cols, "bias gradient: extents disagree");
  constexpr std::int64_t kBlock = 256;
  with_type(g.dy.dtype, [&]<class T>() {
    using A = Accumulator<T>;
    A* dbias = g.dbias.row<A>();
    for (std::int64_t first = 0; first < g.dy.cols; first += kBlock) {
      const std::int64_t width = std::min(kBlock, g.dy.cols - first);
      double sum[kBlock] = {};
      for (std::int64_t r = 0; r < g.dy.rows; ++r) {
        const T* dy = g.dy.row<T>(r) + first;
        for (std::int64_t i = 0; i < width; ++i) sum[i] += static_cast<double>(load(dy[i]));
      }
      for (std::int64_t i = 0; i < width; ++i)
        dbias[first + i] = static_cast<A>(static_cast<double>(dbias[first + i]) + sum[i]);
    }
  });
}

void accumulate(const AccumulateArgs& g) {
  SEXTANT_CHECK(g.source.rows == g.destination.rows && g.source.cols == g.destination.cols,
                "accumulate: extents disagree");
  with_type(g.source.dtype, [&]<class T>() {
    using A = Accumulator<T>;
    for (std::int64_t r = 0; r < g.source.rows; ++r) {
      const T* source = g.source.row<T>(r);
      A* destination = g.destination.row<A>(r);
      for (std::int64_t i = 0; i < g.source.cols; ++i) destination[i] += load(source[i]);
    }
  });
}

void cast(const CastArgs& g) {
  SEXTANT_CHECK(g.source.rows == g.destination.rows && g.source.cols == g.destination.cols,
                "cast: extents disagree");
  with_type(g.source.dtype, [&]<class From>() {
    with_type(g.destination.dtype, [&]<class To>() {
      for (std::int64_t r = 0; r < g.source.rows; ++r) {
        const From* source = g.source.row<From>(r);
        To* destination = g.destination.row<To>(r);
        for (std::int64_t i = 0; i < g.source.cols; ++i) destination[i] = store<To>(load(source[i]));
      }
    });
  });
}

void zero(const ZeroArgs& g) {
  const auto row_bytes = static_cast<std::size_t>(g.x.cols * size_bytes(g.x.dtype));
  for (std::int64_t r = 0; r < g.x.rows; ++r) std::memset(g.x.row_range(r, 1).data, 0, row_bytes);
}

void scale(const ScaleArgs& g) {
  with_type(g.x.dtype, [&]<class T>() {
    const auto factor = static_cast<Accumulator<T>>(g.factor);
    for (std::int64_t r = 0; r < g.x.rows; ++r) {
      T* x = g.x.row<T>(r);
      for (std::int64_t i = 0; i < g.x.cols; ++i) x[i] = store<T>(load(x[i]) * factor);
    }
  });
}

}  // namespace sextant::cpu

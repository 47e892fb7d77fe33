// Passes over flat state and the residual stream, and sums for the norm.
// Compiled without contraction: Adam gives the bits that the CPU gives.
#include <algorithm>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/kernels.hpp"
#include "kernels/cuda/rows.cuh"

namespace sextant::cuda {
namespace {

TensorView flat(const TensorView& x) { return {x.data, x.dtype, 1, x.elements()}; }
template <class... View>
void flatten(View&... views) {
  if ((views.contiguous() && ...)) ((views = flat(views)), ...);
}

template <class T>
struct Add {
  static constexpr int kWidth = kWidthOf<T>;
  Rows<T> a, b, out;
  template <int W>
  __device__ void element(std::int64_t r, std::int64_t c) const {
    const auto x = read<W>(a(r) + c), y = read<W>(b(r) + c);
    Pack<T, W> sum;
#pragma unroll
    for (int i = 0; i < W; ++i) sum.v[i] = narrow<T>(widen(x.v[i]) + widen(y.v[i]));
    write(out(r) + c, sum);
  }
};

template <class T>
struct AddBias {
  static constexpr int kWidth = kWidthOf<T>;
  Rows<T> x;
  const T* bias;
  template <int W>
  __device__ void element(std::int64_t r, std::int64_t c) const {
    auto sum = read<W>(x(r) + c);
    const auto more = read<W>(bias + c);
#pragma unroll
    for (int i = 0; i < W; ++i) sum.v[i] = narrow<T>(widen(sum.v[i]) + widen(more.v[i]));
    write(x(r) + c, sum);
  }
};

// dbias[c] += sum of column c: 32 columns a block, in 8 groups of rows, then the groups in order.
constexpr int kBiasGroups = 8;
template <class T>
__global__ void __launch_bounds__(kBiasGroups * 32)
    bias_gradient_kernel(Rows<T> dy, Accumulator<T>* dbias, std::int64_t rows, std::int64_t cols) {
  using A = Accumulator<T>;
  __shared__ A group_sum[kBiasGroups][32];
  const int lane = threadIdx.x % 32, group = threadIdx.x / 32;
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * 32 + lane;
  A sum = 0;
  if (c < cols)
    for (std::int64_t r = rows * group / kBiasGroups; r < rows * (group + 1) / kBiasGroups; ++r)
      sum += widen(dy(r)[c]);
  group_sum[group][lane] = sum;
  __syncthreads();
  if (group != 0 || c >= cols) return;
  A all = 0;
  for (int g = 0; g < kBiasGroups; ++g) all += group_sum[g][lane];
  dbias[c] += all;
}

template <class T>
struct Accumulate {
  using A = Accumulator<T>;
  static constexpr int kWidth = kWidthOfWidest<T, A>;
  Rows<T> source;
  Rows<A> destination;
  template <int W>
  __device__ void element(std::int64_t r, std::int64_t c) const {
    const auto x = read<W>(source(r) + c);
    auto sum = read<W>(destination(r) + c);
#pragma unroll
    for (int i = 0; i < W; ++i) sum.v[i] += widen(x.v[i]);
    write(destination(r) + c, sum);
  }
};

template <class From, class To>
struct Cast {
  static constexpr int kWidth = kWidthOfWidest<From, To>;
  Rows<From> source;
  Rows<To> destination;
  template <int W>
  __device__ void element(std::int64_t r, std::int64_t c) const {
    const auto x = read<W>(source(r) + c);
    Pack<To, W> y;
#pragma unroll
    for (int i = 0; i < W; ++i) y.v[i] = narrow<To>(widen(x.v[i]));
    write(destination(r) + c, y);
  }
};

template <class T>
struct Scale {
  static constexpr int kWidth = kWidthOf<T>;
  Rows<T> x;
  Accumulator<T> factor;
  template <int W>
  __device__ void element(std::int64_t r, std::int64_t c) const {
    auto y = read<W>(x(r) + c);
#pragma unroll
    for (int i = 0; i < W; ++i) y.v[i] = narrow<T>(widen(y.v[i]) * factor);
    write(x(r) + c, y);
  }
};

template <class T>
struct Adamw {
  using A = Accumulator<T>;
  static constexpr int kWidth = kWidthOfWidest<T, A>;
  A *master, *moment1, *moment2;
  const A* gradient;
  T* parameter;
  const AdamwScalars* scalars;
  A beta1, beta2, rest1, rest2, eps;
  bool decays;
  template <int W>
  __device__ void element(std::int64_t, std::int64_t c) const {
    const AdamwScalars s = *scalars;
    if (s.skip) return;
    const AdamwFactors<A> f{.keep = decays ? static_cast<A>(s.keep) : A(1),
                            .scale = static_cast<A>(s.gradient_scale),
                            .beta1 = beta1,
                            .beta2 = beta2,
                            .rest1 = rest1,
                            .rest2 = rest2,
                            .step = static_cast<A>(s.step),
                            .root2 = static_cast<A>(s.root2),
                            .eps = eps};
    const auto g = read<W>(gradient + c);
    auto p = read<W>(master + c), m = read<W>(moment1 + c), v = read<W>(moment2 + c);
    Pack<T, W> out;
#pragma unroll
    for (int i = 0; i < W; ++i) {
      p.v[i] = adamw_element(f, g.v[i], p.v[i], m.v[i], v.v[i]);
      out.v[i] = narrow<T>(p.v[i]);
    }
    write(moment1 + c, m);
    write(moment2 + c, v);
    write(master + c, p);
    write(parameter + c, out);  // after the master, which it may be
  }
};

constexpr int kNormBlocks = 512;  // fixed: the order of a sum depends on extents alone

template <class T>
using SquareSum = std::conditional_t<std::is_same_v<T, double>, double, TwoFloat>;

template <class T>
__global__ void __launch_bounds__(256, 4)  // registers for four packs under way
    squares_kernel(Rows<T> x, std::int64_t rows, std::int64_t cols, bool wide, SquareSum<T>* partial) {
  constexpr int W = kWidthOf<T>;
  const std::int64_t threads = static_cast<std::int64_t>(kNormBlocks) * blockDim.x;
  const std::int64_t self = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  SquareSum<T> sum{};
  for (std::int64_t r = 0; r < rows; ++r)
    for_values<W, 4>(x(r), cols, wide, self, threads, [&]<int N>(const Pack<T, N>& pack) {
#pragma unroll
      for (int i = 0; i < N; ++i) add_square(sum, widen(pack.v[i]));
      settle(sum);
    });
  sum = block_sum(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

template <class S>
__global__ void __launch_bounds__(kNormBlocks) finish_squares_kernel(const S* partial, double* sum) {
  const S all = block_sum(partial[threadIdx.x]);
  if (threadIdx.x == 0) *sum += in_fp64(all);
}

// One thread adds, in order, what all have brought within its reach.
constexpr int kTotalThreads = 256, kTotalPiece = 4 * kTotalThreads;
__global__ void __launch_bounds__(kTotalThreads) total_kernel(const double* x, std::int64_t n, double* sum) {
  __shared__ double piece[kTotalPiece];
  double all = 0;
  for (std::int64_t first = 0; first < n; first += kTotalPiece) {
    const int count = static_cast<int>(n - first < kTotalPiece ? n - first : kTotalPiece);
    for (int i = threadIdx.x; i < count; i += kTotalThreads) piece[i] = x[first + i];
    __syncthreads();
    if (threadIdx.x == 0) {
#pragma unroll 16
      for (int i = 0; i < count; ++i) all += piece[i];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) *sum = all;
}

}  // namespace

void add(const AddArgs& g) {
  same_extents(g.a, g.out, "add: extents disagree");
  same_extents(g.b, g.out, "add: extents disagree");
  TensorView a = g.a, b = g.b, out = g.out;
  flatten(a, b, out);
  with_type(out.dtype, [&]<class T>() {
    map(stream_of(g.stream), Add<T>{rows_of<T>(a), rows_of<T>(b), rows_of<T>(out)}, out.rows, 0, out.cols,
        all_aligned(a, b, out), "add");
  });
}

void add_bias(const AddBiasArgs& g) {
  SEXTANT_CHECK(g.bias.rows == 1 && g.bias.cols == g.x.cols, "bias: extents disagree");
  with_type(g.x.dtype, [&]<class T>() {
    map(stream_of(g.stream), AddBias<T>{rows_of<T>(g.x), g.bias.row<T>()}, g.x.rows, 0, g.x.cols,
        all_aligned(g.x, g.bias), "bias");
  });
}

void bias_gradient(const BiasGradientArgs& g) {
  SEXTANT_CHECK(g.dbias.rows == 1 && g.dbias.cols == g.dy.cols, "bias gradient: extents disagree");
  with_type(g.dy.dtype, [&]<class T>() {
    const auto blocks = static_cast<unsigned>((g.dy.cols + 31) / 32);
    bias_gradient_kernel<T><<<blocks, kBiasGroups * 32, 0, stream_of(g.stream).stream>>>(
        rows_of<T>(g.dy), g.dbias.row<Accumulator<T>>(), g.dy.rows, g.dy.cols);
  });
  check_launch("bias gradient");
}

void accumulate(const AccumulateArgs& g) {
  same_extents(g.source, g.destination, "accumulate: extents disagree");
  TensorView source = g.source, destination = g.destination;
  flatten(source, destination);
  with_type(source.dtype, [&]<class T>() {
    map(stream_of(g.stream), Accumulate<T>{rows_of<T>(source), rows_of<Accumulator<T>>(destination)},
        source.rows, 0, source.cols, all_aligned(source, destination), "accumulate");
  });
}

void cast(const CastArgs& g) {
  same_extents(g.source, g.destination, "cast: extents disagree");
  TensorView source = g.source, destination = g.destination;
  flatten(source, destination);
  with_type(source.dtype, [&]<class From>() {
    with_type(destination.dtype, [&]<class To>() {
      map(stream_of(g.stream), Cast<From, To>{rows_of<From>(source), rows_of<To>(destination)}, source.rows,
          0, source.cols, all_aligned(source, destination), "cast");
    });
  });
}

void zero(const ZeroArgs& g) {
  TensorView x = g.x;
  flatten(x);
  if (x.elements() == 0) return;
  const auto element = static_cast<std::size_t>(size_bytes(x.dtype));
  const auto width = static_cast<std::size_t>(x.cols) * element;
  const cudaStream_t stream = stream_of(g.stream).stream;
  if (x.rows == 1)
    check(cudaMemsetAsync(x.data, 0, width, stream), "cudaMemsetAsync");
  else
    check(cudaMemset2DAsync(x.data, static_cast<std::size_t>(x.stride) * element, 0, width,
                            static_cast<std::size_t>(x.rows), stream),
          "cudaMemset2DAsync");
}

void scale(const ScaleArgs& g) {
  TensorView x = g.x;
  flatten(x);
  with_type(x.dtype, [&]<class T>() {
    map(stream_of(g.stream), Scale<T>{rows_of<T>(x), static_cast<Accumulator<T>>(g.factor)}, x.rows, 0,
        x.cols, aligned(x), "scale");
  });
}

void adamw(const AdamwArgs& g) {
  const std::int64_t n = g.master.cols;
  SEXTANT_CHECK(g.moment1.cols == n && g.moment2.cols == n && g.gradient.cols == n && g.parameter.cols == n &&
                    g.scalars != nullptr,
                "adamw: extents disagree");
  const bool wide = all_aligned(g.master, g.moment1, g.moment2, g.gradient, g.parameter);
  with_type(g.parameter.dtype, [&]<class T>() {
    using A = Accumulator<T>;
    Adamw<T> op{g.master.row<A>(),
                g.moment1.row<A>(),
                g.moment2.row<A>(),
                g.gradient.row<A>(),
                g.parameter.row<T>(),
                g.scalars,
                static_cast<A>(g.beta1),
                static_cast<A>(g.beta2),
                static_cast<A>(1.0 - g.beta1),
                static_cast<A>(1.0 - g.beta2),
                static_cast<A>(g.eps),
                false};
    const auto update = [&](std::int64_t begin, std::int64_t end, bool decays) {
      op.decays = decays;
      map(stream_of(g.stream), op, 1, begin, end, wide, "adamw");
    };
    std::int64_t at = 0;
    for (const ElementRange& range : g.decay) {
      const std::int64_t begin = std::clamp<std::int64_t>(range.begin, at, n);
      const std::int64_t end = std::clamp<std::int64_t>(range.end, begin, n);
      update(at, begin, false);
      update(begin, end, true);
      at = end;
    }
    update(at, n, false);
  });
}

void squared_norm(const SquaredNormArgs& g) {
  SEXTANT_CHECK(g.sum != nullptr, "squared norm: nowhere to add");
  TensorView x = g.x;
  flatten(x);
  if (x.elements() == 0) return;
  CudaStream& s = stream_of(g.stream);
  with_type(x.dtype, [&]<class T>() {
    using S = SquareSum<T>;
    auto* partial = static_cast<S*>(scratch(s, kNormBlocks * static_cast<std::int64_t>(sizeof(S))));
    squares_kernel<T><<<kNormBlocks, 256, 0, s.stream>>>(rows_of<T>(x), x.rows, x.cols, aligned(x), partial);
    finish_squares_kernel<S><<<1, kNormBlocks, 0, s.stream>>>(partial, g.sum);
  });
  check_launch("squared norm");
}

void total(const TotalArgs& g) {
  SEXTANT_CHECK(g.sum != nullptr && g.x.contiguous(), "total: extents disagree");
  total_kernel<<<1, kTotalThreads, 0, stream_of(g.stream).stream>>>(g.x.row<double>(), g.x.elements(), g.sum);
  check_launch("total");
}

}  // namespace sextant::cuda

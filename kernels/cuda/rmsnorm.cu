// The root-mean-square norm and its gradient. Bound by memory; no atomics, so sums have one order.
#include <cstdint>

#include "kernels/cuda/kernels.hpp"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/scratch.hpp"

namespace sextant::cuda {
namespace {

constexpr int kRowThreads = 256;

// With a statistic to make, the sum with the branch and its copy come on the way: each thread reads back what it has
// written itself.
template <class T, bool kMakeStatistic>
__global__ void __launch_bounds__(kRowThreads)
    rmsnorm_kernel(Rows<T> x, Rows<T> branch, Rows<T> kept, const T* weight, Rows<T> y,
                   Accumulator<T>* inverse_rms, std::int64_t rows, std::int64_t cols, Accumulator<T> eps,
                   bool wide) {
  using A = Accumulator<T>;
  constexpr int W = kWidthOf<T>;
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    T* from = x(row);
    T* to = y(row);
    A r;
    if constexpr (kMakeStatistic) {
      const T* added = branch.data ? branch(row) : nullptr;
      T* copy = kept.data ? kept(row) : nullptr;
      A squares = 0;
      for_columns<W>(cols, wide, [&]<int N>(std::int64_t c) {
        auto pack = read<N>(from + c);
        if (added) {
          const auto more = read<N>(added + c);
#pragma unroll
          for (int i = 0; i < N; ++i) pack.v[i] = narrow<T>(widen(pack.v[i]) + widen(more.v[i]));
          write(from + c, pack);
        }
        if (copy) write(copy + c, pack);
#pragma unroll
        for (int i = 0; i < N; ++i) squares += widen(pack.v[i]) * widen(pack.v[i]);
      });
      squares = block_sum(squares);
      r = A(1) / root(squares / static_cast<A>(cols) + eps);
      if (threadIdx.x == 0) inverse_rms[row] = r;
    } else {
      r = inverse_rms[row];
    }
    for_columns<W>(cols, wide, [&]<int N>(std::int64_t c) {  // the row is in the first cache by now
      const auto pack = read<N>(from + c), gain = read<N>(weight + c);
      Pack<T, N> out;
#pragma unroll
      for (int i = 0; i < N; ++i)
        out.v[i] = narrow<T>(rmsnorm_element(widen(pack.v[i]), r, widen(gain.v[i])));
      write(to + c, out);
    });
  }
}

// The same for rows of whole packs that lie in the registers of a block, K packs a thread: read once, and with the weight under
// way while the sum is made. The same sums in the same order.
template <class T, int K>
__global__ void __launch_bounds__(kRowThreads)
    rmsnorm_held_kernel(Rows<T> x, Rows<T> branch, Rows<T> kept, const T* weight, Rows<T> y,
                        Accumulator<T>* inverse_rms, std::int64_t rows, std::int64_t cols,
                        Accumulator<T> eps) {
  using A = Accumulator<T>;
  constexpr int W = kWidthOf<T>;
  const auto column = [&](int k) -> std::int64_t {
    return (threadIdx.x + k * kRowThreads) * std::int64_t{W};
  };
  int turn = 0;
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x, turn ^= 1) {
    Pack<T, W> held[K] = {}, gain[K] = {};
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (column(k) < cols) held[k] = read<W>(x(row) + column(k));
    if (branch.data) {
      Pack<T, W> more[K] = {};
#pragma unroll
      for (int k = 0; k < K; ++k)
        if (column(k) < cols) more[k] = read<W>(branch(row) + column(k));
#pragma unroll
      for (int k = 0; k < K; ++k) {
        if (column(k) >= cols) continue;
#pragma unroll
        for (int i = 0; i < W; ++i) held[k].v[i] = narrow<T>(widen(held[k].v[i]) + widen(more[k].v[i]));
        write(x(row) + column(k), held[k]);
      }
    }
    A squares = 0;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (column(k) >= cols) continue;
      gain[k] = read<W>(weight + column(k));
      if (kept.data) write(kept(row) + column(k), held[k]);
#pragma unroll
      for (int i = 0; i < W; ++i) squares += widen(held[k].v[i]) * widen(held[k].v[i]);
    }
    const A r = A(1) / root(block_sum_by_turns(squares, turn) / static_cast<A>(cols) + eps);
    if (threadIdx.x == 0) inverse_rms[row] = r;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (column(k) >= cols) continue;
      Pack<T, W> out;
#pragma unroll
      for (int i = 0; i < W; ++i)
        out.v[i] = narrow<T>(rmsnorm_element(widen(held[k].v[i]), r, widen(gain[k].v[i])));
      write(y(row) + column(k), out);
    }
  }
}

// One pass: dx by rows, and of the weight's gradient a partial sum per block over a fixed range of rows, kept
// in shared memory where each thread owns its columns.
constexpr int kGradientBlocks = static_cast<int>(kNormGradientBlocks);
constexpr int kGradientThreads = 512;
// Of rows for which half the threads do, twice the blocks: their partial sums fit into what every stream has.
constexpr int kNarrowThreads = kGradientThreads / 2, kNarrowBlocks = 2 * kGradientBlocks;
static_assert(kNarrowBlocks * kNarrowThreads * kWidthOf<Bfloat16> * std::int64_t{sizeof(float)} <=
              kLibraryWorkspace);

// Of rows that lie on several ranks: the sums of y dy over whole rows, if any, and how many numbers a row has.
template <class A>
struct WholeRows {
  const A* dots;
  A width;
  __device__ __forceinline__ A along(std::int64_t row, A inverse_rms) const {
    return dots[row] * inverse_rms / width;
  }
};

template <class T>
__global__ void __launch_bounds__(kGradientThreads)
    rmsnorm_backward_kernel(Rows<T> x, const Accumulator<T>* inverse_rms, const T* weight, Rows<T> dy,
                            Rows<T> bypass, Rows<T> dx, Accumulator<T>* partial, WholeRows<Accumulator<T>> of,
                            std::int64_t rows, std::int64_t cols, bool wide) {
  using A = Accumulator<T>;
  constexpr int W = kWidthOf<T>;
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  A* sum = reinterpret_cast<A*>(shared_bytes);
  for_columns<W>(cols, wide, [&]<int N>(std::int64_t c) {
#pragma unroll
    for (int i = 0; i < N; ++i) sum[c + i] = A(0);
  });
  const std::int64_t first = rows * blockIdx.x / gridDim.x, last = rows * (blockIdx.x + 1) / gridDim.x;
  for (std::int64_t row = first; row < last; ++row) {
    const T *xs = x(row), *dys = dy(row);
    const T* added = bypass.data ? bypass(row) : nullptr;
    T* to = dx(row);
    const A r = inverse_rms[row];
    A projection = 0;
    for_columns<W>(cols, wide, [&]<int N>(std::int64_t c) {
      const auto px = read<N>(xs + c), pw = read<N>(weight + c), pd = read<N>(dys + c);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const A value = widen(px.v[i]), d = widen(pd.v[i]);
        projection += d * widen(pw.v[i]) * value;
        sum[c + i] += d * (value * r);
      }
    });
    const A here = block_sum(projection);
    const A along = of.dots ? of.along(row, r) : here * r * r / static_cast<A>(cols);
    for_columns<W>(cols, wide, [&]<int N>(std::int64_t c) {
      const auto px = read<N>(xs + c), pw = read<N>(weight + c), pd = read<N>(dys + c);
      Pack<T, N> out;
      Pack<T, N> by{};
      if (added) by = read<N>(added + c);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const A d = rmsnorm_gradient<A>(widen(px.v[i]), r, widen(pw.v[i]), widen(pd.v[i]), along);
        out.v[i] = narrow<T>(added ? widen(by.v[i]) + d : d);
      }
      write(to + c, out);  // dx may be dy or bypass: this thread has read what it overwrites
    });
  }
  for_columns<W>(cols, wide, [&]<int N>(std::int64_t c) {
#pragma unroll
    for (int i = 0; i < N; ++i) partial[blockIdx.x * cols + c + i] = sum[c + i];
  });
}

// The same for rows that lie in the registers of a block, K packs a thread; sums of the weight's gradient, too. The next row
// is on its way while this one is reduced: with a few blocks, of which each waits for its row three times, memory idles.
// Longer than others: one kernel; its parts share the rows in registers.
template <class T, int K, int kThreads>
__global__ void __launch_bounds__(kThreads, K == 1 ? 1024 / kThreads : 1)
    rmsnorm_backward_held_kernel(Rows<T> x, const Accumulator<T>* inverse_rms, const T* weight, Rows<T> dy,
                                 Rows<T> bypass, Rows<T> dx, Accumulator<T>* partial,
                                 WholeRows<Accumulator<T>> of, std::int64_t rows, std::int64_t cols) {
  using A = Accumulator<T>;
  constexpr int W = kWidthOf<T>;
  struct Row {
    A inverse_rms;
    Pack<T, W> x[K], dy[K], bypass[K];
  };
  const auto column = [&](int k) -> std::int64_t { return (threadIdx.x + k * kThreads) * std::int64_t{W}; };
  const auto fetch = [&](std::int64_t row) {
    Row r{};
    r.inverse_rms = inverse_rms[row];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (column(k) >= cols) continue;
      r.x[k] = read<W>(x(row) + column(k));
      r.dy[k] = read<W>(dy(row) + column(k));
      if (bypass.data) r.bypass[k] = read<W>(bypass(row) + column(k));
    }
    return r;
  };
  Pack<T, W> gain[K] = {};
  A sum[K][W] = {};
#pragma unroll
  for (int k = 0; k < K; ++k)
    if (column(k) < cols) gain[k] = read<W>(weight + column(k));

  const std::int64_t first = rows * blockIdx.x / gridDim.x, last = rows * (blockIdx.x + 1) / gridDim.x;
  Row next = fetch(first);
  int turn = 0;
  for (std::int64_t row = first; row < last; ++row, turn ^= 1) {
    const Row now = next;
    if (row + 1 < last) next = fetch(row + 1);
    A projection = 0;
#pragma unroll
    for (int k = 0; k < K; ++k)
#pragma unroll
      for (int i = 0; i < W; ++i) {  // fused, as half of the time is arithmetic
        const A both = widen(now.x[k].v[i]) * widen(now.dy[k].v[i]);
        projection = fused(both, widen(gain[k].v[i]), projection);
        sum[k][i] = fused(both, now.inverse_rms, sum[k][i]);
      }
    const A here = block_sum_by_turns(projection, turn);
    const A along = of.dots ? of.along(row, now.inverse_rms)
                            : here * now.inverse_rms * now.inverse_rms / static_cast<A>(cols);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (column(k) >= cols) continue;
      Pack<T, W> out;
#pragma unroll
      for (int i = 0; i < W; ++i) {
        const A d = fused(-widen(now.x[k].v[i]), along, widen(now.dy[k].v[i]) * widen(gain[k].v[i]));
        out.v[i] = narrow<T>(fused(now.inverse_rms, d, bypass.data ? widen(now.bypass[k].v[i]) : A(0)));
      }
      write(dx(row) + column(k), out);  // dx may be dy or bypass: this thread has read what it overwrites
    }
  }
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (column(k) >= cols) continue;
    Pack<A, W> out;
#pragma unroll
    for (int i = 0; i < W; ++i) out.v[i] = sum[k][i];
    write(partial + blockIdx.x * cols + column(k), out);
  }
}

// dweight[c] += sum over blocks of partial[block][c]: 32 groups of blocks, then the groups in order, in fp64.
constexpr int kPartialGroups = 32;
template <class A>
__global__ void __launch_bounds__(kPartialGroups * 32)
    add_partials_kernel(const A* partial, std::int64_t blocks, std::int64_t cols, A* dweight) {
  __shared__ double group_sum[kPartialGroups][32];
  const int lane = threadIdx.x % 32, group = threadIdx.x / 32;
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * 32 + lane;
  double sum = 0;
  if (c < cols) {
#pragma unroll 8
    for (std::int64_t b = blocks * group / kPartialGroups; b < blocks * (group + 1) / kPartialGroups; ++b)
      sum += partial[b * cols + c];
  }
  group_sum[group][lane] = sum;
  __syncthreads();
  if (group != 0 || c >= cols) return;
  double all = 0;
  for (int g = 0; g < kPartialGroups; ++g) all += group_sum[g][lane];
  dweight[c] = static_cast<A>(static_cast<double>(dweight[c]) + all);
}

template <class T>
Rows<T> rows_or_none(const TensorView& x) {
  return x.data ? rows_of<T>(x) : Rows<T>{nullptr, 0};
}

template <class T, bool kMakeStatistic>
void rmsnorm(const RmsnormForwardArgs& g) {
  using A = Accumulator<T>;
  const bool wide = all_aligned(g.x, g.weight, g.y) && (!g.branch.data || aligned(g.branch)) &&
                    (!g.kept.data || aligned(g.kept));
  constexpr std::int64_t kHeld = std::int64_t{kRowThreads} * kWidthOf<T>;
  if constexpr (kMakeStatistic) {
    if (wide && g.x.cols % kWidthOf<T> == 0 && g.x.cols <= 4 * kHeld) {
      const auto launch = [&](auto kernel) {
        kernel<<<row_blocks(g.x.rows), kRowThreads, 0, stream_of(g.stream).stream>>>(
            rows_of<T>(g.x), rows_or_none<T>(g.branch), rows_or_none<T>(g.kept), g.weight.row<T>(),
            rows_of<T>(g.y), g.inverse_rms.row<A>(), g.x.rows, g.x.cols, static_cast<A>(g.eps));
      };
      launch(g.x.cols <= kHeld       ? rmsnorm_held_kernel<T, 1>
             : g.x.cols <= 2 * kHeld ? rmsnorm_held_kernel<T, 2>
                                     : rmsnorm_held_kernel<T, 4>);
      return check_launch("rmsnorm");
    }
  }
  rmsnorm_kernel<T, kMakeStatistic><<<row_blocks(g.x.rows), kRowThreads, 0, stream_of(g.stream).stream>>>(
      rows_of<T>(g.x), rows_or_none<T>(g.branch), rows_or_none<T>(g.kept), g.weight.row<T>(), rows_of<T>(g.y),
      g.inverse_rms.row<A>(), g.x.rows, g.x.cols, static_cast<A>(g.eps), wide);
  check_launch("rmsnorm");
}

}  // namespace

void rmsnorm_forward(const RmsnormForwardArgs& g) {
  same_extents(g.x, g.y, "rmsnorm: extents disagree");
  if (g.branch.data) same_extents(g.x, g.branch, "rmsnorm: extents disagree");
  if (g.kept.data) same_extents(g.x, g.kept, "rmsnorm: extents disagree");
  SEXTANT_CHECK(g.weight.cols == g.x.cols && g.inverse_rms.cols == g.x.rows, "rmsnorm: extents disagree");
  if (g.x.elements() == 0) return;
  with_type(g.x.dtype, [&]<class T>() { rmsnorm<T, true>(g); });
}

void rmsnorm_apply(const RmsnormApplyArgs& g) {
  same_extents(g.x, g.y, "rmsnorm: extents disagree");
  SEXTANT_CHECK(g.weight.cols == g.x.cols && g.inverse_rms.cols == g.x.rows, "rmsnorm: extents disagree");
  if (g.x.elements() == 0) return;
  with_type(g.x.dtype, [&]<class T>() {
    rmsnorm<T, false>(
        {.x = g.x, .weight = g.weight, .y = g.y, .inverse_rms = g.inverse_rms, .stream = g.stream});
  });
}

void rmsnorm_backward(const RmsnormBackwardArgs& g) {
  same_extents(g.x, g.dy, "rmsnorm: extents disagree");
  same_extents(g.x, g.dx, "rmsnorm: extents disagree");
  SEXTANT_CHECK(g.dweight.cols == g.x.cols && g.inverse_rms.cols == g.x.rows && g.weight.cols == g.x.cols &&
                    (!g.dots.data || (g.dots.cols == g.x.rows && g.width >= g.x.cols && !g.bypass.data)),
                "rmsnorm: extents disagree");
  if (g.x.elements() == 0) return;
  with_type(g.x.dtype, [&]<class T>() {
    using A = Accumulator<T>;
    CudaStream& s = stream_of(g.stream);
    const std::int64_t row_bytes = g.x.cols * static_cast<std::int64_t>(sizeof(A));
    const bool wide = all_aligned(g.x, g.weight, g.dy, g.dx) && (!g.bypass.data || aligned(g.bypass));
    constexpr std::int64_t kHeld = std::int64_t{kGradientThreads} * kWidthOf<T>;
    const bool whole = wide && g.x.cols % kWidthOf<T> == 0, narrow = whole && g.x.cols <= kHeld / 2;
    const std::int64_t blocks = std::min<std::int64_t>(g.x.rows, narrow ? kNarrowBlocks : kGradientBlocks);
    auto* partial = static_cast<A*>(scratch(s, blocks * row_bytes));
    const auto launch = [&](auto kernel, std::int64_t shared, auto... more) {
      kernel<<<static_cast<unsigned>(blocks), narrow ? kNarrowThreads : kGradientThreads,
               static_cast<std::size_t>(shared), s.stream>>>(
          rows_of<T>(g.x), g.inverse_rms.row<A>(), g.weight.row<T>(), rows_of<T>(g.dy),
          rows_or_none<T>(g.bypass), rows_of<T>(g.dx), partial,
          WholeRows<A>{g.dots.data ? g.dots.row<A>() : nullptr, static_cast<A>(g.width)}, g.x.rows, g.x.cols,
          more...);
      check_launch("rmsnorm backward");
    };
    if (narrow) {
      launch(rmsnorm_backward_held_kernel<T, 1, kNarrowThreads>, 0);
    } else if (whole && g.x.cols <= kHeld) {
      launch(rmsnorm_backward_held_kernel<T, 1, kGradientThreads>, 0);
    } else if (whole && g.x.cols <= 2 * kHeld) {
      launch(rmsnorm_backward_held_kernel<T, 2, kGradientThreads>, 0);
    } else {
      if (row_bytes > 40 * 1024)  // beside what block_sum has
        check(cudaFuncSetAttribute(rmsnorm_backward_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(row_bytes)),
              "rmsnorm of this width: shared memory");
      launch(rmsnorm_backward_kernel<T>, row_bytes, wide);
    }
    add_partials_kernel<A><<<static_cast<unsigned>((g.x.cols + 31) / 32), kPartialGroups * 32, 0, s.stream>>>(
        partial, blocks, g.x.cols, g.dweight.row<A>());
    check_launch("rmsnorm weight gradient");
  });
}

}  // namespace sextant::cuda

// Cross entropy over a slice of the vocabulary: statistics of a row, the loss of all ranks' statistics, gradients.
// Bound by memory; no sum uses atomics, so sums have one order.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/kernels.hpp"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/scratch.hpp"

namespace sextant::cuda {
namespace {

template <class T, class L>
struct CrossEntropyGradient {
  using A = Accumulator<T>;
  static constexpr int kWidth = kWidthOf<T, L>;
  Rows<L> logits;
  Rows<A> softmax;
  Rows<T> dlogits;
  const std::int32_t* targets;
  std::int64_t first_id, valid;
  A scale;
  template <int W>
  __device__ void element(std::int64_t r, std::int64_t c) const {
    const std::int32_t target = targets[r];
    const A highest = softmax(r)[0], inverse_sum = softmax(r)[1];
    // In 32 bits, and without a branch for each element.
    const std::int64_t left = target == kIgnoreTarget ? 0 : valid - c;
    const int real = left < W ? static_cast<int>(left) : W, own = static_cast<int>(target - first_id - c);
    const auto x = read<W>(logits(r) + c);
    Pack<T, W> y;
#pragma unroll
    for (int i = 0; i < W; ++i) {
      const A gradient = cross_entropy_gradient_element(widen(x.v[i]), highest, inverse_sum, i == own, scale);
      y.v[i] = narrow<T>(i < real ? gradient : A(0));
    }
    write(dlogits(r) + c, y);  // may be logits: the same elements
  }
};

template <class A>
__device__ __forceinline__ SoftmaxState<A> state_from_lane(SoftmaxState<A> s, int offset) {
  return {__shfl_xor_sync(0xffffffffu, s.highest, offset), __shfl_xor_sync(0xffffffffu, s.sum, offset)};
}

// Lanes may merge in either order: a merge is the same both ways but for which operand comes first in a sum of
// two, which addition does not mind.
constexpr int kStatsThreads = 512;  // four blocks a multiprocessor: some read while others merge

template <class L, class A = Accumulator<L>>
__global__ void __launch_bounds__(kStatsThreads, sizeof(A) == 4 ? 4 : 2)
    cross_entropy_stats_kernel(Rows<L> logits, const std::int32_t* targets, Rows<A> stats, std::int64_t rows,
                               std::int64_t valid, std::int64_t first_id, bool wide) {
  constexpr int W = kWidthOf<L>;
  __shared__ SoftmaxState<A> partial[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const L* x = logits(row);
    SoftmaxState<A> s{-INFINITY, A(0)};
    for_values<W, 2>(x, valid, wide, threadIdx.x, blockDim.x, [&]<int N>(const Pack<L, N>& pack) {
      A values[N];
#pragma unroll
      for (int i = 0; i < N; ++i) values[i] = widen(pack.v[i]);
      softmax_add(s, values);
    });
    for (int offset = 16; offset > 0; offset /= 2) s = softmax_merge(s, state_from_lane(s, offset));
    if (lane == 0) partial[warp] = s;
    __syncthreads();
    if (warp == 0) {
      s = lane < warps ? partial[lane] : SoftmaxState<A>{-INFINITY, A(0)};
      for (int offset = 16; offset > 0; offset /= 2) s = softmax_merge(s, state_from_lane(s, offset));
      if (lane == 0) {
        const std::int64_t target = targets[row] - first_id;
        A* to = stats(row);
        to[0] = s.highest;
        to[1] = s.sum;
        to[2] = target >= 0 && target < valid ? widen(x[target]) : A(0);
      }
    }
    __syncthreads();
  }
}

// A partial sum of losses a block, which one more block adds up in order.
constexpr int kCombineThreads = 128;
constexpr std::int64_t kMostCombineBlocks = 1024;
template <class A>
__global__ void __launch_bounds__(kCombineThreads)
    cross_entropy_combine_kernel(Rows<A> stats, std::int64_t ranks, const std::int32_t* targets,
                                 Rows<A> softmax, std::int64_t rows, double* partial) {
  double sum_of_losses = 0;
  for (std::int64_t t = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; t < rows;
       t += std::int64_t{gridDim.x} * blockDim.x) {
    double highest = -INFINITY, sum = 0, target = 0;
    for (std::int64_t r = 0; r < ranks; ++r)
      highest = fmax(highest, static_cast<double>(stats(r * rows + t)[0]));
    for (std::int64_t r = 0; r < ranks; ++r) {
      const A* part = stats(r * rows + t);
      sum += static_cast<double>(part[1]) * exp(static_cast<double>(part[0]) - highest);
      target += static_cast<double>(part[2]);
    }
    softmax(t)[0] = static_cast<A>(highest);
    softmax(t)[1] = static_cast<A>(1.0 / sum);
    if (targets[t] != kIgnoreTarget) sum_of_losses += log(sum) - (target - highest);
  }
  sum_of_losses = block_sum(sum_of_losses);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum_of_losses;
}

__global__ void __launch_bounds__(kMostCombineBlocks)
    add_losses_kernel(const double* partial, std::int64_t blocks, double* loss) {
  const double all = block_sum(threadIdx.x < blocks ? partial[threadIdx.x] : 0.0);
  if (threadIdx.x == 0) *loss += all;
}

std::int64_t valid_columns(std::int64_t slice, std::int64_t first_id, std::int64_t vocab) {
  const std::int64_t valid = vocab - first_id;
  return valid < 0 ? 0 : (valid < slice ? valid : slice);
}

}  // namespace

void cross_entropy_stats(const CrossEntropyStatsArgs& g) {
  SEXTANT_CHECK(g.stats.rows == g.logits.rows && g.stats.cols == 3 &&
                    g.logits.rows == static_cast<std::int64_t>(g.targets.size()),
                "cross entropy: extents disagree");
  if (g.logits.rows == 0) return;
  const std::int64_t valid = valid_columns(g.logits.cols, g.first_id, g.vocab);
  with_type(g.logits.dtype, [&]<class L>() {
    cross_entropy_stats_kernel<L>
        <<<row_blocks(g.logits.rows), kStatsThreads, 0, stream_of(g.stream).stream>>>(
            rows_of<L>(g.logits), g.targets.data(), rows_of<Accumulator<L>>(g.stats), g.logits.rows, valid,
            g.first_id, aligned(g.logits));
    check_launch("cross entropy");
  });
}

void cross_entropy_combine(const CrossEntropyCombineArgs& g) {
  const std::int64_t rows = g.softmax.rows, ranks = rows ? g.stats.rows / rows : 0;
  SEXTANT_CHECK(g.stats.rows == ranks * rows && g.softmax.cols == 2 &&
                    rows == static_cast<std::int64_t>(g.targets.size()),
                "cross entropy: extents disagree");
  if (rows == 0) return;
  const std::int64_t blocks = std::min((rows + kCombineThreads - 1) / kCombineThreads, kMostCombineBlocks);
  CudaStream& s = stream_of(g.stream);
  auto* partial = static_cast<double*>(scratch(s, blocks * std::int64_t{sizeof(double)}));
  const auto launch = [&]<class A>() {
    cross_entropy_combine_kernel<A><<<static_cast<unsigned>(blocks), kCombineThreads, 0, s.stream>>>(
        rows_of<A>(g.stats), ranks, g.targets.data(), rows_of<A>(g.softmax), rows, partial);
    if (g.loss)
      add_losses_kernel<<<1, static_cast<unsigned>((blocks + 31) / 32 * 32), 0, s.stream>>>(partial, blocks,
                                                                                            g.loss);
    check_launch("loss");
  };
  g.stats.dtype == Dtype::fp64 ? launch.template operator()<double>() : launch.template operator()<float>();
}

void cross_entropy_gradient(const CrossEntropyGradientArgs& g) {
  same_extents(g.dlogits, g.logits, "cross entropy: extents disagree");
  SEXTANT_CHECK(g.softmax.rows == g.logits.rows && g.softmax.cols == 2 &&
                    g.logits.rows == static_cast<std::int64_t>(g.targets.size()),
                "cross entropy: extents disagree");
  const auto launch = [&]<class T, class L>() {
    using A = Accumulator<T>;
    map(stream_of(g.stream),
        CrossEntropyGradient<T, L>{
            rows_of<L>(g.logits), rows_of<A>(g.softmax), rows_of<T>(g.dlogits), g.targets.data(), g.first_id,
            valid_columns(g.logits.cols, g.first_id, g.vocab), static_cast<A>(g.scale)},
        g.logits.rows, 0, g.logits.cols, all_aligned(g.logits, g.dlogits), "cross entropy gradient");
  };
  with_type(g.dlogits.dtype, [&]<class T>() {
    if (g.logits.dtype == g.dlogits.dtype)
      launch.template operator()<T, T>();
    else
      launch.template operator()<T, Accumulator<T>>();
  });
}

}  // namespace sextant::cuda

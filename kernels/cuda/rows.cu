// Kernels over tokens: rotary embedding, SwiGLU, vocabulary lookups and cross entropy.
// All are bound by memory; no sum uses atomics, so sums have one order.
#include <cstdint>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/kernels.hpp"
#include "kernels/cuda/rows.cuh"

namespace sextant::cuda {
namespace {

// --- maps ------------------------------------------------------------------------------------------------

template <class T>
inline constexpr bool kQuick = sizeof(T) == 2;

template <class T>
struct Swiglu {
  static constexpr int kWidth = kWidthOf<T>;
  Rows<T> gate, up, out;
  template <int W>
  __device__ void element(std::int64_t r, std::int64_t c) const {
    const auto g = read<W>(gate(r) + c), u = read<W>(up(r) + c);
    Pack<T, W> y;
#pragma unroll
    for (int i = 0; i < W; ++i) y.v[i] = narrow<T>(swiglu_element<kQuick<T>>(widen(g.v[i]), widen(u.v[i])));
    write(out(r) + c, y);
  }
};

template <class T>
struct SwigluGradient {
  using A = Accumulator<T>;
  static constexpr int kWidth = kWidthOf<T>;
  Rows<T> gate, up, dout;
  template <int W>
  __device__ void element(std::int64_t r, std::int64_t c) const {
    auto g = read<W>(gate(r) + c), u = read<W>(up(r) + c), d = read<W>(dout(r) + c);
#pragma unroll
    for (int i = 0; i < W; ++i) {
      A dgate = widen(g.v[i]), dup = widen(u.v[i]), activation = widen(d.v[i]);
      swiglu_gradient<kQuick<T>>(dgate, dup, activation);
      g.v[i] = narrow<T>(dgate), u.v[i] = narrow<T>(dup), d.v[i] = narrow<T>(activation);
    }
    write(gate(r) + c, g), write(up(r) + c, u), write(dout(r) + c, d);
  }
};

// A column of this map is a pair of a head: column = head * half + i.
template <class T>
struct Rope {
  using A = Accumulator<T>;
  static constexpr int kWidth = kWidthOf<T>;
  Rows<T> x;
  Rows<A> cosine, sine;
  const std::int32_t* positions;
  unsigned n_positions, half;
  A sign;
  template <int W>
  __device__ void element(std::int64_t r, std::int64_t column) const {
    // In 32 bits, whose division is several times faster. W divides half where it is not 1.
    const unsigned head = static_cast<unsigned>(column) / half,
                   i = static_cast<unsigned>(column) - head * half;
    T* first = x(r) + std::int64_t{2} * head * half + i;
    T* second = first + half;
    auto a = read<W>(first), b = read<W>(second);  // under way while the position is looked up
    const std::int32_t position = positions[static_cast<unsigned>(r) % n_positions];
    const auto c = read<W>(cosine(position) + i), s = read<W>(sine(position) + i);
#pragma unroll
    for (int k = 0; k < W; ++k) {
      A u = widen(a.v[k]), v = widen(b.v[k]);
      rope_pair(u, v, c.v[k], s.v[k], sign);
      a.v[k] = narrow<T>(u), b.v[k] = narrow<T>(v);
    }
    write(first, a), write(second, b);
  }
};

template <class T>
struct Lookup {
  static constexpr int kWidth = kWidthOf<T>;
  const std::int32_t* ids;
  Rows<T> table, out;
  std::int64_t first_id, slice;
  template <int W>
  __device__ void element(std::int64_t r, std::int64_t c) const {
    const std::int64_t row = ids[r] - first_id;
    Pack<T, W> x{};
    if (row >= 0 && row < slice) x = read<W>(table(row) + c);
    write(out(r) + c, x);
  }
};

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

// --- gradient of the vocabulary's rows -------------------------------------------------------------------

// Where in the list the first and the last token of a row are: [slice][2], as distance of the first from the list's end and
// place of the last, both -1 for a row without tokens. Maxima, so that no order matters.
__global__ void __launch_bounds__(256)
    embedding_ends_kernel(const std::int32_t* ids, int n, std::int64_t slice, std::int64_t first_id,
                          int* ends) {
  const int t = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (t >= n) return;
  const std::int64_t row = ids[t] - first_id;
  if (row < 0 || row >= slice) return;
  atomicMax(ends + 2 * row, n - 1 - t);
  atomicMax(ends + 2 * row + 1, t);
}

constexpr int kEmbeddingThreads = 256;
constexpr int kLooks = 4;  // tokens that a thread looks at, at a time

// A block per token and range of columns. The block of the first token with an id adds up all tokens of that id, in their
// order, so that repeated tokens always add up the same way, and adds that sum to the row once, as on the CPU.
template <class T>
__global__ void __launch_bounds__(kEmbeddingThreads, 4)
    embedding_backward_kernel(const std::int32_t* ids, int n, const int* ends, Rows<T> dout,
                              Rows<Accumulator<T>> dtable, std::int64_t slice, std::int64_t first_id,
                              std::int64_t cols, bool wide) {
  using A = Accumulator<T>;
  constexpr int W = kWidthOf<T, A>;
  const int first = static_cast<int>(blockIdx.x);
  const std::int32_t id = ids[first];
  const std::int64_t row = id - first_id;
  if (row < 0 || row >= slice) return;
  const auto of_row = read<2>(ends + 2 * row);
  if (of_row.v[0] != n - 1 - first) return;
  const int last = of_row.v[1];

  const std::int64_t chunk = static_cast<std::int64_t>(blockIdx.y) * kEmbeddingThreads * W;
  const auto column = [&](int i) -> std::int64_t {
    return wide ? chunk + threadIdx.x * W + i : chunk + i * kEmbeddingThreads + threadIdx.x;
  };
  const bool whole = wide && column(W - 1) < cols;
  A* const to = dtable(row);
  if (first == last && whole) {  // most tokens: both rows are under way together
    const auto x = read<W>(dout(first) + column(0));
    auto into = read<W>(to + column(0));
#pragma unroll
    for (int i = 0; i < W; ++i) into.v[i] += widen(x.v[i]);
    return write(to + column(0), into);
  }
  A sum[W] = {};
  const auto add_tokens = [&]<int N>(const int* tokens) {  // whose rows are read together and added in order
    if (whole) {
      Pack<T, W> x[N];
#pragma unroll
      for (int m = 0; m < N; ++m) x[m] = read<W>(dout(tokens[m]) + column(0));
#pragma unroll
      for (int m = 0; m < N; ++m)
#pragma unroll
        for (int i = 0; i < W; ++i) sum[i] += widen(x[m].v[i]);
      return;
    }
    for (int m = 0; m < N; ++m)
#pragma unroll
      for (int i = 0; i < W; ++i)
        if (column(i) < cols) sum[i] += widen(dout(tokens[m])[column(i)]);
  };

  if (first == last) {
    add_tokens.template operator()<1>(&first);
  } else {
    constexpr int kWarps = kEmbeddingThreads / 32;
    __shared__ int matches[kLooks * kEmbeddingThreads];
    __shared__ int matches_of[kLooks * kWarps];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int base = first; base <= last; base += kLooks * kEmbeddingThreads) {
      unsigned votes[kLooks];
      int at[kLooks], count = 0;
#pragma unroll
      for (int u = 0; u < kLooks; ++u) {
        const int t = base + u * kEmbeddingThreads + static_cast<int>(threadIdx.x);
        votes[u] = __ballot_sync(0xffffffffu, t <= last && ids[t] == id);
        if (lane == 0) matches_of[u * kWarps + warp] = __popc(votes[u]);
      }
      __syncthreads();
#pragma unroll
      for (int k = 0; k < kLooks * kWarps; ++k) {
        if (k % kWarps == warp) at[k / kWarps] = count;
        count += matches_of[k];
      }
#pragma unroll
      for (int u = 0; u < kLooks; ++u)
        if ((votes[u] >> lane & 1u) != 0)
          matches[at[u] + __popc(votes[u] & ((1u << lane) - 1u))] =
              base + u * kEmbeddingThreads + static_cast<int>(threadIdx.x);
      __syncthreads();
      int m = 0;
      for (; m + 4 <= count; m += 4) add_tokens.template operator()<4>(matches + m);
      for (; m < count; ++m) add_tokens.template operator()<1>(matches + m);
      __syncthreads();  // the list is used up before it is made again
    }
  }
  if (whole) {
    auto into = read<W>(to + column(0));
#pragma unroll
    for (int i = 0; i < W; ++i) into.v[i] += sum[i];
    write(to + column(0), into);
  } else {
#pragma unroll
    for (int i = 0; i < W; ++i)
      if (column(i) < cols) to[column(i)] += sum[i];
  }
}

// --- cross entropy ---------------------------------------------------------------------------------------

template <class A>
__device__ __forceinline__ SoftmaxState<A> from_lane(SoftmaxState<A> s, int offset) {
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
    for (int offset = 16; offset > 0; offset /= 2) s = softmax_merge(s, from_lane(s, offset));
    if (lane == 0) partial[warp] = s;
    __syncthreads();
    if (warp == 0) {
      s = lane < warps ? partial[lane] : SoftmaxState<A>{-INFINITY, A(0)};
      for (int offset = 16; offset > 0; offset /= 2) s = softmax_merge(s, from_lane(s, offset));
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

void rope(const RopeArgs& g) {
  const int half = g.head_dim / 2;
  SEXTANT_CHECK(g.x.cols == static_cast<std::int64_t>(g.heads) * g.head_dim && g.head_dim % 2 == 0 &&
                    g.cos.cols == half && g.sin.cols == half && !g.positions.empty(),
                "rope: extents disagree");
  SEXTANT_CHECK(g.x.rows <= INT32_MAX && g.x.cols <= INT32_MAX, "rope: at most 2^31 rows and columns");
  with_type(g.x.dtype, [&]<class T>() {
    using A = Accumulator<T>;
    const Rope<T> op{rows_of<T>(g.x),
                     rows_of<A>(g.cos),
                     rows_of<A>(g.sin),
                     g.positions.data(),
                     static_cast<unsigned>(g.positions.size()),
                     static_cast<unsigned>(half),
                     g.inverse ? A(-1) : A(1)};
    const bool wide = all_aligned(g.x, g.cos, g.sin) && half % Rope<T>::kWidth == 0;
    map(stream_of(g.stream), op, g.x.rows, 0, static_cast<std::int64_t>(g.heads) * half, wide, "rope");
  });
}

void swiglu_forward(const SwigluForwardArgs& g) {
  same_extents(g.gate, g.out, "swiglu: extents disagree"),
      same_extents(g.up, g.out, "swiglu: extents disagree");
  with_type(g.gate.dtype, [&]<class T>() {
    map(stream_of(g.stream), Swiglu<T>{rows_of<T>(g.gate), rows_of<T>(g.up), rows_of<T>(g.out)}, g.out.rows,
        0, g.out.cols, all_aligned(g.gate, g.up, g.out), "swiglu");
  });
}

void swiglu_backward(const SwigluBackwardArgs& g) {
  same_extents(g.gate, g.dout, "swiglu: extents disagree"),
      same_extents(g.up, g.dout, "swiglu: extents disagree");
  with_type(g.gate.dtype, [&]<class T>() {
    map(stream_of(g.stream), SwigluGradient<T>{rows_of<T>(g.gate), rows_of<T>(g.up), rows_of<T>(g.dout)},
        g.dout.rows, 0, g.dout.cols, all_aligned(g.gate, g.up, g.dout), "swiglu backward");
  });
}

void embedding_forward(const EmbeddingForwardArgs& g) {
  SEXTANT_CHECK(g.out.rows == static_cast<std::int64_t>(g.ids.size()) && g.out.cols == g.table.cols,
                "embedding: extents disagree");
  with_type(g.table.dtype, [&]<class T>() {
    map(stream_of(g.stream),
        Lookup<T>{g.ids.data(), rows_of<T>(g.table), rows_of<T>(g.out), g.first_id, g.table.rows}, g.out.rows,
        0, g.out.cols, all_aligned(g.table, g.out), "embedding");
  });
}

void embedding_backward(const EmbeddingBackwardArgs& g) {
  SEXTANT_CHECK(g.dout.rows == static_cast<std::int64_t>(g.ids.size()) && g.dout.cols == g.dtable.cols,
                "embedding: extents disagree");
  if (g.dout.elements() == 0) return;
  SEXTANT_CHECK(g.dout.rows <= INT32_MAX, "embedding: at most 2^31 tokens");
  CudaStream& s = stream_of(g.stream);
  const int n = static_cast<int>(g.dout.rows);
  const std::int64_t ends_bytes = 2 * g.dtable.rows * static_cast<std::int64_t>(sizeof(int));
  auto* ends = static_cast<int*>(scratch(s, ends_bytes));
  check(cudaMemsetAsync(ends, 0xff, static_cast<std::size_t>(ends_bytes), s.stream), "cudaMemsetAsync");
  embedding_ends_kernel<<<static_cast<unsigned>((n + 255) / 256), 256, 0, s.stream>>>(
      g.ids.data(), n, g.dtable.rows, g.first_id, ends);
  check_launch("ends of the embedding's tokens");
  with_type(g.dout.dtype, [&]<class T>() {
    constexpr std::int64_t kColumns = kEmbeddingThreads * kWidthOf<T, Accumulator<T>>;
    const dim3 grid(static_cast<unsigned>(n), static_cast<unsigned>((g.dout.cols + kColumns - 1) / kColumns));
    embedding_backward_kernel<T><<<grid, kEmbeddingThreads, 0, s.stream>>>(
        g.ids.data(), n, ends, rows_of<T>(g.dout), rows_of<Accumulator<T>>(g.dtable), g.dtable.rows,
        g.first_id, g.dout.cols, all_aligned(g.dout, g.dtable));
    check_launch("embedding backward");
  });
}

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

// Kernels over tokens: rotary embedding, SwiGLU, vocabulary lookups and cross entropy.
// All are bound by memory; none uses atomics, so sums have one order.
#include <cstdint>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/kernels.hpp"
#include "kernels/cuda/rows.cuh"

namespace sextant::cuda {
namespace {

// --- maps ------------------------------------------------------------------------------------------------

template <class T>
struct Swiglu {
  static constexpr int kWidth = kWidthOf<T>;
  Rows<T> gate, up, out;
  template <int W>
  __device__ void element(std::int64_t r, std::int64_t c) const {
    const auto g = read<W>(gate(r) + c), u = read<W>(up(r) + c);
    Pack<T, W> y;
#pragma unroll
    for (int i = 0; i < W; ++i) y.v[i] = narrow<T>(swiglu_element(widen(g.v[i]), widen(u.v[i])));
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
      swiglu_gradient(dgate, dup, activation);
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
    const std::int32_t position = positions[static_cast<unsigned>(r) % n_positions];
    const auto c = read<W>(cosine(position) + i), s = read<W>(sine(position) + i);
    T* first = x(r) + std::int64_t{2} * head * half + i;
    T* second = first + half;
    auto a = read<W>(first), b = read<W>(second);
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

template <class T>
struct CrossEntropyGradient {
  using A = Accumulator<T>;
  static constexpr int kWidth = kWidthOf<T, A>;
  Rows<A> logits, softmax;
  Rows<T> dlogits;
  const std::int32_t* targets;
  std::int64_t first_id, valid;
  A scale;
  template <int W>
  __device__ void element(std::int64_t r, std::int64_t c) const {
    const std::int32_t target = targets[r];
    const A highest = softmax(r)[0], inverse_sum = softmax(r)[1];
    const std::int64_t own = target - first_id;
    const auto x = read<W>(logits(r) + c);
    Pack<T, W> y;
#pragma unroll
    for (int i = 0; i < W; ++i) {
      const bool real = target != kIgnoreTarget && c + i < valid;
      y.v[i] = narrow<T>(
          real ? cross_entropy_gradient_element(x.v[i], highest, inverse_sum, c + i == own, scale) : A(0));
    }
    write(dlogits(r) + c, y);  // may be logits: the same elements
  }
};

// --- gradient of the vocabulary's rows -------------------------------------------------------------------

// A block per token. The block of the first token with an id adds up all tokens of that id, in their order, so that
// repeated tokens always add up the same way, and adds that sum to the row once, as on the CPU.
template <class T>
__global__ void __launch_bounds__(256)
    embedding_backward_kernel(const std::int32_t* ids, std::int64_t n, Rows<T> dout,
                              Rows<Accumulator<T>> dtable, std::int64_t slice, std::int64_t first_id,
                              std::int64_t cols, bool wide) {
  using A = Accumulator<T>;
  constexpr int W = kWidthOf<T, A>;
  const std::int64_t token = blockIdx.x;
  const std::int32_t id = ids[token];
  const std::int64_t row = id - first_id;
  if (row < 0 || row >= slice) return;
  bool seen = false;
  for (std::int64_t t = threadIdx.x; t < token; t += blockDim.x) seen = seen || ids[t] == id;
  if (__syncthreads_or(seen)) return;

  __shared__ std::int64_t matches[256];
  __shared__ int warp_count[8];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (std::int64_t chunk = 0; chunk < cols; chunk += blockDim.x * W) {  // W columns a thread
    const auto column = [&](int i) -> std::int64_t {
      return wide ? chunk + threadIdx.x * W + i : chunk + i * blockDim.x + threadIdx.x;
    };
    const bool whole = wide && column(W - 1) < cols;
    A sum[W] = {};
    for (std::int64_t base = token; base < n; base += blockDim.x) {
      const std::int64_t t = base + threadIdx.x;
      const bool match = t < n && ids[t] == id;
      const unsigned votes = __ballot_sync(0xffffffffu, match);
      if (lane == 0) warp_count[warp] = __popc(votes);
      __syncthreads();
      int before = 0, count = 0;
      for (int w = 0; w < 8; ++w) {
        if (w < warp) before += warp_count[w];
        count += warp_count[w];
      }
      if (match) matches[before + __popc(votes & ((1u << lane) - 1u))] = t;
      __syncthreads();
      for (int m = 0; m < count; ++m) {
        const T* from = dout(matches[m]);
        if (whole) {
          const auto x = read<W>(from + column(0));
#pragma unroll
          for (int i = 0; i < W; ++i) sum[i] += widen(x.v[i]);
        } else {
#pragma unroll
          for (int i = 0; i < W; ++i)
            if (column(i) < cols) sum[i] += widen(from[column(i)]);
        }
      }
      __syncthreads();  // the list is used up before it is made again
    }
    A* to = dtable(row);
    if (whole) {
      auto x = read<W>(to + column(0));
#pragma unroll
      for (int i = 0; i < W; ++i) x.v[i] += sum[i];
      write(to + column(0), x);
    } else {
#pragma unroll
      for (int i = 0; i < W; ++i)
        if (column(i) < cols) to[column(i)] += sum[i];
    }
  }
}

// --- cross entropy ---------------------------------------------------------------------------------------

template <class A>
__device__ __forceinline__ SoftmaxState<A> from_lane(SoftmaxState<A> s, int offset) {
  return {__shfl_xor_sync(0xffffffffu, s.highest, offset), __shfl_xor_sync(0xffffffffu, s.sum, offset)};
}

// Lanes may merge in either order: a merge is the same both ways but for which operand comes first in a sum of
// two, which addition does not mind.
template <class A>
__global__ void __launch_bounds__(1024)
    cross_entropy_stats_kernel(Rows<A> logits, const std::int32_t* targets, Rows<A> stats, std::int64_t rows,
                               std::int64_t valid, std::int64_t first_id, bool wide) {
  constexpr int W = kWidthOf<A>;
  __shared__ SoftmaxState<A> partial[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const A* x = logits(row);
    SoftmaxState<A> s{-INFINITY, A(0)};
    for_columns<W>(valid, wide, [&]<int N>(std::int64_t c) {
      const auto pack = read<N>(x + c);
#pragma unroll
      for (int i = 0; i < N; ++i) softmax_add(s, pack.v[i]);
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
        to[2] = target >= 0 && target < valid ? x[target] : A(0);
      }
    }
    __syncthreads();
  }
}

template <class A>
__global__ void __launch_bounds__(1024)
    cross_entropy_combine_kernel(Rows<A> stats, std::int64_t ranks, const std::int32_t* targets,
                                 Rows<A> softmax, std::int64_t rows, double* loss) {
  double sum_of_losses = 0;
  for (std::int64_t t = threadIdx.x; t < rows; t += blockDim.x) {
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
  if (threadIdx.x == 0 && loss) *loss += sum_of_losses;
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
  with_type(g.dout.dtype, [&]<class T>() {
    embedding_backward_kernel<T><<<static_cast<unsigned>(g.dout.rows), 256, 0, stream_of(g.stream).stream>>>(
        g.ids.data(), g.dout.rows, rows_of<T>(g.dout), rows_of<Accumulator<T>>(g.dtable), g.dtable.rows,
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
  const auto launch = [&]<class A>() {
    cross_entropy_stats_kernel<A><<<row_blocks(g.logits.rows), 1024, 0, stream_of(g.stream).stream>>>(
        rows_of<A>(g.logits), g.targets.data(), rows_of<A>(g.stats), g.logits.rows, valid, g.first_id,
        aligned(g.logits));
    check_launch("cross entropy");
  };
  g.logits.dtype == Dtype::fp64 ? launch.template operator()<double>() : launch.template operator()<float>();
}

void cross_entropy_combine(const CrossEntropyCombineArgs& g) {
  const std::int64_t rows = g.softmax.rows, ranks = rows ? g.stats.rows / rows : 0;
  SEXTANT_CHECK(g.stats.rows == ranks * rows && g.softmax.cols == 2 &&
                    rows == static_cast<std::int64_t>(g.targets.size()),
                "cross entropy: extents disagree");
  if (rows == 0) return;
  const auto launch = [&]<class A>() {
    cross_entropy_combine_kernel<A><<<1, 1024, 0, stream_of(g.stream).stream>>>(
        rows_of<A>(g.stats), ranks, g.targets.data(), rows_of<A>(g.softmax), rows, g.loss);
    check_launch("loss");
  };
  g.stats.dtype == Dtype::fp64 ? launch.template operator()<double>() : launch.template operator()<float>();
}

void cross_entropy_gradient(const CrossEntropyGradientArgs& g) {
  same_extents(g.dlogits, g.logits, "cross entropy: extents disagree");
  SEXTANT_CHECK(g.softmax.rows == g.logits.rows && g.softmax.cols == 2 &&
                    g.logits.rows == static_cast<std::int64_t>(g.targets.size()),
                "cross entropy: extents disagree");
  with_type(g.dlogits.dtype, [&]<class T>() {
    using A = Accumulator<T>;
    map(stream_of(g.stream),
        CrossEntropyGradient<T>{rows_of<A>(g.logits), rows_of<A>(g.softmax), rows_of<T>(g.dlogits),
                                g.targets.data(), g.first_id,
                                valid_columns(g.logits.cols, g.first_id, g.vocab), static_cast<A>(g.scale)},
        g.logits.rows, 0, g.logits.cols, all_aligned(g.logits, g.dlogits), "cross entropy gradient");
  });
}

}  // namespace sextant::cuda

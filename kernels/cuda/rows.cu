// Kernels over tokens: rotary embedding, SwiGLU and vocabulary lookups.
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
      g.v[i] = narrow<T>(dgate);
      u.v[i] = narrow<T>(dup);
      d.v[i] = narrow<T>(activation);
    }
    write(gate(r) + c, g);
    write(up(r) + c, u);
    write(dout(r) + c, d);
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
      a.v[k] = narrow<T>(u);
      b.v[k] = narrow<T>(v);
    }
    write(first, a);
    write(second, b);
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
constexpr int kLooks = 4;   // tokens that a thread looks at, at a time
constexpr int kChunks = 4;  // packs of a row that a thread adds

// A block per token and range of columns. The block of the first token with an id adds up all tokens of that id, in their
// order, so that repeated tokens always add up the same way, and adds that sum to the row once, as on the CPU. W columns are
// read together: those of a pack, where rows are whole packs, or one.
// Longer than others: one kernel; its parts share what the block found of the tokens.
template <class T, int W>
__global__ void __launch_bounds__(kEmbeddingThreads, 4)
    embedding_backward_kernel(const std::int32_t* ids, int n, const int* ends, Rows<T> dout,
                              Rows<Accumulator<T>> dtable, std::int64_t slice, std::int64_t first_id,
                              int cols) {
  using A = Accumulator<T>;
  const int first = static_cast<int>(blockIdx.x);
  const std::int32_t id = ids[first];
  const std::int64_t row = id - first_id;
  if (row < 0 || row >= slice) return;
  const auto of_row = read<2>(ends + 2 * row);
  if (of_row.v[0] != n - 1 - first) return;
  const int last = of_row.v[1];

  // Columns of a thread: kChunks packs, all of them under way together; or so many single ones.
  const int from =
      static_cast<int>(blockIdx.y) * kChunks * kEmbeddingThreads * W + static_cast<int>(threadIdx.x) * W;
  const auto column = [&](int k) { return from + k * kEmbeddingThreads * W; };
  A* const to = dtable(row);
  A sum[kChunks][W] = {};
  const auto add_tokens = [&]<int N>(const int* tokens) {  // whose rows are read together and added in order
    Pack<T, W> x[N][kChunks];
#pragma unroll
    for (int m = 0; m < N; ++m) {
      const T* const of_token = dout(tokens[m]);
#pragma unroll
      for (int k = 0; k < kChunks; ++k)
        if (column(k) < cols) x[m][k] = read<W>(of_token + column(k));
    }
#pragma unroll
    for (int m = 0; m < N; ++m)
#pragma unroll
      for (int k = 0; k < kChunks; ++k)
#pragma unroll
        for (int i = 0; i < W; ++i) sum[k][i] += widen(x[m][k].v[i]);
  };
  Pack<A, W> into[kChunks];
  const auto fetch = [&] {
#pragma unroll
    for (int k = 0; k < kChunks; ++k)
      if (column(k) < cols) into[k] = read<W>(to + column(k));
  };

  if (first == last) {  // most tokens: both rows are under way together
    fetch();
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
      constexpr int kTogether = sizeof(T) == 2 ? 2 : 1;  // as registers have it
      int m = 0;
      for (; m + kTogether <= count; m += kTogether) add_tokens.template operator()<kTogether>(matches + m);
      for (; m < count; ++m) add_tokens.template operator()<1>(matches + m);
      __syncthreads();  // the list is used up before it is made again
    }
    fetch();
  }
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    if (column(k) >= cols) continue;
#pragma unroll
    for (int i = 0; i < W; ++i) into[k].v[i] += sum[k][i];
    write(to + column(k), into[k]);
  }
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
  same_extents(g.gate, g.out, "swiglu: extents disagree");
  same_extents(g.up, g.out, "swiglu: extents disagree");
  with_type(g.gate.dtype, [&]<class T>() {
    map(stream_of(g.stream), Swiglu<T>{rows_of<T>(g.gate), rows_of<T>(g.up), rows_of<T>(g.out)}, g.out.rows,
        0, g.out.cols, all_aligned(g.gate, g.up, g.out), "swiglu");
  });
}

void swiglu_backward(const SwigluBackwardArgs& g) {
  same_extents(g.gate, g.dout, "swiglu: extents disagree");
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
    using A = Accumulator<T>;
    const auto launch = [&]<int W>() {
      constexpr std::int64_t kColumns = kChunks * kEmbeddingThreads * W;
      const dim3 grid(static_cast<unsigned>(n),
                      static_cast<unsigned>((g.dout.cols + kColumns - 1) / kColumns));
      embedding_backward_kernel<T, W><<<grid, kEmbeddingThreads, 0, s.stream>>>(
          g.ids.data(), n, ends, rows_of<T>(g.dout), rows_of<A>(g.dtable), g.dtable.rows, g.first_id,
          static_cast<int>(g.dout.cols));
    };
    constexpr int kWide = kWidthOfWidest<T, A>;
    if (all_aligned(g.dout, g.dtable) && g.dout.cols % kWide == 0)
      launch.template operator()<kWide>();
    else
      launch.template operator()<1>();
    check_launch("embedding backward");
  });
}

}  // namespace sextant::cuda

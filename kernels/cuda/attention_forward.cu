// Causal attention in tiles, plain: the cross-check of the library's kernel, and what runs where it has none
// (fp32, fp64, context parallelism, odd heads). The mathematics are those of kernels/cpu/attention.cpp. Dot
// products run on the ordinary cores in the accumulator's format. Nothing is added atomically: dq has one block
// per query tile, dk and dv one per key tile that goes over the query heads and tiles in order.
#include "kernels/cuda/attention_tiles.cuh"

namespace sextant::cuda {
namespace {

// One block: the queries of one tile of one head.
// Longer than others: one kernel; its parts share registers and tiles.
template <class T, int kColumns>
__global__ void __launch_bounds__(kThreads)
    attention_forward_kernel(Extents e, Rows<T> q, Rows<T> k, Rows<T> v, Rows<T> out,
                             Rows<Accumulator<T>> lse, Accumulator<T> scale, const Accumulator<T>* slopes) {
  using A = Accumulator<T>;
  constexpr int kPart = kColumns / 32;  // columns of a row that a lane holds
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  using Tiles = Tile<A, kColumns>;
  const Tiles qs{reinterpret_cast<A*>(shared_bytes)}, ks{qs.data + Tiles::kElements},
      vs{ks.data + Tiles::kElements};
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int head = blockIdx.y, kv_head = head / (e.heads / e.kv_heads);
  const std::int64_t b = blockIdx.z;
  const std::int64_t q0 = (static_cast<std::int64_t>(gridDim.x) - 1 - blockIdx.x) * kTile;  // longest first

  load_tile<T, kColumns>(qs, e.d, scale, [&](int i) -> const T* {
    return q0 + i < e.seq_q ? q(b * e.seq_q + q0 + i) + head * e.d : nullptr;
  });
  const Seen own = e.seen(b, q0 + lane);
  const std::int32_t earliest = warp_min(own.first), latest = warp_max(own.last);
  const A slope = slope_of(slopes, head);
  Seen seen[kPerWarp];
  A highest[kPerWarp], sum[kPerWarp], o[kPerWarp][kPart];
#pragma unroll
  for (int i = 0; i < kPerWarp; ++i) {
    seen[i] = from_query(own, warp * kPerWarp + i);
    highest[i] = -INFINITY;
    sum[i] = 0;
#pragma unroll
    for (int j = 0; j < kPart; ++j) o[i][j] = 0;
  }

  for (std::int64_t k0 = 0; k0 < e.seq_k; k0 += kTile) {
    const std::int32_t key = e.key(k0 + lane);
    if (warp_min(key) > latest || warp_last_key(key) < earliest) continue;  // the same in every warp
    __syncthreads();                                                        // the tiles before are used up
    const auto key_row = [&](const Rows<T>& x, int i) -> const T* {
      return k0 + i < e.seq_k ? x(e.key_row(b, k0 + i)) + kv_head * e.d : nullptr;
    };
    load_tile<T, kColumns>(ks, e.d, A(1), [&](int i) { return key_row(k, i); });
    load_tile<T, kColumns>(vs, e.d, A(1), [&](int i) { return key_row(v, i); });
    __syncthreads();
    A p[kPerWarp];
#pragma unroll
    for (int i = 0; i < kPerWarp; ++i) p[i] = 0;
    for (int c = 0; c < e.d; ++c) {
      const A x = ks(lane, c);
#pragma unroll
      for (int i = 0; i < kPerWarp; ++i) p[i] += qs(warp * kPerWarp + i, c) * x;
    }
#pragma unroll
    for (int i = 0; i < kPerWarp; ++i) {
      p[i] = seen[i](key) ? p[i] + slope * A(key - seen[i].last) : -INFINITY;
      const A before = highest[i], tile_highest = warp_highest(p[i]);
      highest[i] = tile_highest > before ? tile_highest : before;
      const A shift = shift_of(highest[i]), factor = exponential(before - shift);
      p[i] = exponential(p[i] - shift);
      sum[i] = sum[i] * factor + warp_sum(p[i]);
#pragma unroll
      for (int j = 0; j < kPart; ++j) o[i][j] *= factor;
    }
    for (int key_lane = 0; key_lane < kTile; ++key_lane) {
      A x[kPart];
#pragma unroll
      for (int j = 0; j < kPart; ++j) x[j] = vs(key_lane, lane + 32 * j);
#pragma unroll
      for (int i = 0; i < kPerWarp; ++i) {
        const A weight = __shfl_sync(0xffffffffu, p[i], key_lane);
#pragma unroll
        for (int j = 0; j < kPart; ++j) o[i][j] += weight * x[j];
      }
    }
  }

#pragma unroll
  for (int i = 0; i < kPerWarp; ++i) {
    const std::int64_t at = q0 + warp * kPerWarp + i;
    if (at >= e.seq_q) continue;
    const A inverse = sum[i] > 0 ? 1 / sum[i] : A(0);
    T* to = out(b * e.seq_q + at) + head * e.d;
#pragma unroll
    for (int j = 0; j < kPart; ++j)
      if (lane + 32 * j < e.d) to[lane + 32 * j] = narrow<T>(o[i][j] * inverse);
    if (lane == 0) lse(b * e.seq_q + at)[head] = highest[i] + log(sum[i]);
  }
}

}  // namespace

void attention_forward_tiles(const AttentionForwardArgs& g) {
  const Extents e = extents_of(g.shape, g.q, g.k, g.v, g.out);
  if (g.q.rows == 0) return;
  with_columns(g.q, e.d, [&]<class T, int kColumns>() {
    using A = Accumulator<T>;
    const auto kernel = attention_forward_kernel<T, kColumns>;
    const std::size_t shared =
        allow_shared(kernel, g.q, e.d, stream_of(g.stream), 3 * Tile<A, kColumns>::kElements * sizeof(A));
    kernel<<<grid(e.seq_q, e.heads, e.batch), kThreads, shared, stream_of(g.stream).stream>>>(
        e, rows_of<T>(g.q), rows_of<T>(g.k), rows_of<T>(g.v), rows_of<T>(g.out), rows_of<A>(g.lse),
        static_cast<A>(g.shape.scale), slopes_of<A>(g.shape));
    check_launch("attention forward");
  });
}

}  // namespace sextant::cuda

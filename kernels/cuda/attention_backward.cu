// The backward pass of kernels/cuda/attention_forward.cu.
#include "kernels/cuda/attention_tiles.cuh"

namespace sextant::cuda {
namespace {

// Sum over a row of dout * out, and the finite log-sum-exp; of a query that sees no key any finite number serves.
template <class T>
struct Saved {
  using A = Accumulator<T>;
  Rows<T> out, dout;
  Rows<A> lse;
  __device__ __forceinline__ A product(std::int64_t row, int head, int d) const {
    const int lane = threadIdx.x % 32;
    const T *x = out(row) + head * d, *y = dout(row) + head * d;
    A sum = 0;
    for (int c = lane; c < d; c += 32) sum += widen(x[c]) * widen(y[c]);
    return warp_sum(sum);
  }
  __device__ __forceinline__ A finite_lse(std::int64_t row, int head) const {
    const A value = lse(row)[head];
    return value == -INFINITY ? A(0) : value;
  }
};

// dQ = scale * dS K with dS = P * (dO V^T - rowsum(dO O)). One block: the queries of one tile of one head.
// Longer than others: one kernel; its parts share registers and tiles.
template <class T, int kColumns>
__global__ void __launch_bounds__(kThreads)
    attention_dq_kernel(Extents e, Rows<T> q, Rows<T> k, Rows<T> v, Saved<T> saved, Rows<T> dq,
                        Accumulator<T> scale, const Accumulator<T>* slopes) {
  using A = Accumulator<T>;
  constexpr int kPart = kColumns / 32;
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  using Tiles = Tile<A, kColumns>;
  const Tiles qs{reinterpret_cast<A*>(shared_bytes)}, dos{qs.data + Tiles::kElements},
      ks{dos.data + Tiles::kElements}, vs{ks.data + Tiles::kElements};
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int head = blockIdx.y, kv_head = head / (e.heads / e.kv_heads);
  const std::int64_t b = blockIdx.z;
  const std::int64_t q0 = (static_cast<std::int64_t>(gridDim.x) - 1 - blockIdx.x) * kTile;

  const auto query_row = [&](const Rows<T>& x, int i) -> const T* {
    return q0 + i < e.seq_q ? x(b * e.seq_q + q0 + i) + head * e.d : nullptr;
  };
  load_tile<T, kColumns>(qs, e.d, scale, [&](int i) { return query_row(q, i); });
  load_tile<T, kColumns>(dos, e.d, A(1), [&](int i) { return query_row(saved.dout, i); });
  const Seen own = e.seen(b, q0 + lane);
  const std::int32_t earliest = warp_min(own.first), latest = warp_max(own.last);
  const A slope = slope_of(slopes, head);
  Seen seen[kPerWarp];
  A total[kPerWarp], correction[kPerWarp], sum[kPerWarp][kPart];
#pragma unroll
  for (int i = 0; i < kPerWarp; ++i) {
    seen[i] = from_query(own, warp * kPerWarp + i);
    const std::int64_t at = q0 + warp * kPerWarp + i;
    const std::int64_t row = b * e.seq_q + (at < e.seq_q ? at : q0);
    total[i] = saved.finite_lse(row, head);
    correction[i] = saved.product(row, head, e.d);
#pragma unroll
    for (int j = 0; j < kPart; ++j) sum[i][j] = 0;
  }

  for (std::int64_t k0 = 0; k0 < e.seq_k; k0 += kTile) {
    const std::int32_t key = e.key(k0 + lane);
    if (warp_min(key) > latest || warp_last_key(key) < earliest) continue;
    __syncthreads();
    const auto key_row = [&](const Rows<T>& x, int i) -> const T* {
      return k0 + i < e.seq_k ? x(e.key_row(b, k0 + i)) + kv_head * e.d : nullptr;
    };
    load_tile<T, kColumns>(ks, e.d, A(1), [&](int i) { return key_row(k, i); });
    load_tile<T, kColumns>(vs, e.d, A(1), [&](int i) { return key_row(v, i); });
    __syncthreads();
    A p[kPerWarp], ds[kPerWarp];
#pragma unroll
    for (int i = 0; i < kPerWarp; ++i) p[i] = ds[i] = 0;
    for (int c = 0; c < e.d; ++c) {
      const A x = ks(lane, c), y = vs(lane, c);
#pragma unroll
      for (int i = 0; i < kPerWarp; ++i) {
        p[i] += qs(warp * kPerWarp + i, c) * x;
        ds[i] += dos(warp * kPerWarp + i, c) * y;
      }
    }
#pragma unroll
    for (int i = 0; i < kPerWarp; ++i) {
      p[i] = seen[i](key) ? exponential(p[i] + slope * A(key - seen[i].last) - total[i]) : A(0);
      ds[i] = p[i] * (ds[i] - correction[i]);
    }
    for (int key_lane = 0; key_lane < kTile; ++key_lane) {
      A x[kPart];
#pragma unroll
      for (int j = 0; j < kPart; ++j) x[j] = ks(key_lane, lane + 32 * j);
#pragma unroll
      for (int i = 0; i < kPerWarp; ++i) {
        const A weight = __shfl_sync(0xffffffffu, ds[i], key_lane);
#pragma unroll
        for (int j = 0; j < kPart; ++j) sum[i][j] += weight * x[j];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kPerWarp; ++i) {
    const std::int64_t at = q0 + warp * kPerWarp + i;
    if (at >= e.seq_q) continue;
    T* to = dq(b * e.seq_q + at) + head * e.d;
#pragma unroll
    for (int j = 0; j < kPart; ++j)
      if (lane + 32 * j < e.d) to[lane + 32 * j] = narrow<T>(sum[i][j] * scale);
  }
}

// dV = P^T dO, dK = scale * dS^T Q. One block: the keys of one tile of one key head, over all query heads that
// share it. Warps hold keys, lanes are queries.
// Longer than others: one kernel; its parts share registers and tiles.
template <class T, int kColumns>
__global__ void __launch_bounds__(kThreads)
    attention_dkv_kernel(Extents e, Rows<T> q, Rows<T> k, Rows<T> v, Saved<T> saved, Rows<T> dk, Rows<T> dv,
                         Accumulator<T> scale, const Accumulator<T>* slopes) {
  using A = Accumulator<T>;
  constexpr int kPart = kColumns / 32;
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  using Tiles = Tile<A, kColumns>;
  const Tiles qs{reinterpret_cast<A*>(shared_bytes)}, dos{qs.data + Tiles::kElements},
      ks{dos.data + Tiles::kElements}, vs{ks.data + Tiles::kElements};
  A* const totals = vs.data + Tiles::kElements;  // [kTile] of the queries
  A* const corrections = totals + kTile;         // [kTile]
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int kv_head = blockIdx.y, group = e.heads / e.kv_heads;
  const std::int64_t b = blockIdx.z, k0 = static_cast<std::int64_t>(blockIdx.x) * kTile;

  const auto key_row = [&](const Rows<T>& x, int i) {
    return k0 + i < e.seq_k ? x(e.key_row(b, k0 + i)) + kv_head * e.d : nullptr;
  };
  load_tile<T, kColumns>(ks, e.d, A(1), [&](int i) -> const T* { return key_row(k, i); });
  load_tile<T, kColumns>(vs, e.d, A(1), [&](int i) -> const T* { return key_row(v, i); });
  const std::int32_t own = e.key(k0 + lane);
  const std::int32_t earliest = warp_min(own), latest = warp_last_key(own);
  std::int32_t position[kPerWarp];
  A sum_k[kPerWarp][kPart], sum_v[kPerWarp][kPart];
#pragma unroll
  for (int i = 0; i < kPerWarp; ++i) {
    position[i] = __shfl_sync(0xffffffffu, own, warp * kPerWarp + i);
#pragma unroll
    for (int j = 0; j < kPart; ++j) sum_k[i][j] = sum_v[i][j] = 0;
  }

  for (int member = 0; member < group; ++member) {
    const int head = kv_head * group + member;
    const A slope = slope_of(slopes, head);
    for (std::int64_t q0 = 0; q0 < e.seq_q; q0 += kTile) {
      const Seen seen = e.seen(b, q0 + lane);
      if (warp_max(seen.last) < earliest || warp_min(seen.first) > latest) continue;
      __syncthreads();
      const auto query_row = [&](const Rows<T>& x, int i) -> const T* {
        return q0 + i < e.seq_q ? x(b * e.seq_q + q0 + i) + head * e.d : nullptr;
      };
      load_tile<T, kColumns>(qs, e.d, scale, [&](int i) { return query_row(q, i); });
      load_tile<T, kColumns>(dos, e.d, A(1), [&](int i) { return query_row(saved.dout, i); });
      for (int i = warp; i < kTile; i += kWarps) {
        const std::int64_t row = b * e.seq_q + (q0 + i < e.seq_q ? q0 + i : q0);
        const A product = saved.product(row, head, e.d);
        if (lane == 0) {
          totals[i] = saved.finite_lse(row, head);
          corrections[i] = product;
        }
      }
      __syncthreads();
      A p[kPerWarp], ds[kPerWarp];
#pragma unroll
      for (int i = 0; i < kPerWarp; ++i) p[i] = ds[i] = 0;
      for (int c = 0; c < e.d; ++c) {
        const A x = qs(lane, c), y = dos(lane, c);
#pragma unroll
        for (int i = 0; i < kPerWarp; ++i) {
          p[i] += ks(warp * kPerWarp + i, c) * x;
          ds[i] += vs(warp * kPerWarp + i, c) * y;
        }
      }
      const A total = totals[lane], correction = corrections[lane];
#pragma unroll
      for (int i = 0; i < kPerWarp; ++i) {
        p[i] = seen(position[i]) ? exponential(p[i] + slope * A(position[i] - seen.last) - total) : A(0);
        ds[i] = p[i] * (ds[i] - correction);
      }
      for (int query_lane = 0; query_lane < kTile; ++query_lane) {
        A x[kPart], y[kPart];
#pragma unroll
        for (int j = 0; j < kPart; ++j) {
          x[j] = qs(query_lane, lane + 32 * j);
          y[j] = dos(query_lane, lane + 32 * j);
        }
#pragma unroll
        for (int i = 0; i < kPerWarp; ++i) {
          const A weight_k = __shfl_sync(0xffffffffu, ds[i], query_lane),
                  weight_v = __shfl_sync(0xffffffffu, p[i], query_lane);
#pragma unroll
          for (int j = 0; j < kPart; ++j) {
            sum_k[i][j] += weight_k * x[j];
            sum_v[i][j] += weight_v * y[j];
          }
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kPerWarp; ++i) {
    const std::int64_t at = k0 + warp * kPerWarp + i;
    if (at >= e.seq_k) continue;
    const std::int64_t row = e.key_row(b, at);
    T *to_k = dk(row) + kv_head * e.d, *to_v = dv(row) + kv_head * e.d;
#pragma unroll
    for (int j = 0; j < kPart; ++j)
      if (lane + 32 * j < e.d) {
        to_k[lane + 32 * j] = narrow<T>(sum_k[i][j]);  // q carries the scale already
        to_v[lane + 32 * j] = narrow<T>(sum_v[i][j]);
      }
  }
}

}  // namespace

void attention_backward_tiles(const AttentionBackwardArgs& g) {
  const Extents e = extents_of(g.shape, g.q, g.k, g.v, g.out);
  if (g.q.rows == 0) return;
  with_columns(g.q, e.d, [&]<class T, int kColumns>() {
    using A = Accumulator<T>;
    const CudaStream& s = stream_of(g.stream);
    const Saved<T> saved{rows_of<T>(g.out), rows_of<T>(g.dout), rows_of<A>(g.lse)};
    const std::size_t tiles = 4 * Tile<A, kColumns>::kElements * sizeof(A);
    const auto dq = attention_dq_kernel<T, kColumns>;
    dq<<<grid(e.seq_q, e.heads, e.batch), kThreads, allow_shared(dq, g.q, e.d, s, tiles), s.stream>>>(
        e, rows_of<T>(g.q), rows_of<T>(g.k), rows_of<T>(g.v), saved, rows_of<T>(g.dq),
        static_cast<A>(g.shape.scale), slopes_of<A>(g.shape));
    check_launch("attention dq");
    const auto dkv = attention_dkv_kernel<T, kColumns>;
    dkv<<<grid(e.seq_k, e.kv_heads, e.batch), kThreads,
          allow_shared(dkv, g.q, e.d, s, tiles + 2 * kTile * sizeof(A)), s.stream>>>(
        e, rows_of<T>(g.q), rows_of<T>(g.k), rows_of<T>(g.v), saved, rows_of<T>(g.dk), rows_of<T>(g.dv),
        static_cast<A>(g.shape.scale), slopes_of<A>(g.shape));
    check_launch("attention dkv");
  });
}

}  // namespace sextant::cuda

// Sums and maxima of parts, one from each rank that shares a GPU: in pairs by place, in one order.
#include <algorithm>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/kernels.hpp"

namespace sextant::cuda {
namespace {

struct Parts {
  const void* part[kMaxParts];
};
constexpr int kPartLevels = 7;
static_assert(kMaxParts < 1 << kPartLevels);

template <bool kMaximum, class A>
__device__ __forceinline__ A combined(A a, A b) {
  if constexpr (kMaximum)
    return a < b || b != b ? b : a;  // a NaN wins
  else
    return a + b;
}

// Parts p, p + 1, ... p + N - 1 of a pack, in pairs by place; N is a power of two.
template <bool kMaximum, int N, class A, int W, class T>
__device__ __forceinline__ void reduce_pairs(const Pack<T, W>* x, A (&sum)[W]) {
  if constexpr (N == 1) {
#pragma unroll
    for (int i = 0; i < W; ++i) sum[i] = widen(x[0].v[i]);
  } else {
    A right[W];
    reduce_pairs<kMaximum, N / 2>(x, sum);
    reduce_pairs<kMaximum, N / 2>(x + N / 2, right);
#pragma unroll
    for (int i = 0; i < W; ++i) sum[i] = combined<kMaximum>(sum[i], right[i]);
  }
}

// Up to eight parts, all of them under way together: what is left of eight is four, two and one, as a binary counter has it.
template <class T, bool kMaximum>
struct ReduceFew {
  using A = Accumulator<T>;
  static constexpr int kWidth = kWidthOf<T>;
  Parts parts;
  int n;
  T* out;
  template <int N, int W>
  __device__ void fetch(int first, std::int64_t c, A (&sum)[W]) const {
    Pack<T, W> x[N];
#pragma unroll
    for (int p = 0; p < N; ++p) x[p] = read<W>(static_cast<const T*>(parts.part[first + p]) + c);
    reduce_pairs<kMaximum, N>(x, sum);
  }
  template <int W>
  __device__ void element(std::int64_t, std::int64_t c) const {
    A sum[W];
    if (n == 8) {
      fetch<8>(0, c, sum);
    } else if (n == 4) {
      fetch<4>(0, c, sum);
    } else if (n == 2) {
      fetch<2>(0, c, sum);
    } else {
      // From the last part on: what comes before is the left of a pair.
      bool some = false;
      const auto put = [&](A(&left)[W]) {
#pragma unroll
        for (int i = 0; i < W; ++i) sum[i] = some ? combined<kMaximum>(left[i], sum[i]) : left[i];
        some = true;
      };
      A left[W];
      if ((n & 1) != 0) {
        fetch<1>(n - 1, c, left);
        put(left);
      }
      if ((n & 2) != 0) {
        fetch<2>(n & 4, c, left);
        put(left);
      }
      if ((n & 4) != 0) {
        fetch<4>(0, c, left);
        put(left);
      }
    }
    Pack<T, W> y;
#pragma unroll
    for (int i = 0; i < W; ++i) y.v[i] = narrow<T>(sum[i]);
    write(out + c, y);
  }
};

template <class T, bool kMaximum>
struct Reduce {
  static constexpr int kWidth = kWidthOf<T>;
  Parts parts;
  int n;
  T* out;
  template <int W>
  __device__ void element(std::int64_t, std::int64_t c) const {
    using A = Accumulator<T>;
    // held[k]: the reduction of the last 2^k parts, while bit k of the number of parts so far is set.
    A held[kPartLevels][W];
    for (int p = 0; p < n; ++p) {
      const auto x = read<W>(static_cast<const T*>(parts.part[p]) + c);
#pragma unroll
      for (int i = 0; i < W; ++i) {
        A value = widen(x.v[i]);
        bool carry = true;
#pragma unroll
        for (int k = 0; k < kPartLevels; ++k) {
          const bool full = ((p >> k) & 1) != 0;
          if (carry && full) value = combined<kMaximum>(held[k][i], value);
          if (carry && !full) held[k][i] = value;
          carry = carry && full;
        }
      }
    }
    A sum[W];
#pragma unroll
    for (int i = 0; i < W; ++i) {
      bool some = false;
#pragma unroll
      for (int k = 0; k < kPartLevels; ++k) {
        if (((n >> k) & 1) == 0) continue;
        sum[i] = some ? combined<kMaximum>(held[k][i], sum[i]) : held[k][i];
        some = true;
      }
    }
    Pack<T, W> y;
#pragma unroll
    for (int i = 0; i < W; ++i) y.v[i] = narrow<T>(sum[i]);
    write(out + c, y);
  }
};

}  // namespace

void reduce_in_order(std::span<const void* const> parts, void* out, std::int64_t count, Dtype dtype,
                     bool maximum, NativeStream stream) {
  SEXTANT_CHECK(!parts.empty() && parts.size() <= kMaxParts, "a sum of 1 to 64 parts");
  Parts all{};
  bool wide = reinterpret_cast<std::uintptr_t>(out) % 16 == 0;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    all.part[p] = parts[p];
    wide = wide && reinterpret_cast<std::uintptr_t>(parts[p]) % 16 == 0;
  }
  with_type(dtype, [&]<class T>() {
    const int n = static_cast<int>(parts.size());
    const auto few = [&]<bool kMaximum>() {
      map(stream_of(stream), ReduceFew<T, kMaximum>{all, n, static_cast<T*>(out)}, 1, 0, count, wide,
          "reduce");
    };
    if (n <= 8) return maximum ? few.template operator()<true>() : few.template operator()<false>();
    if (maximum)
      map(stream_of(stream), Reduce<T, true>{all, n, static_cast<T*>(out)}, 1, 0, count, wide, "reduce");
    else
      map(stream_of(stream), Reduce<T, false>{all, n, static_cast<T*>(out)}, 1, 0, count, wide, "reduce");
  });
}

}  // namespace sextant::cuda

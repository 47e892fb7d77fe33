// Casts to fp8: one pass that looks for each operand's largest value, one that reads it again and writes its codes, turned
// where a GEMM wants them so (through shared memory); and the GEMM of codes without a library.
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/fp8.hpp"

namespace sextant::cuda {
namespace {

constexpr int kFp8Threads = 256, kPack = 8;  // bf16 that are read at once

__device__ __forceinline__ unsigned larger(unsigned a, unsigned b) { return a > b ? a : b; }

struct Source {
  const Bfloat16* data;
  std::int64_t stride;
  unsigned rows, cols;  // extents of a matrix fit 32 bits, its packs too
};
// What is looked through at once: a, and the parts of b.
struct Search {
  static constexpr int kMost = 1 + Fp8Largest::kMostParts;
  Source source[kMost];
  std::uint32_t* words[kMost];
  int count = 0;
};

Source source_of(const TensorView& x) {
  SEXTANT_CHECK(x.rows < (std::int64_t{1} << 31) && x.cols < (std::int64_t{1} << 31), "fp8: extents");
  const bool flat = x.contiguous() && x.elements() < (std::int64_t{1} << 31);
  return {x.row<Bfloat16>(), x.stride, flat ? 1u : static_cast<unsigned>(x.rows),
          static_cast<unsigned>(flat ? x.elements() : x.cols)};
}

__global__ void __launch_bounds__(kFp8Threads) fp8_largest_kernel(Search search) {
  __shared__ unsigned partial[32];
  Source x = search.source[0];
  std::uint32_t* words = search.words[0];
#pragma unroll
  for (int i = 1; i < Search::kMost; ++i)
    if (blockIdx.y == static_cast<unsigned>(i)) {
      x = search.source[i];
      words = search.words[i];
    }
  const unsigned packs = x.cols / kPack;
  const std::int64_t all = static_cast<std::int64_t>(packs) * x.rows;
  unsigned most = 0;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kFp8Threads + threadIdx.x; i < all;
       i += static_cast<std::int64_t>(Fp8Largest::kWords) * kFp8Threads) {
    const std::int64_t row = x.rows == 1 ? 0 : i / packs;
    const auto pack = read<kPack>(x.data + row * x.stride + (i - row * packs) * kPack);
#pragma unroll
    for (int j = 0; j < kPack; ++j) most = larger(most, static_cast<unsigned>(pack.v[j].bits) & 0x7fffu);
  }
  for (int offset = 16; offset > 0; offset /= 2) most = larger(most, from_lane(most, offset));
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = most;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (unsigned warp = 1; warp < kFp8Threads / 32; ++warp) most = larger(most, partial[warp]);
  words[blockIdx.x] = most;
}

// The scale of an operand from what was found, the same for every thread of a block.
struct Found {
  const std::uint32_t* words;
  int count;    // a multiple of kFp8Threads
  float* down;  // out
};
__device__ __forceinline__ fp8::Scale scale_in(const Found& found, Fp8 format) {
  __shared__ unsigned partial[32];
  unsigned most = 0;
  for (int i = threadIdx.x; i < found.count; i += kFp8Threads) most = larger(most, found.words[i]);
  for (int offset = 16; offset > 0; offset /= 2) most = larger(most, from_lane(most, offset));
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = most;
  __syncthreads();
  for (unsigned warp = 0; warp < kFp8Threads / 32; ++warp) most = larger(most, partial[warp]);
  const fp8::Scale scale = fp8::scale_of(most, format);
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *found.down = scale.down;
  return scale;
}

// Two codes, the first in the low byte.
template <Fp8 F>
__device__ __forceinline__ unsigned code_pair(float first, float second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  unsigned short both;
  if constexpr (F == Fp8::e4m3)
    asm("{cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;}\n" : "=h"(both) : "f"(first), "f"(second));
  else
    asm("{cvt.rn.satfinite.e5m2x2.f32 %0, %2, %1;}\n" : "=h"(both) : "f"(first), "f"(second));
  return both;
#else
  return fp8::encode(first, F) | static_cast<unsigned>(fp8::encode(second, F)) << 8;
#endif
}
template <Fp8 F>
__device__ __forceinline__ void encode_pack(const Pack<Bfloat16, kPack>& pack, float up, unsigned* words) {
#pragma unroll
  for (int w = 0; w < kPack / 4; ++w)
    words[w] = code_pair<F>(widen(pack.v[4 * w]) * up, widen(pack.v[4 * w + 1]) * up) |
               code_pair<F>(widen(pack.v[4 * w + 2]) * up, widen(pack.v[4 * w + 3]) * up) << 16;
}

struct alignas(16) Words {
  unsigned w[4];
};
struct alignas(8) Words2 {
  unsigned w[2];
};

// As it lies: 16 elements a thread.
template <Fp8 F>
__global__ void __launch_bounds__(kFp8Threads) fp8_rows_kernel(Source x, Found found, std::uint8_t* codes) {
  const float up = scale_in(found, F).up;
  const unsigned packs = x.cols / 16;
  const std::int64_t all = static_cast<std::int64_t>(packs) * x.rows;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kFp8Threads + threadIdx.x; i < all;
       i += static_cast<std::int64_t>(gridDim.x) * kFp8Threads) {
    const std::int64_t row = x.rows == 1 ? 0 : i / packs;
    const Bfloat16* from = x.data + row * x.stride + (i - row * packs) * 16;
    const auto low = read<kPack>(from), high = read<kPack>(from + kPack);
    Words out;
    encode_pack<F>(low, up, out.w);
    encode_pack<F>(high, up, out.w + 2);
    *reinterpret_cast<Words*>(codes + i * 16) = out;
  }
}

// Turned, and as it lies where both are wanted, in tiles of 128 x 128. A thread reads 8 columns of 4 rows and writes a word of 4 rows for each column, in a place
// that no other lane's bank has (a column's words are shuffled by its number); then 16 rows of a column are written together.
constexpr int kCodeTile = 128;
template <Fp8 F, bool kBoth>
__global__ void __launch_bounds__(kFp8Threads)
    fp8_turned_kernel(Source x, Found found, std::uint8_t* codes, std::uint8_t* straight) {
  __shared__ Words tile[kCodeTile][kCodeTile / 16];
  const float up = scale_in(found, F).up;
  const unsigned row0 = blockIdx.y * kCodeTile, col0 = blockIdx.x * kCodeTile;
  const unsigned lane = threadIdx.x % 16, column = col0 + lane * kPack;
  for (unsigned quad = threadIdx.x / 16; quad < kCodeTile / 4; quad += kFp8Threads / 16) {
    const unsigned row = row0 + quad * 4;
    if (row >= x.rows || column >= x.cols) continue;
    unsigned words[4][2];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      encode_pack<F>(read<kPack>(x.data + static_cast<std::int64_t>(row + r) * x.stride + column), up,
                     words[r]);
      if constexpr (kBoth)
        *reinterpret_cast<Words2*>(straight + static_cast<std::int64_t>(row + r) * x.cols +
                                   column) = {{words[r][0], words[r][1]}};
    }
    const unsigned place = quad ^ (lane * 2);
#pragma unroll
    for (int c = 0; c < kPack; ++c) {
      const int shift = 8 * (c % 4);
      unsigned word = 0;
#pragma unroll
      for (int r = 0; r < 4; ++r) word |= (words[r][c / 4] >> shift & 0xffu) << (8 * r);
      tile[lane * kPack + c][place / 4].w[place % 4] = word;
    }
  }
  __syncthreads();
  const unsigned group = threadIdx.x % 8, row = row0 + group * 16;
  for (unsigned c = threadIdx.x / 8; c < kCodeTile; c += kFp8Threads / 8) {
    if (row >= x.rows || col0 + c >= x.cols) continue;
    const unsigned shuffle = c / kPack * 2;
    const Words read_back = tile[c][group ^ (shuffle / 4)];
    const bool swapped = shuffle % 4 != 0;
    Words out;
#pragma unroll
    for (int i = 0; i < 4; ++i) out.w[i] = swapped ? read_back.w[i ^ 2] : read_back.w[i];
    *reinterpret_cast<Words*>(codes + static_cast<std::int64_t>(col0 + c) * x.rows + row) = out;
  }
}

template <Fp8 F>
void cast_operand(const Fp8Operand& o, const Found& found, cudaStream_t stream) {
  const std::int64_t rows = o.source.rows, cols = o.source.cols;
  if (o.turned) {
    const Source x{o.source.row<Bfloat16>(), o.source.stride, static_cast<unsigned>(rows),
                   static_cast<unsigned>(cols)};
    const std::int64_t high = (rows + kCodeTile - 1) / kCodeTile;
    SEXTANT_CHECK(high <= 65535, "fp8: too many rows");
    const dim3 grid(static_cast<unsigned>((cols + kCodeTile - 1) / kCodeTile), static_cast<unsigned>(high));
    if (o.codes)
      fp8_turned_kernel<F, true><<<grid, kFp8Threads, 0, stream>>>(x, found, o.turned, o.codes);
    else
      fp8_turned_kernel<F, false><<<grid, kFp8Threads, 0, stream>>>(x, found, o.turned, nullptr);
  } else {
    const std::int64_t blocks = (rows * cols / 16 + kFp8Threads - 1) / kFp8Threads;
    const unsigned grid = static_cast<unsigned>(blocks < 4096 ? blocks : 4096);
    fp8_rows_kernel<F><<<grid, kFp8Threads, 0, stream>>>(source_of(o.source), found, o.codes);
  }
  check_launch("cast to fp8");
}

// Adds what of an operand has to be looked through.
void look_through(Search& search, const Fp8Operand& o) {
  static_assert(Fp8Largest::kWords == kFp8Threads);
  if (!o.wanted() || o.largest.known) return;
  std::int64_t first = 0;
  for (int part = 0; part < o.largest.parts; ++part) {
    const std::int64_t rows = o.largest.parts == 1 ? o.source.rows : o.largest.rows[part];
    search.source[search.count] = source_of(o.source.row_range(first, rows));
    search.words[search.count++] = o.largest.words + part * Fp8Largest::kWords;
    first += rows;
  }
  SEXTANT_CHECK(first == o.source.rows, "fp8: parts of an operand");
}

constexpr int kCodesTile = 32, kCodesRows = 8;  // a block of 32 x 8 threads makes 32 x 32 elements

struct CodesExtents {
  std::int64_t m, n, k, ldc;
  bool accumulate;
};

template <class C>
__global__ void __launch_bounds__(kCodesTile* kCodesRows)
    codes_kernel(CodesExtents e, const std::uint8_t* a, const std::uint8_t* b, Fp8 of_a, Fp8 of_b,
                 const float* down, C* c) {
  __shared__ float as[kCodesTile][kCodesTile + 1], bs[kCodesTile][kCodesTile + 1];
  const int x = threadIdx.x, y = threadIdx.y;
  const std::int64_t row0 = static_cast<std::int64_t>(blockIdx.y) * kCodesTile,
                     column0 = static_cast<std::int64_t>(blockIdx.x) * kCodesTile;
  float sum[kCodesTile / kCodesRows] = {};
  for (std::int64_t k0 = 0; k0 < e.k; k0 += kCodesTile) {
    const std::int64_t k = k0 + x;
    for (int i = y; i < kCodesTile; i += kCodesRows) {
      as[i][x] = row0 + i < e.m && k < e.k ? fp8::decode(a[(row0 + i) * e.k + k], of_a) : 0.0f;
      bs[x][i] = column0 + i < e.n && k < e.k ? fp8::decode(b[(column0 + i) * e.k + k], of_b) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kCodesTile; ++i)
#pragma unroll
      for (int r = 0; r < kCodesTile / kCodesRows; ++r) sum[r] += as[y + r * kCodesRows][i] * bs[i][x];
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < kCodesTile / kCodesRows; ++r) {
    const std::int64_t row = row0 + y + r * kCodesRows, column = column0 + x;
    if (row >= e.m || column >= e.n) continue;
    C& out = c[row * e.ldc + column];
    const float value = sum[r] * down[0] * down[kFp8Factor];
    out = narrow<C>(e.accumulate ? widen(out) + value : value);
  }
}

}  // namespace

void fp8_operands(const Fp8Operand& a, const Fp8Operand& b, Fp8Room* room, NativeStream native) {
  const cudaStream_t stream = stream_of(native).stream;
  Search search;
  look_through(search, a);
  look_through(search, b);
  if (search.count > 0) {
    const dim3 grid(Fp8Largest::kWords, static_cast<unsigned>(search.count));
    fp8_largest_kernel<<<grid, kFp8Threads, 0, stream>>>(search);
    check_launch("largest value for fp8");
  }
  float* down = room->down;
  for (const Fp8Operand* o : {&a, &b}) {
    const Found found{o->largest.words, o->largest.parts * Fp8Largest::kWords, down};
    down += kFp8Factor;
    if (!o->wanted()) continue;
    if (o->format == Fp8::e4m3)
      cast_operand<Fp8::e4m3>(*o, found, stream);
    else
      cast_operand<Fp8::e5m2>(*o, found, stream);
  }
}

void gemm_codes_tiles(const GemmArgs& g, const float* down) {
  const CodesExtents e{g.c.rows, g.c.cols, g.a.cols, g.c.stride, g.accumulate};
  const std::int64_t rows = (e.m + kCodesTile - 1) / kCodesTile;
  SEXTANT_CHECK(rows <= 65535, "gemm tiles: too many rows");
  const dim3 grid(static_cast<unsigned>((e.n + kCodesTile - 1) / kCodesTile), static_cast<unsigned>(rows)),
      block(kCodesTile, kCodesRows);
  const auto run = [&]<class C>(C* c) {
    codes_kernel<C><<<grid, block, 0, stream_of(g.stream).stream>>>(
        e, static_cast<const std::uint8_t*>(g.a.data), static_cast<const std::uint8_t*>(g.b.data), g.round_a,
        g.round_b, down, c);
  };
  if (g.c.dtype == Dtype::bf16)
    run(g.c.row<Bfloat16>());
  else
    run(g.c.row<float>());
  check_launch("gemm tiles of fp8");
}

}  // namespace sextant::cuda

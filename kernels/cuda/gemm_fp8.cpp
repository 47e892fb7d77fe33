// GEMMs whose operands are rounded to fp8 right before: Hopper multiplies codes only where the sum's index runs along
// the rows of both (the "TN" form of cuBLASLt), so each operand is cast as it lies, or turned on the way.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "core/base/error.hpp"
#include "kernels/cuda/cuda_kernels.hpp"
#include "kernels/cuda/cuda_stream.hpp"
#include "kernels/cuda/fp8.hpp"
#include "kernels/cuda/kernels.hpp"
#include "kernels/cuda/scratch.hpp"

namespace sextant::cuda {
namespace {

constexpr std::int64_t kMultiple =
    16;  // cuBLASLt wants rows of codes and of results at multiples of 16 bytes

void require_fp8(const CudaStream& s) {
  int major = 0, minor = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, s.device),
        "cudaDeviceGetAttribute");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, s.device),
        "cudaDeviceGetAttribute");
  if (major * 10 + minor < 89)
    throw BackendError(
        fmt::format("GEMMs in fp8 need a GPU of sm_89 or later (L40S, H100, B200), and this one is "
                    "sm_{}{}\n  plan with --precision bf16-mixed",
                    major, minor));
}

void require_shape(const GemmArgs& g, std::int64_t m, std::int64_t n, std::int64_t k) {
  const auto starts = [](const TensorView& x) {
    const std::int64_t bytes = size_bytes(x.dtype);
    return reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 && (x.rows <= 1 || x.stride * bytes % 16 == 0);
  };
  if (m % kMultiple != 0 || n % kMultiple != 0 || k % kMultiple != 0)
    throw BackendError(
        fmt::format("a GEMM of {} x {} x {} in fp8: extents must be multiples of {}", m, n, k, kMultiple));
  SEXTANT_CHECK(starts(g.a) && starts(g.b) && starts(g.c),
                "gemm in fp8: rows start at multiples of 16 bytes");
}

struct Cast {
  GemmArgs codes;  // of a [m, k] and b [n, k]
  const float* down = nullptr;
  Fp8Kept kept = {};  // of a, from now on
};

Cast cast_both(const GemmArgs& g) {
  CudaStream& s = stream_of(g.stream);
  const std::int64_t m = g.transpose_a ? g.a.cols : g.a.rows, k = g.transpose_a ? g.a.rows : g.a.cols;
  const std::int64_t n = g.transpose_b ? g.b.rows : g.b.cols;
  SEXTANT_CHECK(g.c.rows == m && g.c.cols == n && (g.transpose_b ? g.b.cols : g.b.rows) == k,
                "gemm: extents disagree");
  SEXTANT_CHECK(g.round_a != Fp8::none && g.round_b != Fp8::none, "gemm: both operands in fp8, or none");
  SEXTANT_CHECK(g.a.dtype == Dtype::bf16 && g.b.dtype == Dtype::bf16, "gemm: fp8 is made of bf16");
  SEXTANT_CHECK(g.c.dtype == Dtype::bf16 || g.c.dtype == Dtype::fp32, "gemm: result's format");
  require_fp8(s);
  require_shape(g, m, n, k);
  const Fp8Kept a_itself{g.a.data, g.a.rows, g.a.cols, g.a.stride, g.round_a};
  const bool a_stands = g.a_as_before && g.transpose_a && s.fp8_kept == a_itself,
             a_again = g.a_again_turned && !g.transpose_a;
  const Fp8Scratch at(m * k, n * k, a_again);
  auto* base = static_cast<std::uint8_t*>(scratch(s, at.total));
  auto* room = reinterpret_cast<Fp8Room*>(base + at.room);
  Fp8Operand a{.source = g.a, .format = g.round_a, .largest = {.words = room->largest[0]}},
      b{.source = g.b, .format = g.round_b, .largest = g.largest_b};
  if (!b.largest.words) b.largest = {.words = room->largest[1]};
  if (!a_stands) (g.transpose_a ? a.turned : a.codes) = base + at.a;
  if (a_again) a.turned = base + at.again;
  (g.transpose_b ? b.codes : b.turned) = base + at.b;
  fp8_operands(a, b, room, g.stream);
  Cast made{g, room->down, a_again ? a_itself : Fp8Kept()};
  made.codes.a = TensorView(base + at.a, Dtype::fp8, m, k);
  made.codes.b = TensorView(base + at.b, Dtype::fp8, n, k);
  made.codes.transpose_a = false;
  made.codes.transpose_b = true;
  return made;
}

}  // namespace

void gemm_fp8(const GemmArgs& g, bool reference) {
  if (g.c.elements() == 0 || g.a.elements() == 0) return gemm_tiles(g);
  const Cast made = cast_both(g);
  reference ? gemm_codes_tiles(made.codes, made.down) : gemm_codes(made.codes, made.down);
  stream_of(g.stream).fp8_kept = made.kept;  // at last: who takes scratch ends it
}

}  // namespace sextant::cuda

void sextant::fp8_casts(const GemmArgs& g) { cuda::cast_both(g); }

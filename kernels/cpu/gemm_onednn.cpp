// Matrix products of fp32 and bf16 through oneDNN; the only file that knows it. Written for the 2.x and 3.x
// interfaces. fp64, which oneDNN has not, takes the reference product; bf16 goes through fp32 where oneDNN has no product
// of it for the processor, as before AVX-512. Matmul primitives are made once per shape and kept per thread: making one
// costs more than a small product.
#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <vector>

#include <omp.h>
#include <oneapi/dnnl/dnnl.hpp>

#include "kernels/cpu/cpu_kernels.hpp"
#include "kernels/cpu/kernels.hpp"

namespace sextant {

const char* cpu_gemm_library() {
  static const std::string text = [] {
    const dnnl_version_t* v = dnnl_version();
    return "oneDNN " + std::to_string(v->major) + "." + std::to_string(v->minor) + "." +
           std::to_string(v->patch);
  }();
  return text.c_str();
}

namespace cpu {
namespace {

dnnl::engine& engine() {
  static dnnl::engine instance(dnnl::engine::kind::cpu, 0);
  return instance;
}

dnnl::memory::data_type type_of(Dtype dtype) {
  return dtype == Dtype::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

dnnl::memory::desc describe(const TensorView& x, bool transposed) {
  const dnnl::memory::dims extents =
      transposed ? dnnl::memory::dims{x.cols, x.rows} : dnnl::memory::dims{x.rows, x.cols};
  const dnnl::memory::dims strides =
      transposed ? dnnl::memory::dims{1, x.stride} : dnnl::memory::dims{x.stride, 1};
  return {extents, type_of(x.dtype), strides};
}

dnnl::matmul make_matmul(const GemmArgs& g) {
  const auto a = describe(g.a, g.transpose_a), b = describe(g.b, g.transpose_b), c = describe(g.c, false);
  dnnl::primitive_attr attributes;
  if (g.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
#if DNNL_VERSION_MAJOR >= 3
  return dnnl::matmul(dnnl::matmul::primitive_desc(engine(), a, b, c, attributes));
#else
  return dnnl::matmul(dnnl::matmul::primitive_desc(dnnl::matmul::desc(a, b, c), attributes, engine()));
#endif
}

// Whether oneDNN multiplies bf16 on this processor (DNNL_MAX_CPU_ISA narrows what it takes the processor for).
bool multiplies_bf16() {
  static const bool does = [] {
    try {
      const TensorView one(nullptr, Dtype::bf16, 1, 1);
      make_matmul({.a = one, .b = one, .c = one});
    } catch (const dnnl::error&) {
      return false;
    }
    return true;
  }();
  return does;
}

void multiply_fp32(const GemmArgs& g, std::int64_t m, std::int64_t n, std::int64_t k) {
  const auto status = dnnl_sgemm(g.transpose_a ? 'T' : 'N', g.transpose_b ? 'T' : 'N', m, n, k, 1.0f,
                                 g.a.row<float>(), g.a.stride, g.b.row<float>(), g.b.stride,
                                 g.accumulate ? 1.0f : 0.0f, g.c.row<float>(), g.c.stride);
  if (status != dnnl_success) throw BackendError("oneDNN sgemm failed with status " + std::to_string(status));
}

// Every bf16 is an fp32, and sums are of fp32 either way: only their order may be another.
void multiply_widened(const GemmArgs& g, std::int64_t m, std::int64_t n, std::int64_t k) {
  thread_local std::array<std::vector<float>, 3> rooms;
  const auto widened = [&](std::size_t room, const TensorView& x, bool filled) {
    rooms[room].resize(std::max(rooms[room].size(), static_cast<std::size_t>(x.elements())));
    const TensorView wide(rooms[room].data(), Dtype::fp32, x.rows, x.cols);
    if (filled) cast({.source = x, .destination = wide});
    return wide;
  };
  GemmArgs wide = g;
  wide.a = widened(0, g.a, true);
  wide.b = widened(1, g.b, true);
  if (g.c.dtype == Dtype::bf16) wide.c = widened(2, g.c, g.accumulate);
  multiply_fp32(wide, m, n, k);
  if (g.c.dtype == Dtype::bf16) cast({.source = wide.c, .destination = g.c});
}

using Key = std::array<std::int64_t, 10>;

Key key_of(const GemmArgs& g) {
  return {
      g.a.rows,
      g.a.cols,
      g.a.stride,
      g.b.rows,
      g.b.cols,
      g.b.stride,
      g.c.stride,
      g.transpose_a,
      g.transpose_b,
      g.threads * 16 + g.accumulate * 8 + (g.a.dtype == Dtype::bf16) * 4 + (g.c.dtype == Dtype::bf16) * 2};
}

}  // namespace

void gemm_fast(const GemmArgs& g) {
  if (g.a.dtype == Dtype::fp64) return gemm_reference(g);
  const std::int64_t m = g.transpose_a ? g.a.cols : g.a.rows, k = g.transpose_a ? g.a.rows : g.a.cols;
  const std::int64_t n = g.transpose_b ? g.b.rows : g.b.cols;
  SEXTANT_CHECK(g.c.rows == m && g.c.cols == n && (g.transpose_b ? g.b.cols : g.b.rows) == k,
                "gemm: extents disagree");
  SEXTANT_CHECK(g.a.dtype == g.b.dtype, "gemm: operands of different formats");
  if (m == 0 || n == 0 || k == 0) return gemm_reference(g);

  if (omp_get_max_threads() != g.threads) omp_set_num_threads(g.threads);  // of this calling thread only
  if (g.a.dtype == Dtype::fp32 && g.c.dtype == Dtype::fp32) return multiply_fp32(g, m, n, k);
  if (!multiplies_bf16()) return multiply_widened(g, m, n, k);
  thread_local std::map<Key, dnnl::matmul> made;
  thread_local dnnl::stream stream(engine());
  try {
    const Key key = key_of(g);
    auto it = made.find(key);
    if (it == made.end()) it = made.emplace(key, make_matmul(g)).first;
    it->second.execute(stream, {{DNNL_ARG_SRC, {describe(g.a, g.transpose_a), engine(), g.a.data}},
                                {DNNL_ARG_WEIGHTS, {describe(g.b, g.transpose_b), engine(), g.b.data}},
                                {DNNL_ARG_DST, {describe(g.c, false), engine(), g.c.data}}});
    stream.wait();
  } catch (const dnnl::error& e) {
    throw BackendError(std::string("oneDNN matmul failed: ") + e.what());
  }
}

}  // namespace cpu
}  // namespace sextant

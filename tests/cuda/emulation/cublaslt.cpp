// cuBLASLt as its manual describes it, for what the project asks of it: column-major matrices, D = alpha op(A) op(B) +
// beta C. Of its three proposals the first is slow, the second cannot run.
#include "tests/cuda/emulation/cublaslt.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include <cublasLt.h>

#include "kernels/cpu/tile_gemm.hpp"
#include "kernels/fp8.hpp"
#include "tests/cuda/emulation/gpu.hpp"

namespace {

std::atomic<int> last_algorithm{-1};

struct Layout {
  cudaDataType_t type;
  std::uint64_t rows, cols;
  std::int64_t stride;
};
struct Description {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  cublasOperation_t a = CUBLAS_OP_N, b = CUBLAS_OP_N;
  const float *scale_a = nullptr, *scale_b = nullptr;
  std::int8_t fast = 0;
};
struct Preference {
  std::uint64_t workspace = 0;
  std::uint32_t a = 256, b = 256, c = 256, d = 256;
};

template <class T, class Made>
Made make(T value) {
  return reinterpret_cast<Made>(new T(value));
}
const Layout& layout(cublasLtMatrixLayout_t x) { return *reinterpret_cast<const Layout*>(x); }
Description& description(cublasLtMatmulDesc_t x) { return *reinterpret_cast<Description*>(x); }

bool is_fp8(cudaDataType_t type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }

// "To use FP8 kernels": at most one factor of E5M2, both factors with their sums along columns (TN), all dimensions by which
// memory is laid out multiples of 16 bytes; the result in bf16 or fp32.
bool supported_fp8(const Description& d, const Layout& a, const Layout& b, const Layout& c) {
  if (!is_fp8(b.type) || (a.type == CUDA_R_8F_E5M2 && b.type == CUDA_R_8F_E5M2)) return false;
  if (d.a != CUBLAS_OP_T || d.b != CUBLAS_OP_N || d.compute != CUBLAS_COMPUTE_32F || d.scale != CUDA_R_32F)
    return false;
  for (const Layout* x : {&a, &b, &c})
    if (x->rows % 16 != 0 || x->cols % 16 != 0 || x->stride % 16 != 0) return false;
  return c.type == CUDA_R_16BF || c.type == CUDA_R_32F;
}

// Table "cublasLtMatmul supported types": both factors of one format, the result in it or wider.
bool supported(const Description& d, const Layout& a, const Layout& b, const Layout& c) {
  if (is_fp8(a.type)) return supported_fp8(d, a, b, c);
  if (a.type != b.type) return false;
  if (d.compute == CUBLAS_COMPUTE_64F)
    return d.scale == CUDA_R_64F && a.type == CUDA_R_64F && c.type == CUDA_R_64F;
  if (d.compute != CUBLAS_COMPUTE_32F || d.scale != CUDA_R_32F) return false;
  if (a.type == CUDA_R_32F) return c.type == CUDA_R_32F;
  return a.type == CUDA_R_16BF && (c.type == CUDA_R_16BF || c.type == CUDA_R_32F);
}

bool fits(const Description& d, const Layout& a, const Layout& b, const Layout& c) {
  const auto rows = [](const Layout& x, cublasOperation_t op) { return op == CUBLAS_OP_N ? x.rows : x.cols; };
  const auto cols = [](const Layout& x, cublasOperation_t op) { return op == CUBLAS_OP_N ? x.cols : x.rows; };
  for (const Layout* x : {&a, &b, &c})
    if (x->stride < static_cast<std::int64_t>(x->rows) || x->rows == 0 || x->cols == 0) return false;
  return rows(a, d.a) == c.rows && cols(b, d.b) == c.cols && cols(a, d.a) == rows(b, d.b);
}

// Calls f(a function that gives the element at a place).
template <class F>
void with_elements(const void* data, cudaDataType_t type, F&& f) {
  if (type == CUDA_R_64F)
    f([d = static_cast<const double*>(data)](std::size_t i) { return d[i]; });
  else if (type == CUDA_R_32F)
    f([d = static_cast<const float*>(data)](std::size_t i) { return d[i]; });
  else if (is_fp8(type))
    f([d = static_cast<const std::uint8_t*>(data),
       format = type == CUDA_R_8F_E4M3 ? sextant::Fp8::e4m3 : sextant::Fp8::e5m2](std::size_t i) {
      return sextant::fp8::decode(d[i], format);
    });
  else
    f([d = static_cast<const std::uint16_t*>(data)](std::size_t i) {
      return std::bit_cast<float>(std::uint32_t{d[i]} << 16);
    });
}
void store(void* data, cudaDataType_t type, std::size_t i, double x) {
  if (type == CUDA_R_64F) {
    static_cast<double*>(data)[i] = x;
  } else if (type == CUDA_R_32F) {
    static_cast<float*>(data)[i] = static_cast<float>(x);
  } else {
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(x));
    static_cast<std::uint16_t*>(data)[i] =
        static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
}

// As wide as the machine's own: of wider ones GCC keeps every part in memory, and takes ten times as long.
constexpr std::size_t kVectorBytes = sextant::cpu::kVectorBytes;
template <class A>
struct VectorOf {
  typedef A Type __attribute__((vector_size(kVectorBytes), aligned(alignof(A)), may_alias));  // of any memory
};

// sum[kRows][columns] = left[kRows][k] times right[k][columns]; each element takes its k ascending. Two vectors of columns
// stay in registers over the whole of k.
template <std::size_t kRows, class A>
void sum_rows(const A* left, std::size_t k, const A* right, std::size_t columns, A* sum) {
  using Vector = typename VectorOf<A>::Type;
  constexpr std::size_t w = kVectorBytes / sizeof(A);
  for (std::size_t col = 0; col < columns; col += 2 * w) {
    Vector first[kRows] = {}, second[kRows] = {};
    for (std::size_t i = 0; i < k; ++i) {
      const auto* row = reinterpret_cast<const Vector*>(right + i * columns + col);
      for (std::size_t r = 0; r < kRows; ++r) {
        first[r] += left[r * k + i] * row[0];
        second[r] += left[r * k + i] * row[1];
      }
    }
    for (std::size_t r = 0; r < kRows; ++r) {
      auto* to = reinterpret_cast<Vector*>(sum + r * columns + col);
      to[0] = first[r];
      to[1] = second[r];
    }
  }
}

// Sums in A, k ascending.
template <class A>
void product(const Description& d, double alpha, double beta, const Layout& la, const void* a,
             const Layout& lb, const void* b, const Layout& lc, void* c) {
  constexpr std::size_t kRows = 4, kColumns = 2 * kVectorBytes / sizeof(A);
  const std::size_t m = lc.rows, n = lc.cols, k = d.a == CUBLAS_OP_N ? la.cols : la.rows;
  const auto widened = [](const Layout& x, const void* data, bool transposed, std::size_t rows,
                          std::size_t cols, std::size_t padded) {  // to [rows][padded], zeros behind cols
    std::vector<A> out(rows * padded);
    const auto stride = static_cast<std::size_t>(x.stride);
    with_elements(data, x.type, [&](const auto& at) {
      if (transposed)
        for (std::size_t i = 0; i < rows; ++i)
          for (std::size_t j = 0; j < cols; ++j) out[i * padded + j] = static_cast<A>(at(j + i * stride));
      else
        for (std::size_t j = 0; j < cols; ++j)
          for (std::size_t i = 0; i < rows; ++i) out[i * padded + j] = static_cast<A>(at(i + j * stride));
    });
    return out;
  };
  const std::size_t columns = (n + kColumns - 1) / kColumns * kColumns;
  const auto left = widened(la, a, d.a != CUBLAS_OP_N, m, k, k),
             right = widened(lb, b, d.b != CUBLAS_OP_N, k, n, columns);
  std::vector<A> sum(kRows * columns);
  for (std::size_t first = 0; first < m; first += kRows) {
    const std::size_t rows = std::min(kRows, m - first);
    if (rows == kRows)
      sum_rows<kRows>(&left[first * k], k, right.data(), columns, sum.data());
    else
      for (std::size_t r = 0; r < rows; ++r)
        sum_rows<1>(&left[(first + r) * k], k, right.data(), columns, &sum[r * columns]);
    with_elements(c, lc.type, [&](const auto& at) {
      for (std::size_t col = 0; col < n; ++col)
        for (std::size_t r = 0; r < rows; ++r) {
          const std::size_t to = first + r + col * static_cast<std::size_t>(lc.stride);
          const double before = beta == 0 ? 0 : beta * static_cast<double>(at(to));
          store(c, lc.type, to,
                static_cast<double>(
                    static_cast<A>(alpha * static_cast<double>(sum[r * columns + col]) + before)));
        }
    });
  }
}

}  // namespace

int emulation::last_gemm_algorithm() { return last_algorithm; }

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = make<int, cublasLtHandle_t>(0);
  return CUBLAS_STATUS_SUCCESS;
}
std::size_t cublasLtGetVersion() { return 130000; }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  *made = make<Description, cublasLtMatmulDesc_t>({compute, scale});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t what,
                                              const void* value, std::size_t bytes) {
  const bool of_a = what == CUBLASLT_MATMUL_DESC_A_SCALE_POINTER;
  if (of_a || what == CUBLASLT_MATMUL_DESC_B_SCALE_POINTER) {
    if (bytes != sizeof(const float*)) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(of_a ? &description(d).scale_a : &description(d).scale_b, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
  }
  if (what == CUBLASLT_MATMUL_DESC_FAST_ACCUM) {
    if (bytes != sizeof(std::int8_t)) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&description(d).fast, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
  }
  if (bytes != sizeof(std::int32_t)) return CUBLAS_STATUS_INVALID_VALUE;
  if (what != CUBLASLT_MATMUL_DESC_TRANSA && what != CUBLASLT_MATMUL_DESC_TRANSB)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  std::memcpy(what == CUBLASLT_MATMUL_DESC_TRANSA ? &description(d).a : &description(d).b, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType type, std::uint64_t rows,
                                          std::uint64_t cols, std::int64_t stride) {
  *made = make<Layout, cublasLtMatrixLayout_t>({type, rows, cols, stride});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  *made = make<Preference, cublasLtMatmulPreference_t>({});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) {
  delete reinterpret_cast<Preference*>(p);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t what,
                                                    const void* value, std::size_t bytes) {
  auto& p = *reinterpret_cast<Preference*>(preference);
  std::uint32_t* const small = what == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES   ? &p.a
                               : what == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES ? &p.b
                               : what == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES ? &p.c
                               : what == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES ? &p.d
                                                                                    : nullptr;
  if (what == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
    return bytes == 4 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;  // nothing is cut here
  const bool workspace = what == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
  if (bytes != (workspace ? 8u : 4u) || (!workspace && !small)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(workspace ? static_cast<void*>(&p.workspace) : small, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

// A proposal remembers what was promised of addresses. None for addresses that are odd multiples of 2.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t d,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t* results, int* found) {
  *found = 0;
  const auto& p = *reinterpret_cast<const Preference*>(preference);
  if (!supported(description(d), layout(a), layout(b), layout(c))) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (!fits(description(d), layout(a), layout(b), layout(c))) return CUBLAS_STATUS_INVALID_VALUE;
  if (std::getenv("SEXTANT_EMULATION_NO_PRODUCTS")) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (p.a < 4 || p.b < 4 || p.c < 4 || p.d < 4) return CUBLAS_STATUS_NOT_SUPPORTED;
  for (; *found < 3 && *found < most; ++*found) {
    auto& r = results[*found];
    r = {};
    r.state = CUBLAS_STATUS_SUCCESS;
    r.workspaceSize = p.workspace;
    r.algo.data[0] = static_cast<std::uint64_t>(*found);
    r.algo.data[1] = p.a;
    r.algo.data[2] = p.b;
    r.algo.data[3] = p.c;
    r.algo.data[4] = p.workspace;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t description_, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t la, const void* b,
                              cublasLtMatrixLayout_t lb, const void* beta, const void* c,
                              cublasLtMatrixLayout_t lc, void* d, cublasLtMatrixLayout_t ld,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              std::size_t workspace_bytes, cudaStream_t stream) {
  const auto aligned = [](const void* x, std::uint64_t to) {
    return reinterpret_cast<std::uintptr_t>(x) % to == 0;
  };
  if (c != d || lc != ld || !algorithm || algorithm->data[0] == 1) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (!aligned(a, algorithm->data[1]) || !aligned(b, algorithm->data[2]) || !aligned(d, algorithm->data[3]) ||
      !aligned(workspace, 256) || workspace_bytes < algorithm->data[4])
    return CUBLAS_STATUS_INVALID_VALUE;
  const Description how = description(description_);
  if (!aligned(how.scale_a, 16) || !aligned(how.scale_b, 16)) return CUBLAS_STATUS_NOT_SUPPORTED;
  const bool wide = how.scale == CUDA_R_64F;
  const auto scalar = [&](const void* x) {
    return wide ? *static_cast<const double*>(x) : *static_cast<const float*>(x);
  };
  const double by = scalar(alpha), keep = scalar(beta);
  const Layout left = layout(la), right = layout(lb), out = layout(lc);
  const int chosen = static_cast<int>(algorithm->data[0]);
  last_algorithm = chosen;
  const auto work = [=] {
    if (chosen == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
    const double scaled = by * (how.scale_a ? *how.scale_a : 1) * (how.scale_b ? *how.scale_b : 1);
    wide ? product<double>(how, scaled, keep, left, a, right, b, out, d)
         : product<float>(how, scaled, keep, left, a, right, b, out, d);
  };
  return emulation::enqueue(stream, work) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                                         : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"

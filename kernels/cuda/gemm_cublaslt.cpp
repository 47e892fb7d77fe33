// GEMMs through cuBLASLt; the only file that knows it. Row-major matrices are the transposes of its
// column-major ones, so c = op(a) op(b) is asked for as c^T = op(b)^T op(a)^T and nothing is copied. What the
// library proposes is kept per shape; in a rehearsed step the proposals are timed, on a chip that is as warm as in a step, and
// the fastest is kept.
#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "core/base/error.hpp"
#include "kernels/cuda/cuda_kernels.hpp"
#include "kernels/cuda/cuda_stream.hpp"
#include "kernels/cuda/fp8.hpp"
#include "kernels/cuda/kernels.hpp"
#include "kernels/cuda/libraries.hpp"
#include "kernels/cuda/library.hpp"
#include "kernels/cuda/scratch.hpp"
#include "kernels/cuda/stopwatch.hpp"

namespace sextant::cuda {
namespace {

// Most proposals that are asked for and timed, for how long at the most; those that are compared once more; and how long the
// chip computes before the first comparison, so that its clock is that of a step.
constexpr int kProposals = 96, kFinalists = 6, kRuns = 3, kRounds = 4;
constexpr std::chrono::milliseconds kBudget{300}, kWarm{300};
constexpr double kRoundSeconds = 2e-3, kLong = 1e-3;  // a GEMM that takes this long is timed alone
// Beyond what NVIDIA advises, a workspace is what else is lent to the stream.
constexpr std::int64_t kMostWorkspace = std::int64_t{256} << 20;

struct Lt {
  Library library = first_found({"libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR), "libcublasLt.so.12"});
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtGetVersion) version = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulDescCreate) describe = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) prefer = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) forget_preference = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) propose = nullptr;

  Lt() {
    if (!library.found()) return;
    library.get(create, "cublasLtCreate");
    library.get(version, "cublasLtGetVersion");
    library.get(matmul, "cublasLtMatmul");
    library.get(describe, "cublasLtMatmulDescCreate");
    library.get(set, "cublasLtMatmulDescSetAttribute");
    library.get(layout, "cublasLtMatrixLayoutCreate");
    library.get(prefer, "cublasLtMatmulPreferenceCreate");
    library.get(set_preference, "cublasLtMatmulPreferenceSetAttribute");
    library.get(forget_preference, "cublasLtMatmulPreferenceDestroy");
    library.get(propose, "cublasLtMatmulAlgoGetHeuristic");
  }
};

const Lt& lt() {
  static const Lt instance;
  return instance;
}

void require(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw BackendError(fmt::format("{}: cuBLAS status {}", call, static_cast<int>(status)));
}

cudaDataType_t type_of(Dtype dtype, Fp8 codes = Fp8::none) {
  switch (dtype) {
    case Dtype::fp8:
      return codes == Fp8::e4m3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2;
    case Dtype::fp64:
      return CUDA_R_64F;
    case Dtype::fp32:
      return CUDA_R_32F;
    case Dtype::bf16:
      return CUDA_R_16BF;
    default:
      throw BackendError("GPU GEMMs have fp64, fp32, bf16 and fp8, not " + std::string(name(dtype)));
  }
}

// The largest power of two up to 256 that divides the address.
std::uint32_t alignment(const TensorView& x) {
  const auto address = reinterpret_cast<std::uintptr_t>(x.data) | 256u;
  return 1u << std::countr_zero(static_cast<std::uint64_t>(address));
}

struct Shape {
  std::int64_t m, n, k;
};

using GemmKey = std::array<std::int64_t, 15>;
GemmKey key_of(const GemmArgs& g, const Shape& e, const float* down, int device, std::int64_t workspace) {
  return {e.m,
          e.n,
          e.k,
          g.a.stride,
          g.b.stride,
          g.c.stride,
          alignment(g.a),
          alignment(g.b),
          alignment(g.c),
          static_cast<std::int64_t>(g.a.dtype),
          static_cast<std::int64_t>(g.c.dtype),
          g.transpose_a * 4 + g.transpose_b * 2 + g.accumulate + static_cast<int>(g.round_a) * 8 +
              static_cast<int>(g.round_b) * 32,
          reinterpret_cast<std::intptr_t>(down),
          device,
          workspace};
}

// One GEMM of one shape, ready to run. Kept until the process ends.
struct Gemm {
  cublasLtMatmulDesc_t description = nullptr;
  cublasLtMatrixLayout_t left = nullptr, right = nullptr, out = nullptr;
  std::vector<cublasLtMatmulHeuristicResult_t> proposals;  // best first; none: the library has nothing
  std::int64_t workspace = 0;                              // bytes
  bool timed = false;
};

class Gemms {
 public:
  // False when the library has nothing for this gemm. `down`: the factors of a's and b's codes, of GEMMs in fp8.
  bool run(const GemmArgs& g, const Shape& e, const float* down, CudaStream& s) {
    // Beside codes the scratch has no more than the least.
    const std::int64_t bytes =
        s.lent && !down ? std::clamp(s.scratch_bytes, kLibraryWorkspace, kMostWorkspace) : kLibraryWorkspace;
    Gemm& gemm = find(g, e, down, s.device, bytes);
    void* workspace = scratch(s, bytes);
    if (s.rehearsal) {  // ranks that share a GPU rehearse at the same time, and one chooses for all
      const std::lock_guard lock(choosing_);
      if (!gemm.timed && gemm.proposals.size() > 1) choose(gemm, g, s, workspace);
    }
    for (;;) {
      cublasLtMatmulHeuristicResult_t best;
      {
        const std::lock_guard lock(mutex_);  // another rank may be choosing
        if (gemm.proposals.empty()) return false;
        best = gemm.proposals.front();
      }
      const cublasStatus_t status = start(gemm, best, g, s, workspace);
      if (status == CUBLAS_STATUS_SUCCESS) return true;
      const std::lock_guard lock(mutex_);
      if (gemm.proposals.size() <= 1) require(status, "cublasLtMatmul");
      gemm.proposals.erase(gemm.proposals.begin());  // proposed, and refused when it comes to it
    }
  }

  std::string refused() {
    const std::lock_guard lock(mutex_);
    if (refused_ == 0) return "";
    return fmt::format("cuBLASLt has nothing for {} shape{}, the first {}", refused_,
                       refused_ == 1 ? "" : "s", first_refused_);
  }

 private:
  cublasLtHandle_t handle(int device) {
    cublasLtHandle_t& made = handles_[device];
    if (!made) require(lt().create(&made), "cublasLtCreate");
    return made;
  }

  Gemm& find(const GemmArgs& g, const Shape& e, const float* down, int device, std::int64_t workspace) {
    const std::lock_guard lock(mutex_);
    const auto [it, made] = gemms_.try_emplace(key_of(g, e, down, device, workspace));
    if (!made) return it->second;
    try {
      it->second.workspace = workspace;
      make(it->second, g, e, down, handle(device));
    } catch (...) {
      gemms_.erase(it);
      throw;
    }
    return it->second;
  }

  void make(Gemm& p, const GemmArgs& g, const Shape& e, const float* down,
            cublasLtHandle_t handle_of_device) {
    const bool wide = g.a.dtype == Dtype::fp64;
    require(lt().describe(&p.description, wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                          wide ? CUDA_R_64F : CUDA_R_32F),
            "cublasLtMatmulDescCreate");
    const cublasOperation_t left = g.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                            right = g.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    require(lt().set(p.description, CUBLASLT_MATMUL_DESC_TRANSA, &left, sizeof left), "transposition");
    require(lt().set(p.description, CUBLASLT_MATMUL_DESC_TRANSB, &right, sizeof right), "transposition");
    if (down) {
      const float *of_left = down + kFp8Factor, *of_right = down;
      require(lt().set(p.description, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &of_left, sizeof of_left),
              "scale");
      require(lt().set(p.description, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &of_right, sizeof of_right),
              "scale");
      // Sums of a weight's gradient go into fp32 and are kept as exact; what is rounded to bf16 does not see the difference.
      const std::int8_t fast = g.c.dtype == Dtype::bf16;
      require(lt().set(p.description, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast), "fast sums");
    }
    const auto layout = [&](cublasLtMatrixLayout_t& made, const TensorView& x, Fp8 codes, std::int64_t rows,
                            std::int64_t columns) {
      require(lt().layout(&made, type_of(x.dtype, codes), static_cast<std::uint64_t>(columns),
                          static_cast<std::uint64_t>(rows), x.stride),
              "cublasLtMatrixLayoutCreate");
    };
    layout(p.left, g.b, g.round_b, g.b.rows, g.b.cols);
    layout(p.right, g.a, g.round_a, g.a.rows, g.a.cols);
    layout(p.out, g.c, Fp8::none, e.m, e.n);

    cublasLtMatmulPreference_t preference = nullptr;
    require(lt().prefer(&preference), "cublasLtMatmulPreferenceCreate");
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t what, auto value) {
      require(lt().set_preference(preference, what, &value, sizeof value), "preference");
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(p.workspace));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(g.b));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(g.a));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(g.c));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(g.c));
    // Where a sum over k is cut, its parts are added in the accumulator's format, not in a narrower result's.
    if (g.c.dtype != accumulator_of(g.a.dtype))
      prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
             static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE |
                                        CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    p.proposals.resize(kProposals);
    int found = 0;
    const cublasStatus_t status = lt().propose(handle_of_device, p.description, p.left, p.right, p.out, p.out,
                                               preference, kProposals, p.proposals.data(), &found);
    lt().forget_preference(preference);
    if (status != CUBLAS_STATUS_SUCCESS) found = 0;
    p.proposals.resize(static_cast<std::size_t>(found));
    std::erase_if(p.proposals, [](const auto& proposal) { return proposal.state != CUBLAS_STATUS_SUCCESS; });
    if (p.proposals.empty() && refused_++ == 0)
      first_refused_ = fmt::format("{} x {} x {} of {} into {} (cuBLAS status {})", e.m, e.n, e.k,
                                   name(g.a.dtype), name(g.c.dtype), static_cast<int>(status));
  }

  cublasStatus_t start(const Gemm& p, const cublasLtMatmulHeuristicResult_t& proposal, const GemmArgs& g,
                       const CudaStream& s, void* workspace) {
    const float one = 1, beta = g.accumulate ? 1 : 0;
    const double wide_one = 1, wide_beta = g.accumulate ? 1 : 0;
    const bool wide = g.a.dtype == Dtype::fp64;
    const void* alpha = wide ? static_cast<const void*>(&wide_one) : &one;
    const void* scale = wide ? static_cast<const void*>(&wide_beta) : &beta;
    cublasLtHandle_t with = nullptr;
    {
      const std::lock_guard lock(mutex_);
      with = handle(s.device);
    }
    return lt().matmul(with, p.description, alpha, g.b.data, p.left, g.a.data, p.right, scale, g.c.data,
                       p.out, g.c.data, p.out, &proposal.algo, workspace,
                       static_cast<std::size_t>(p.workspace), s.stream);
  }

  // Times every proposal, as far as the budget goes, and the fastest of them once more, in turns, so that a chip that slows
  // down does so for all; c may be added to as often as one likes. Several runs at a time: the stream would wait for the host
  // before a single one, for as long as a small GEMM takes. What does not run is dropped.
  void choose(Gemm& p, const GemmArgs& g, const CudaStream& s, void* workspace) {
    struct Candidate {
      cublasLtMatmulHeuristicResult_t proposal;
      double seconds = 0;  // of a run
    };
    const Stopwatch watch(s);
    const auto timed = [&](Candidate& c, int runs) {
      const auto run = [&] { return start(p, c.proposal, g, s, workspace) == CUBLAS_STATUS_SUCCESS; };
      return watch.seconds(runs, run);
    };
    const auto began = std::chrono::steady_clock::now();
    while (!warm_ && std::chrono::steady_clock::now() - began < kWarm) {
      Candidate first{p.proposals.front()};
      if (!timed(first, 8)) break;
    }
    warm_ = true;
    const auto end = std::chrono::steady_clock::now() + kBudget;
    std::vector<Candidate> candidates;
    for (const auto& proposal : p.proposals) {
      if (!candidates.empty() && std::chrono::steady_clock::now() > end) break;
      Candidate c{proposal};
      const auto first = timed(c, 1);
      if (!first) continue;  // its code is loaded now
      if (const auto seconds = timed(c, *first > kLong ? 1 : kRuns)) {
        c.seconds = *seconds;
        candidates.push_back(c);
      }
    }
    std::ranges::stable_sort(candidates, {}, &Candidate::seconds);
    const std::size_t finalists = std::min<std::size_t>(candidates.size(), kFinalists);
    std::vector<double> best(finalists, std::numeric_limits<double>::max());
    for (int round = 0; round < kRounds && finalists > 1; ++round)
      for (std::size_t i = 0; i < finalists; ++i) {
        const int runs = std::clamp(static_cast<int>(kRoundSeconds / candidates[i].seconds), 1, 64);
        if (const auto seconds = timed(candidates[i], runs)) best[i] = std::min(best[i], *seconds);
      }
    for (std::size_t i = 0; i < finalists && finalists > 1; ++i) candidates[i].seconds = best[i];
    candidates.resize(finalists);
    std::ranges::stable_sort(candidates, {}, &Candidate::seconds);
    const std::lock_guard lock(mutex_);
    if (!candidates.empty()) {
      p.proposals.clear();
      for (const Candidate& c : candidates) p.proposals.push_back(c.proposal);
    }
    p.timed = true;
  }

  std::mutex mutex_, choosing_;
  bool warm_ = false;  // the chip has computed for a while; under choosing_
  std::map<int, cublasLtHandle_t> handles_;
  std::map<GemmKey, Gemm> gemms_;
  int refused_ = 0;  // shapes without a proposal
  std::string first_refused_;
};

Gemms& gemms() {
  static auto* instance = new Gemms;  // never destroyed: the driver may be gone before statics are
  return *instance;
}

}  // namespace

void gemm(const GemmArgs& g) {
  const Shape e{g.transpose_a ? g.a.cols : g.a.rows, g.transpose_b ? g.b.rows : g.b.cols,
                g.transpose_a ? g.a.rows : g.a.cols};
  SEXTANT_CHECK(g.c.rows == e.m && g.c.cols == e.n && (g.transpose_b ? g.b.cols : g.b.rows) == e.k,
                "gemm: extents disagree");
  SEXTANT_CHECK(g.a.dtype == g.b.dtype, "gemm: operands of different formats");
  SEXTANT_CHECK(g.c.dtype == g.a.dtype || g.c.dtype == accumulator_of(g.a.dtype), "gemm: result's format");
  if (e.m == 0 || e.n == 0) return;
  if (e.k == 0) {
    if (!g.accumulate) zero({.x = g.c, .stream = g.stream});
    return;
  }
  if (!gemms().run(g, e, nullptr, stream_of(g.stream))) gemm_tiles(g);
}

void gemm_codes(const GemmArgs& g, const float* down) {
  const Shape e{g.a.rows, g.b.rows, g.a.cols};
  if (!gemms().run(g, e, down, stream_of(g.stream))) gemm_codes_tiles(g, down);
}

std::string gemm_library() {
  const Lt& l = lt();
  if (!l.library.found()) return "";
  const std::size_t v = l.version();
  return fmt::format("cuBLASLt {}.{}.{}", v / 10000, v / 100 % 100, v % 100);
}
std::string gemm_library_missing() { return lt().library.why_not(); }

}  // namespace sextant::cuda

std::string sextant::gemm_fallback() { return cuda::gemms().refused(); }

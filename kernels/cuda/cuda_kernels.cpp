#include "kernels/cuda/cuda_kernels.hpp"

#include "kernels/cuda/cuda_stream.hpp"
#include "kernels/cuda/kernels.hpp"
#include "kernels/cuda/libraries.hpp"

namespace sextant {
namespace {

bool computes_in(Dtype dtype) {
  return dtype == Dtype::fp64 || dtype == Dtype::fp32 || dtype == Dtype::bf16 || dtype == Dtype::fp8;
}

void gemm(const GemmArgs& g) { g.round_a == Fp8::none ? cuda::gemm(g) : cuda::gemm_fp8(g, false); }
void gemm_reference(const GemmArgs& g) {
  g.round_a == Fp8::none ? cuda::gemm_tiles(g) : cuda::gemm_fp8(g, true);
}

KernelTable make_table(const char* name, KernelSet set) {
  const bool reference = set == KernelSet::reference;
  return {.name = name,
          .supports = computes_in,
          .gemm = reference ? gemm_reference : gemm,
          .rmsnorm_forward = cuda::rmsnorm_forward,
          .rmsnorm_apply = cuda::rmsnorm_apply,
          .rmsnorm_backward = cuda::rmsnorm_backward,
          .row_dots = cuda::row_dots,
          .inverse_rms = cuda::inverse_rms,
          .rope = cuda::rope,
          .attention_forward = reference ? cuda::attention_forward_tiles : cuda::attention_forward,
          .attention_backward = reference ? cuda::attention_backward_tiles : cuda::attention_backward,
          .swiglu_forward = cuda::swiglu_forward,
          .swiglu_backward = cuda::swiglu_backward,
          .embedding_forward = cuda::embedding_forward,
          .embedding_backward = cuda::embedding_backward,
          .cross_entropy_stats = cuda::cross_entropy_stats,
          .cross_entropy_combine = cuda::cross_entropy_combine,
          .cross_entropy_gradient = cuda::cross_entropy_gradient,
          .adamw = cuda::adamw,
          .squared_norm = cuda::squared_norm,
          .total = cuda::total,
          .add = cuda::add,
          .add_bias = cuda::add_bias,
          .bias_gradient = cuda::bias_gradient,
          .row_lengths = cuda::row_lengths,
          .scale_columns = cuda::scale_columns,
          .project_rows = cuda::project_rows,
          .accumulate = cuda::accumulate,
          .cast = cuda::cast,
          .zero = cuda::zero,
          .scale = cuda::scale,
          .random_normal = cuda::random_normal};
}

}  // namespace

const KernelTable* cuda_kernels(KernelSet set) {
  static const KernelTable fast = make_table("cuda", KernelSet::fast),
                           reference = make_table("cuda-reference", KernelSet::reference);
  return set == KernelSet::reference ? &reference : &fast;
}

void lend_cuda_scratch(NativeStream native, void* data, std::int64_t bytes) {
  CudaStream& s = cuda::stream_of(native);
  cuda::release_scratch(s);
  s.scratch = data;
  s.scratch_bytes = bytes;
  s.lent = true;
}

CudaLibraries cuda_libraries() {
  return {cuda::gemm_library(), cuda::attention_library(), cuda::gemm_library_missing()};
}

}  // namespace sextant

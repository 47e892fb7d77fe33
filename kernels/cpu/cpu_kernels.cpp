#include "kernels/cpu/cpu_kernels.hpp"

#include "kernels/cpu/kernels.hpp"

namespace sextant {
namespace {

bool supports(Dtype dtype) {
  return dtype == Dtype::fp64 || dtype == Dtype::fp32 || dtype == Dtype::bf16 || dtype == Dtype::fp8;
}

template <auto kProduct>
void gemm(const GemmArgs& g) {
  g.round_a == Fp8::none ? kProduct(g) : cpu::gemm_fp8(g, kProduct);
}

KernelTable make_table(const char* name, void (*gemm)(const GemmArgs&)) {
  return {.name = name,
          .supports = supports,
          .gemm = gemm,
          .rmsnorm_forward = cpu::rmsnorm_forward,
          .rmsnorm_apply = cpu::rmsnorm_apply,
          .rmsnorm_backward = cpu::rmsnorm_backward,
          .row_dots = cpu::row_dots,
          .inverse_rms = cpu::inverse_rms,
          .rope = cpu::rope,
          .attention_forward = cpu::attention_forward,
          .attention_backward = cpu::attention_backward,
          .swiglu_forward = cpu::swiglu_forward,
          .swiglu_backward = cpu::swiglu_backward,
          .embedding_forward = cpu::embedding_forward,
          .embedding_backward = cpu::embedding_backward,
          .cross_entropy_stats = cpu::cross_entropy_stats,
          .cross_entropy_combine = cpu::cross_entropy_combine,
          .cross_entropy_gradient = cpu::cross_entropy_gradient,
          .adamw = cpu::adamw,
          .squared_norm = cpu::squared_norm,
          .total = cpu::total,
          .add = cpu::add,
          .add_bias = cpu::add_bias,
          .bias_gradient = cpu::bias_gradient,
          .row_lengths = cpu::row_lengths,
          .scale_columns = cpu::scale_columns,
          .project_rows = cpu::project_rows,
          .accumulate = cpu::accumulate,
          .cast = cpu::cast,
          .zero = cpu::zero,
          .scale = cpu::scale,
          .random_normal = cpu::random_normal};
}

}  // namespace

const KernelTable& cpu_kernels() {
  static const KernelTable table = make_table("cpu", gemm<cpu::gemm_fast>);
  return table;
}

const KernelTable& cpu_reference_kernels() {
  static const KernelTable table = make_table("cpu-reference", gemm<cpu::gemm_reference>);
  return table;
}

}  // namespace sextant

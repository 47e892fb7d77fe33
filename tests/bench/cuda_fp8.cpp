// Products in fp8 beside the same in bf16, with their casts alone: rows of 7B, per micro-batch.
#include <iostream>

#include "kernels/cuda/cuda_kernels.hpp"
#include "tests/bench/cuda_bench.hpp"

namespace sextant {

Json fp8_gemms(Bench& b) {
  Json out = Json::array();
  struct Extent {
    std::int64_t m, n, k;
  };
  for (const Extent full : {Extent{2048, 4096, 4096},
                            {2048, 12288, 4096},
                            {2048, 22016, 4096},
                            {2048, 4096, 11008},
                            {4096, 4096, 4096},
                            {4096, 12288, 4096},
                            {4096, 22016, 4096},
                            {4096, 4096, 11008}})
    for (const char* form : {"forward", "input", "weight"}) {
      const auto whole = [](std::int64_t x) { return (x + 15) / 16 * 16; };
      const Extent e{whole(b.extent(full.m)), whole(b.extent(full.n)), whole(b.extent(full.k))};
      const bool weight = form[0] == 'w', forward = form[0] == 'f';
      const TensorView x = b.matrix(Dtype::bf16, e.m, e.k), w = b.matrix(Dtype::bf16, e.n, e.k),
                       y = b.matrix(Dtype::bf16, e.m, e.n), dw = b.matrix(Dtype::fp32, e.n, e.k);
      const auto product = [&](Fp8 of_a, Fp8 of_b, NativeStream s) -> GemmArgs {
        if (forward)
          return {.a = x, .b = w, .c = y, .transpose_b = true, .round_a = of_a, .round_b = of_b, .stream = s};
        if (!weight) return {.a = y, .b = w, .c = x, .round_a = of_a, .round_b = of_b, .stream = s};
        return {.a = y,
                .b = x,
                .c = dw,
                .transpose_a = true,
                .accumulate = true,
                .round_a = of_a,
                .round_b = of_b,
                .stream = s};
      };
      const Fp8 left = forward ? Fp8::e4m3 : Fp8::e5m2;
      const double wide = b.seconds(
                       [&](NativeStream s) { cuda_kernels()->gemm(product(Fp8::none, Fp8::none, s)); }),
                   casts = b.seconds([&](NativeStream s) { fp8_casts(product(left, Fp8::e4m3, s)); }),
                   all =
                       b.seconds([&](NativeStream s) { cuda_kernels()->gemm(product(left, Fp8::e4m3, s)); });
      const double flops = 2.0 * static_cast<double>(e.m * e.n) * static_cast<double>(e.k);
      const auto cast_elements =
          static_cast<double>(weight ? e.m * (e.n + e.k) : e.n * e.k + e.m * (forward ? e.k : e.n));
      out.push_back({{"m", e.m},
                     {"n", e.n},
                     {"k", e.k},
                     {"form", form},
                     {"bf16_us", 1e6 * wide},
                     {"fp8_us", 1e6 * all},
                     {"casts_us", 1e6 * casts},
                     {"casts_GBps", 5 * cast_elements / casts / 1e9},
                     {"gemm_TFLOPs", flops / (all - casts) / 1e12},
                     {"bf16_over_fp8", wide / all}});
      std::cerr << "fp8 " << e.m << " " << e.n << " " << e.k << " " << form << ": " << 1e6 * all << " us ("
                << 1e6 * casts << " casts, " << 5 * cast_elements / casts / 1e9 << " GB/s; product "
                << flops / (all - casts) / 1e12 << " TFLOP/s), bf16 " << 1e6 * wide << " us\n";
      b.clear();
    }
  return out;
}

}  // namespace sextant

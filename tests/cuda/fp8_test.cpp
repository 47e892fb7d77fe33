// System: products in fp8 on the GPU, through the library and by own tiles. Expectation: the CPU's twin, whose own is an
// oracle in fp64 (tests/kernels/fp8_test.cpp). Casts in every bit: a product with the identity gives what codes stand for.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/cuda/twin.hpp"

namespace sextant::testing {
namespace {

class CudaFp8 : public GpuTest {};

std::vector<double> identity(std::int64_t n) {
  std::vector<double> values(static_cast<std::size_t>(n * n));
  for (std::int64_t i = 0; i < n; ++i) values[static_cast<std::size_t>(i * n + i)] = 1;
  return values;
}

void multiply(const KernelTable& gpu_table, const Twin& a, const Twin& b, const Twin& c, bool ta, bool tb,
              bool accumulate, Fp8 of_a, Fp8 of_b, std::int64_t a_cols, std::int64_t b_cols,
              std::int64_t c_cols) {
  on_both(gpu_table, [&](const KernelTable& k, bool gpu, NativeStream s) {
    k.gemm({.a = a.on(gpu).column_range(0, a_cols),
            .b = b.on(gpu).column_range(0, b_cols),
            .c = c.on(gpu).column_range(0, c_cols),
            .transpose_a = ta,
            .transpose_b = tb,
            .accumulate = accumulate,
            .round_a = of_a,
            .round_b = of_b,
            .stream = s});
  });
}

// Every bf16 below a size, in an order without pattern, as a matrix.
std::vector<double> every_value_up_to(double size, std::size_t elements) {
  std::vector<double> values;
  for (std::uint32_t i = 0; values.size() < elements; i += 40503) {
    const double x = fp8::float_of((i & 0xffffu) << 16);
    values.push_back(std::abs(x) <= size ? x : size);
  }
  return values;
}

TEST_F(CudaFp8, CastsInEveryBit) {
  for (const double size : {1.75, 1.0, 3e-5, 40000.0})
    for (const Fp8 format : {Fp8::e4m3, Fp8::e5m2})
      for (const bool turned : {false, true})
        for (const std::int64_t rows : {16, 272}) {
          if (left_out()) continue;
          constexpr std::int64_t kCols = 144;
          // a is cast as it lies where it is not transposed; turned where it is.
          const Twin a(Dtype::bf16, rows, kCols,
                       every_value_up_to(size, static_cast<std::size_t>(rows * kCols)));
          const std::int64_t k = turned ? rows : kCols, m = turned ? kCols : rows;
          const Twin one(Dtype::bf16, k, k, identity(k)), c = Twin::poisoned(Dtype::fp32, m, k);
          multiply(*cuda_kernels(KernelSet::reference), a, one, c, turned, false, false, format, Fp8::e4m3,
                   kCols, k, k);
          c.expect_alike(0, fmt::format("a up to {}, {} rows{}", size, rows, turned ? ", turned" : ""));
          // The same of b, which is turned where it is not transposed.
          const Twin left(Dtype::bf16, turned ? rows : kCols, turned ? rows : kCols,
                          identity(turned ? rows : kCols)),
              d = Twin::poisoned(Dtype::fp32, turned ? rows : kCols, turned ? kCols : rows);
          multiply(*cuda_kernels(KernelSet::reference), left, a, d, false, !turned, false, Fp8::e4m3, format,
                   turned ? rows : kCols, kCols, turned ? kCols : rows);
          d.expect_alike(0, fmt::format("b up to {}, {} rows{}", size, rows, turned ? ", turned" : ""));
        }
}

// Sums of the library are fp32 on the emulated GPU; a tensor core keeps fewer bits of them.
double limit_of(Dtype c, bool reference) { return c == Dtype::bf16 ? 6e-3 : reference ? 1e-5 : 2e-3; }

TEST_F(CudaFp8, GemmsAsTheTwins) {
  struct Extent {
    std::int64_t m, n, k;
  };
  for (const bool reference : {true, false})
    for (const Extent e : {Extent{16, 16, 16}, {64, 208, 32}, {272, 48, 400}, {32, 160, 1040}})
      for (const int form : {0, 1, 2, 3})
        for (const bool into_wide : {false, true})
          for (const bool accumulate : {false, true}) {
            if (left_out()) continue;
            const bool ta = form & 1, tb = form & 2;
            const Dtype c_type = into_wide ? Dtype::fp32 : Dtype::bf16;
            const Fp8 of_a = accumulate ? Fp8::e5m2 : Fp8::e4m3;
            // Columns of wider matrices: what lies beyond them is not read, nor written.
            const Twin a(Dtype::bf16, ta ? e.k : e.m, (ta ? e.m : e.k) + 16, 1e-3),
                b(Dtype::bf16, tb ? e.n : e.k, (tb ? e.k : e.n) + 16, 3.0);
            const Twin c =
                accumulate ? Twin(c_type, e.m, e.n + 16, 0.05) : Twin::poisoned(c_type, e.m, e.n + 16);
            multiply(*cuda_kernels(reference ? KernelSet::reference : KernelSet::fast), a, b, c, ta, tb,
                     accumulate, of_a, Fp8::e4m3, ta ? e.m : e.k, tb ? e.k : e.n, e.n);
            c.expect_columns_alike(
                0, e.n, limit_of(c_type, reference),
                fmt::format("{} {} x {} x {} form {}{}{}", reference ? "tiles" : "library", e.m, e.n, e.k,
                            form, into_wide ? " wide" : "", accumulate ? " added" : ""));
          }
}

// An input gradient and the weight gradient behind it, with what the first leaves for the second and what is known of the weight's
// parts from before: no bit changes.
TEST_F(CudaFp8, WhatIsKeptBetweenGemmsChangesNoBit) {
  constexpr std::int64_t kTokens = 272, kOut = 160, kIn = 48;
  const Twin dy(Dtype::bf16, kTokens, kOut), x(Dtype::bf16, kTokens, kIn),
      other(Dtype::bf16, kTokens, kOut, 9);
  std::vector<double> weights;
  for (std::int64_t i = 0; i < kOut * kIn; ++i)
    weights.push_back(i < 64 * kIn ? 1e-3 * static_cast<double>(i % 7) : 0.5);
  const Twin w(Dtype::bf16, kOut, kIn, weights), largest(Dtype::fp32, 3, Fp8Largest::kWords);
  const auto gradients = [&](const KernelTable& table, bool keep, bool known, const Twin* between) {
    const Twin dx = Twin::poisoned(Dtype::bf16, kTokens, kIn), dw = Twin::poisoned(Dtype::fp32, kOut, kIn),
               aside = Twin::poisoned(Dtype::bf16, kTokens, kIn);
    test_gpu()->launch(test_stream(), [&](NativeStream s) {
      GemmArgs input{.a = dy.on(true),
                     .b = w.on(true),
                     .c = dx.on(true),
                     .round_a = Fp8::e5m2,
                     .round_b = Fp8::e4m3,
                     .a_again_turned = keep,
                     .stream = s};
      if (keep)
        input.largest_b = {.words = static_cast<std::uint32_t*>(largest.on(true).data),
                           .known = known,
                           .parts = 3,
                           .rows = {64, 32, 64}};
      table.gemm(input);
      if (between)
        table.gemm({.a = between->on(true),
                    .b = w.on(true),
                    .c = aside.on(true),
                    .round_a = Fp8::e5m2,
                    .round_b = Fp8::e4m3,
                    .a_again_turned = true,
                    .stream = s});
      table.gemm({.a = dy.on(true),
                  .b = x.on(true),
                  .c = dw.on(true),
                  .transpose_a = true,
                  .round_a = Fp8::e5m2,
                  .round_b = Fp8::e4m3,
                  .a_as_before = keep,
                  .stream = s});
    });
    synchronize_gpu();
    return std::pair(to_doubles(dx.downloaded().view()), to_doubles(dw.downloaded().view()));
  };
  for (const bool reference : {true, false}) {
    const KernelTable& table = *cuda_kernels(reference ? KernelSet::reference : KernelSet::fast);
    const auto plain = gradients(table, false, false, nullptr);
    EXPECT_EQ(gradients(table, true, false, nullptr), plain);
    EXPECT_EQ(gradients(table, true, true, nullptr), plain);
    EXPECT_EQ(gradients(table, true, true, &other), plain) << "another product came between";
    largest.upload();  // random bits, some of them those of large numbers
    EXPECT_NE(gradients(table, true, true, nullptr).first, plain.first) << "control: what is known is used";
  }
}

// Negative control: an operand in the other format is further from the twin than any bound.
TEST_F(CudaFp8, AnotherFormatIsSeen) {
  for (const bool reference : {true, false}) {
    const Twin a(Dtype::bf16, 64, 256), b(Dtype::bf16, 64, 256), c = Twin::poisoned(Dtype::fp32, 64, 64);
    on_both(*cuda_kernels(reference ? KernelSet::reference : KernelSet::fast),
            [&](const KernelTable& k, bool gpu, NativeStream s) {
              k.gemm({.a = a.on(gpu),
                      .b = b.on(gpu),
                      .c = c.on(gpu),
                      .transpose_b = true,
                      .round_a = gpu ? Fp8::e5m2 : Fp8::e4m3,
                      .round_b = Fp8::e4m3,
                      .stream = s});
            });
    EXPECT_GT(relative_distance(to_doubles(c.downloaded().view()), to_doubles(c.on(false))), 2e-2);
  }
}

TEST_F(CudaFp8, WhatIsNotFiniteShows) {
  for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    std::vector<double> values(32 * 32, 0.5);
    values[77] = bad;
    const Twin a(Dtype::bf16, 32, 32, values), b(Dtype::bf16, 32, 32),
        c = Twin::poisoned(Dtype::fp32, 32, 32);
    multiply(*cuda_kernels(KernelSet::fast), a, b, c, false, true, false, Fp8::e5m2, Fp8::e4m3, 32, 32, 32);
    for (const double x : to_doubles(c.downloaded().view())) EXPECT_TRUE(std::isnan(x));
  }
}

TEST_F(CudaFp8, ExtentsThatTheLibraryHasNotAreRefused) {
  const Twin a(Dtype::bf16, 24, 32), b(Dtype::bf16, 32, 32), c(Dtype::fp32, 24, 32);
  try {
    test_gpu()->launch(test_stream(), [&](NativeStream s) {
      cuda_kernels()->gemm({.a = a.on(true),
                            .b = b.on(true),
                            .c = c.on(true),
                            .round_a = Fp8::e4m3,
                            .round_b = Fp8::e4m3,
                            .stream = s});
    });
    ADD_FAILURE() << "24 rows are no multiple of 16";
  } catch (const BackendError& error) {
    EXPECT_NE(std::string(error.what()).find("24 x 32 x 32 in fp8: extents must be multiples of 16"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace sextant::testing

// System: the two matrix products. Expectation: the plain triple loop; and of the reference product, bits
// that no tiling and no thread count can move.
#include <gtest/gtest.h>

#include "tests/reference/matrix.hpp"

namespace sextant::testing {
namespace {

struct Random {
  std::uint64_t state = 99;
  double operator()() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<double>(state >> 11) * 0x1p-52 - 1.0;
  }
};

Matrix random_matrix(Dtype dtype, std::int64_t rows, std::int64_t cols, Random& next) {
  std::vector<double> values(static_cast<std::size_t>(rows * cols));
  for (double& v : values) v = next();
  return {dtype, rows, cols, values};
}

std::vector<double> plain_gemm(const GemmArgs& g) {
  const std::vector<double> a = to_doubles(g.a), b = to_doubles(g.b), c = to_doubles(g.c);
  const std::int64_t m = g.c.rows, n = g.c.cols, k = g.transpose_a ? g.a.rows : g.a.cols;
  std::vector<double> out(static_cast<std::size_t>(m * n));
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = g.accumulate ? c[static_cast<std::size_t>(i * n + j)] : 0.0;
      for (std::int64_t p = 0; p < k; ++p)
        sum += a[static_cast<std::size_t>(g.transpose_a ? p * m + i : i * k + p)] *
               b[static_cast<std::size_t>(g.transpose_b ? j * k + p : p * n + j)];
      out[static_cast<std::size_t>(i * n + j)] = sum;
    }
  return out;
}

TEST(Gemm, AllFormsAndStrides) {
  Random next;
  for (const KernelTable* table : {&cpu_reference_kernels(), &cpu_kernels()})
    for (const Dtype dtype : {Dtype::fp64, Dtype::fp32, Dtype::bf16})
      for (const Dtype out : {dtype, accumulator_of(dtype)})
        for (const auto& [m, n, k] : {std::tuple(1, 1, 1), std::tuple(7, 33, 5), std::tuple(65, 17, 129),
                                      std::tuple(50, 96, 64), std::tuple(3, 100, 1)})
          for (int form = 0; form < 8; ++form) {
            const bool ta = form & 1, tb = form & 2, accumulate = form & 4;
            // Every operand is a window of a wider matrix: a row stride of its own.
            const Matrix a = random_matrix(dtype, ta ? k : m, (ta ? m : k) + 3, next);
            const Matrix b = random_matrix(dtype, tb ? n : k, (tb ? k : n) + 5, next);
            const Matrix c = random_matrix(out, m, n + 2, next);
            const std::vector<double> around = to_doubles(c.view());
            const GemmArgs g{.a = a.view().column_range(1, ta ? m : k),
                             .b = b.view().column_range(2, tb ? k : n),
                             .c = c.view().column_range(1, n),
                             .transpose_a = ta,
                             .transpose_b = tb,
                             .accumulate = accumulate};
            const std::vector<double> expected = plain_gemm(g);
            table->gemm(g);
            const double bound = out == Dtype::fp64 ? 1e-14 : out == Dtype::fp32 ? 1e-6 : 5e-3;
            EXPECT_LT(relative_distance(to_doubles(g.c), expected), bound)
                << table->name << " " << name(dtype) << " to " << name(out) << " " << m << "x" << n << "x"
                << k << " form " << form;
            const std::vector<double> after = to_doubles(c.view());
            for (std::int64_t i = 0; i < m; ++i)
              for (const std::int64_t edge : {std::int64_t{0}, std::int64_t{n} + 1})
                EXPECT_EQ(after[static_cast<std::size_t>(i * (n + 2) + edge)],
                          around[static_cast<std::size_t>(i * (n + 2) + edge)]);
          }
}

TEST(Gemm, EmptyInnerExtentGivesZeroOrKeeps) {
  for (const KernelTable* table : {&cpu_reference_kernels(), &cpu_kernels()}) {
    const Matrix a(Dtype::fp32, 3, 0), b(Dtype::fp32, 0, 4),
        c(Dtype::fp32, 3, 4, std::vector<double>(12, 2.0));
    table->gemm({.a = a.view(), .b = b.view(), .c = c.view(), .accumulate = true});
    EXPECT_EQ(to_doubles(c.view()), std::vector<double>(12, 2.0));
    table->gemm({.a = a.view(), .b = b.view(), .c = c.view()});
    EXPECT_EQ(to_doubles(c.view()), std::vector<double>(12, 0.0));
  }
}

TEST(Gemm, DisagreeingExtentsAreRefused) {
  const Matrix a(Dtype::fp32, 3, 5), b(Dtype::fp32, 4, 4), c(Dtype::fp32, 3, 4);
  for (const KernelTable* table : {&cpu_reference_kernels(), &cpu_kernels()})
    EXPECT_THROW(table->gemm({.a = a.view(), .b = b.view(), .c = c.view()}), std::logic_error);
}

TEST(ReferenceGemm, BitsDoNotDependOnThreadsOrTiles) {
  Random next;
  for (const Dtype dtype : {Dtype::fp64, Dtype::fp32, Dtype::bf16}) {
    const Matrix a = random_matrix(dtype, 131, 257, next), b = random_matrix(dtype, 257, 77, next);
    const Matrix whole(accumulator_of(dtype), 131, 77);
    const auto gemm = cpu_reference_kernels().gemm;
    gemm({.a = a.view(), .b = b.view(), .c = whole.view()});
    for (const int threads : {2, 3, 7}) {
      const Matrix c(accumulator_of(dtype), 131, 77);
      gemm({.a = a.view(), .b = b.view(), .c = c.view(), .threads = threads});
      EXPECT_EQ(to_doubles(c.view()), to_doubles(whole.view())) << threads;
    }
    for (const std::int64_t first : {1, 5, 64}) {  // a window of rows and columns is the same bits
      const Matrix c(accumulator_of(dtype), 11, 13);
      gemm({.a = a.view().row_range(first, 11), .b = b.view().column_range(first, 13), .c = c.view()});
      EXPECT_EQ(to_doubles(c.view()), to_doubles(whole.view().row_range(first, 11).column_range(first, 13)));
    }
    // Control: another order of k is other bits in fp64 (the sums are not exact by accident).
    if (dtype == Dtype::fp64) {
      std::vector<double> ra = to_doubles(a.view()), rb = to_doubles(b.view());
      for (std::int64_t i = 0; i < 131; ++i) std::reverse(ra.begin() + i * 257, ra.begin() + (i + 1) * 257);
      std::vector<double> flipped(rb.size());
      for (std::int64_t p = 0; p < 257; ++p)
        std::copy_n(rb.begin() + p * 77, 77, flipped.begin() + (256 - p) * 77);
      const Matrix a2(dtype, 131, 257, ra), b2(dtype, 257, 77, flipped), c(dtype, 131, 77);
      gemm({.a = a2.view(), .b = b2.view(), .c = c.view()});
      EXPECT_NE(to_doubles(c.view()), to_doubles(whole.view()));
    }
  }
}

}  // namespace
}  // namespace sextant::testing

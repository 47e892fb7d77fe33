// The residual stream's sum, its copy and its norm in one call. Expectation: as add, cast and norm one after another, in every
// bit, of both tables of the CPU; without a branch, a copy and the norm alone.
#include <random>

#include <gtest/gtest.h>

#include "kernels/cpu/cpu_kernels.hpp"
#include "tests/reference/matrix.hpp"

namespace sextant::testing {
namespace {

TEST(Residual, AsOneCallAfterAnother) {
  std::mt19937_64 random(static_cast<std::uint64_t>(::testing::UnitTest::GetInstance()->random_seed()));
  std::normal_distribution<double> normal;
  for (const KernelTable* table : {&cpu_kernels(), &cpu_reference_kernels()})
    for (const Dtype dtype : {Dtype::fp64, Dtype::fp32, Dtype::bf16}) {
      const KernelTable& k = *table;
      constexpr std::int64_t rows = 7, cols = 129;
      const auto values = [&](std::int64_t n) {
        std::vector<double> v(static_cast<std::size_t>(n));
        for (double& x : v) x = normal(random);
        return v;
      };
      const std::vector<double> start = values(rows * cols);
      const Matrix stream(dtype, rows, cols, start), apart(dtype, rows, cols, start),
          before(dtype, rows, cols, start), branch(dtype, rows, cols, values(rows * cols)),
          weight(dtype, 1, cols, values(cols));
      const Matrix kept(dtype, rows, cols), y(dtype, rows, cols), y_apart(dtype, rows, cols);
      const Matrix inverse(accumulator_of(dtype), 1, rows), inverse_apart(accumulator_of(dtype), 1, rows);
      k.add({.a = apart.view(), .b = branch.view(), .out = apart.view()});
      RmsnormForwardArgs args{.x = apart.view(),
                              .weight = weight.view(),
                              .y = y_apart.view(),
                              .inverse_rms = inverse_apart.view()};
      k.rmsnorm_forward(args);
      args.x = stream.view();
      args.y = y.view();
      args.inverse_rms = inverse.view();
      args.branch = branch.view();
      args.kept = kept.view();
      k.rmsnorm_forward(args);
      EXPECT_EQ(to_doubles(stream.view()), to_doubles(apart.view()));
      EXPECT_EQ(to_doubles(kept.view()), to_doubles(apart.view()));
      EXPECT_EQ(to_doubles(y.view()), to_doubles(y_apart.view()));
      EXPECT_EQ(to_doubles(inverse.view()), to_doubles(inverse_apart.view()));
      EXPECT_NE(to_doubles(stream.view()), to_doubles(before.view())) << "control";

      args.x = before.view();
      args.branch = {};
      k.rmsnorm_forward(args);
      EXPECT_EQ(to_doubles(kept.view()), to_doubles(before.view())) << "a copy alone";
      EXPECT_NE(to_doubles(y.view()), to_doubles(y_apart.view())) << "control";
    }
}

}  // namespace
}  // namespace sextant::testing

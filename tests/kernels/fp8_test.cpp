// Unit: rounding to fp8, and products of operands so rounded on the CPU. Expectation: an oracle in fp64 that knows a format
// by its field widths alone and finds the nearest of all its values, ties to the even code.
#include "kernels/fp8.hpp"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cpu/cpu_kernels.hpp"
#include "tests/reference/matrix.hpp"

namespace sextant::testing {
namespace {

// Every finite value of a format without its sign, by code: OCP "8-bit floating point specification", revision 1.0.
std::vector<double> values_of(Fp8 format) {
  const int fraction = format == Fp8::e4m3 ? 3 : 2, bias = format == Fp8::e4m3 ? 7 : 15,
            finite = format == Fp8::e4m3 ? 0x7f : 0x7c;
  std::vector<double> values;
  for (int code = 0; code < finite; ++code) {
    const int exponent = code >> fraction, part = code & ((1 << fraction) - 1);
    const double steps = std::ldexp(1.0, fraction);
    values.push_back(exponent == 0 ? std::ldexp(part / steps, 1 - bias)
                                   : std::ldexp(1 + part / steps, exponent - bias));
  }
  return values;
}

int nearest(double size, const std::vector<double>& values) {
  if (size >= values.back()) return static_cast<int>(values.size()) - 1;
  int best = 0;
  for (int code = 1; code < static_cast<int>(values.size()); ++code) {
    const double old = std::abs(values[static_cast<std::size_t>(best)] - size),
                 now = std::abs(values[static_cast<std::size_t>(code)] - size);
    if (now < old || (now == old && code % 2 == 0)) best = code;
  }
  return best;
}

class Fp8Rounding : public ::testing::TestWithParam<Fp8> {};

TEST_P(Fp8Rounding, EveryCodeHasItsValue) {
  const std::vector<double> values = values_of(GetParam());
  EXPECT_EQ(values.back(), fp8::largest(GetParam()));
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    const float value = fp8::decode(byte, GetParam());
    const auto at = static_cast<std::size_t>(code & 0x7f);
    if (at < values.size()) {
      EXPECT_EQ(value, code & 0x80 ? -values[at] : values[at]) << code;
      EXPECT_EQ(std::signbit(value), code >= 0x80) << code;
      EXPECT_EQ(fp8::encode(value, GetParam()), byte);
    } else if (GetParam() == Fp8::e5m2 && at == 0x7c) {
      EXPECT_TRUE(std::isinf(value)) << code;
    } else {
      EXPECT_TRUE(std::isnan(value)) << code;
    }
  }
}

// All bf16, halves between neighbours and what lies beside them, sizes beyond the largest, infinities.
TEST_P(Fp8Rounding, IsToTheNearestValueTiesToEven) {
  const std::vector<double> values = values_of(GetParam());
  const auto expect = [&](float x) {
    const std::uint8_t code = fp8::encode(x, GetParam());
    const int best = nearest(std::abs(double{x}), values);
    ASSERT_EQ(code, best | (std::signbit(x) ? 0x80 : 0)) << x;
  };
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits)
    if (const float x = fp8::float_of(bits << 16); !std::isnan(x)) expect(x);
  for (std::size_t i = 0; i + 1 < values.size(); ++i) {
    const auto half = static_cast<float>((values[i] + values[i + 1]) / 2);
    for (const float x : {half, std::nextafter(half, 0.0f), std::nextafter(half, 1e9f)}) {
      expect(x);
      expect(-x);
    }
  }
  std::mt19937_64 random(::testing::UnitTest::GetInstance()->random_seed());
  std::uniform_real_distribution<float> power(-40, 20);
  for (int i = 0; i < 20000; ++i) expect(std::exp2(power(random)) * (i % 2 == 0 ? 1.0f : -1.0f));
}

TEST_P(Fp8Rounding, NanStaysNan) {
  EXPECT_TRUE(std::isnan(fp8::decode(fp8::encode(std::nanf(""), GetParam()), GetParam())));
}

// The largest power of two under which nothing is cut, over every size that a bf16 can have.
TEST_P(Fp8Rounding, ScalesTakeTheLargestValueAsHighAsItGoes) {
  for (std::uint32_t most = 1; most < 0x7f80; ++most) {
    const double size = fp8::float_of(most << 16);
    const fp8::Scale scale = fp8::scale_of(most, GetParam());
    ASSERT_EQ(double{scale.up} * scale.down, 1.0) << most;
    int power = 0;
    ASSERT_EQ(std::frexp(scale.up, &power), 0.5f) << most;
    ASSERT_LE(size * scale.up, fp8::largest(GetParam())) << most;
    if (power - 1 < 126) {
      ASSERT_GT(2 * size * scale.up, fp8::largest(GetParam())) << most;
    }
  }
  EXPECT_EQ(fp8::scale_of(0, GetParam()).up, 1.0f);
  for (const std::uint32_t most : {0x7f80u, 0x7fc0u})
    EXPECT_TRUE(std::isnan(fp8::scale_of(most, GetParam()).down)) << most;
}

INSTANTIATE_TEST_SUITE_P(Formats, Fp8Rounding, ::testing::Values(Fp8::e4m3, Fp8::e5m2));

std::vector<double> random_values(std::size_t n, double deviation) {
  static std::mt19937_64 engine(::testing::UnitTest::GetInstance()->random_seed());
  std::normal_distribution<double> normal(0, deviation);
  std::vector<double> values(n);
  for (double& v : values) v = normal(engine);
  return values;
}

// Rounds as the oracle does, in fp64.
std::vector<double> rounded(const TensorView& x, Fp8 format) {
  const std::vector<double> of = to_doubles(x), values = values_of(format);
  double most = 0;
  for (const double v : of) most = std::max(most, std::abs(v));
  double up = 1;
  while (most * up > values.back()) up /= 2;
  while (most > 0 && most * up * 2 <= values.back()) up *= 2;
  std::vector<double> out;
  for (const double v : of)
    out.push_back(std::copysign(values[static_cast<std::size_t>(nearest(std::abs(v) * up, values))] / up, v));
  return out;
}

TEST(Fp8Gemms, AreThoseOfRoundedOperands) {
  constexpr std::int64_t kM = 32, kN = 48, kK = 64;
  for (const KernelTable* table : {&cpu_kernels(), &cpu_reference_kernels()})
    for (const bool ta : {false, true})
      for (const bool tb : {false, true})
        for (const bool into_wide : {false, true})
          for (const bool accumulate : {false, true}) {
            const Fp8 of_a = ta ? Fp8::e5m2 : Fp8::e4m3, of_b = Fp8::e4m3;
            const Matrix a(Dtype::bf16, ta ? kK : kM, ta ? kM : kK, random_values(kM * kK, 3e-5)),
                b(Dtype::bf16, tb ? kN : kK, tb ? kK : kN, random_values(kN * kK, 7)),
                c(into_wide ? Dtype::fp32 : Dtype::bf16, kM, kN, random_values(kM * kN, 1e-3));
            const std::vector<double> before = to_doubles(c.view()), left = rounded(a.view(), of_a),
                                      right = rounded(b.view(), of_b);
            table->gemm({.a = a.view(),
                         .b = b.view(),
                         .c = c.view(),
                         .transpose_a = ta,
                         .transpose_b = tb,
                         .accumulate = accumulate,
                         .round_a = of_a,
                         .round_b = of_b});
            std::vector<double> expected(static_cast<std::size_t>(kM * kN));
            for (std::int64_t m = 0; m < kM; ++m)
              for (std::int64_t n = 0; n < kN; ++n) {
                double sum = accumulate ? before[static_cast<std::size_t>(m * kN + n)] : 0;
                for (std::int64_t k = 0; k < kK; ++k)
                  sum += left[static_cast<std::size_t>(ta ? k * kM + m : m * kK + k)] *
                         right[static_cast<std::size_t>(tb ? n * kK + k : k * kN + n)];
                expected[static_cast<std::size_t>(m * kN + n)] = sum;
              }
            const double bound = into_wide ? 1e-6 : 4e-3,
                         distance = relative_distance(to_doubles(c.view()), expected);
            EXPECT_LE(distance, bound) << ta << tb << into_wide << accumulate << " " << table->name;
            // Control: operands that are not rounded are further away than that.
            if (!into_wide || accumulate) continue;
            table->gemm({.a = a.view(), .b = b.view(), .c = c.view(), .transpose_a = ta, .transpose_b = tb});
            EXPECT_GT(relative_distance(to_doubles(c.view()), expected), 1e-2);
          }
}

// An operand that is not finite makes a product that is not: the step is left out as in other formats.
TEST(Fp8Gemms, OfWhatIsNotFiniteAreNan) {
  for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    std::vector<double> values = random_values(16 * 16, 1);
    values[7] = bad;
    const Matrix a(Dtype::bf16, 16, 16, values), b(Dtype::bf16, 16, 16, random_values(16 * 16, 1)),
        c(Dtype::fp32, 16, 16, std::vector<double>(16 * 16, 0.0));
    cpu_kernels().gemm(
        {.a = a.view(), .b = b.view(), .c = c.view(), .round_a = Fp8::e5m2, .round_b = Fp8::e4m3});
    for (const double x : to_doubles(c.view())) EXPECT_TRUE(std::isnan(x));
  }
}

}  // namespace
}  // namespace sextant::testing

// System: formats of stored numbers. Expectation: all 65,536 patterns of both 16-bit formats survive a round trip, and
// rounding is to nearest even, against neighbours found by search.
#include "runtime/weights/number_formats.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include <gtest/gtest.h>

namespace sextant::testing {
namespace {

double widened(StoredType type, std::uint16_t bits) {
  double value = 0;
  decode_numbers(type, std::as_bytes(std::span(&bits, 1)), {&value, 1});
  return value;
}
std::uint16_t narrowed(StoredType type, double value) {
  std::uint16_t bits = 0;
  encode_numbers(type, {&value, 1}, std::as_writable_bytes(std::span(&bits, 1)));
  return bits;
}

TEST(NumberFormats, EveryPatternOfSixteenBitsComesBack) {
  for (const StoredType type : {StoredType::f16, StoredType::bf16})
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
      const double value = widened(type, static_cast<std::uint16_t>(bits));
      const std::uint16_t again = narrowed(type, value);
      if (std::isnan(value))
        EXPECT_TRUE(std::isnan(widened(type, again)));
      else
        ASSERT_EQ(again, bits) << name(type) << ' ' << value;
    }
}

TEST(NumberFormats, KnownValues) {
  EXPECT_EQ(widened(StoredType::f16, 0x3c00), 1.0);
  EXPECT_EQ(widened(StoredType::f16, 0x0001), 0x1p-24);
  EXPECT_EQ(widened(StoredType::f16, 0x7bff), 65504.0);
  EXPECT_EQ(widened(StoredType::f16, 0xfc00), -HUGE_VAL);
  EXPECT_EQ(widened(StoredType::bf16, 0x3f80), 1.0);
  EXPECT_EQ(widened(StoredType::bf16, 0xc049), -3.140625);
  EXPECT_EQ(narrowed(StoredType::f16, 65519.9), 0x7bff);
  EXPECT_EQ(narrowed(StoredType::f16, 65520), 0x7c00) << "half of the last place beyond: infinity";
  EXPECT_EQ(narrowed(StoredType::f16, 0x1p-25), 0) << "a tie to even";
  EXPECT_EQ(narrowed(StoredType::f16, 0x1.8p-25), 1);
  EXPECT_EQ(narrowed(StoredType::bf16, 1 + 0x1p-8), 0x3f80) << "a tie to even";
  EXPECT_EQ(narrowed(StoredType::bf16, 1 + 0x3p-8), 0x3f82) << "a tie to even";
  // One rounding, not two: through fp32 this would become a tie and go down.
  EXPECT_EQ(narrowed(StoredType::bf16, 1 + 0x1p-8 + 0x1p-40), 0x3f81);
}

// Of the two neighbours, the nearer; of equally near ones, the even.
TEST(NumberFormats, RoundingIsToNearestEven) {
  std::mt19937_64 random(1);
  for (const StoredType type : {StoredType::f16, StoredType::bf16})
    for (int i = 0; i < 200000; ++i) {
      const auto low = static_cast<std::uint16_t>(random() % 0x7bff);
      const double a = widened(type, low), b = widened(type, static_cast<std::uint16_t>(low + 1));
      const double at = static_cast<double>(random() % 9) / 8;
      const double value = a + at * (b - a);
      const bool up = at > 0.5 || (at == 0.5 && (low & 1));
      ASSERT_EQ(narrowed(type, value), low + (up ? 1 : 0)) << name(type) << ' ' << value;
      ASSERT_EQ(narrowed(type, -value), (low + (up ? 1 : 0)) | 0x8000);
    }
}

TEST(NumberFormats, WideFormatsKeepTheirBits) {
  const std::vector<float> singles = {0.1f, -3e38f, 1e-45f, 65504.0f};
  std::vector<double> values(4);
  decode_numbers(StoredType::f32, std::as_bytes(std::span(singles)), values);
  std::vector<float> again(4);
  encode_numbers(StoredType::f32, values, std::as_writable_bytes(std::span(again)));
  EXPECT_EQ(again, singles);
  const std::vector<double> doubles = {0.1, -1e300};
  std::vector<double> twice(2);
  decode_numbers(StoredType::f64, std::as_bytes(std::span(doubles)), twice);
  EXPECT_EQ(twice, doubles);
}

}  // namespace
}  // namespace sextant::testing

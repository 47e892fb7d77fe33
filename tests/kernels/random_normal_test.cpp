// Unit: normal numbers by their place in a tensor. Expectations: Philox's published answers (Random123, kat_vectors);
// logarithm and circle against libm; moments, tails, neighbours and Kolmogorov's distance of the normal distribution within
// five standard errors, which numbers that are 1 % too wide, of another shape or correlated are not; slices are parts of the whole.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numbers>
#include <string>

#include <gtest/gtest.h>

#include "kernels/counter_normal.hpp"
#include "tests/reference/matrix.hpp"

namespace sextant::testing {
namespace {

std::vector<double> numbers_of(std::uint64_t key, std::int64_t n, double deviation = 1) {
  std::vector<double> values(static_cast<std::size_t>(n));
  cpu_kernels().random_normal({.x = {values.data(), Dtype::fp64, 1, n},
                               .key = key,
                               .cols = n,
                               .model_cols = n,
                               .deviation = deviation});
  return values;
}

// What of a sample does not look like independent normal numbers; empty when all does.
std::string not_normal(std::vector<double> x) {
  const auto n = static_cast<double>(x.size());
  std::string found;
  const auto hold = [&](const char* what, double got, double expected, double error) {
    if (!(std::abs(got - expected) <= 5 * error)) found += std::string(what) + " ";
  };
  std::array<double, 5> moment{};
  for (const double v : x)
    for (std::size_t k = 1; k <= 4; ++k) moment[k] += std::pow(v, static_cast<double>(k)) / n;
  hold("mean", moment[1], 0, 1 / std::sqrt(n));
  hold("variance", moment[2], 1, std::sqrt(2 / n));
  hold("skewness", moment[3], 0, std::sqrt(15 / n));
  hold("kurtosis", moment[4], 3, std::sqrt(96 / n));
  for (const std::size_t lag : {1u, 2u, 3u, 64u}) {
    double together = 0, squares = 0;
    for (std::size_t i = 0; i + lag < x.size(); ++i) {
      together += x[i] * x[i + lag];
      squares += (x[i] * x[i] - 1) * (x[i + lag] * x[i + lag] - 1) / 2;
    }
    hold("neighbours", together / n, 0, 1 / std::sqrt(n));
    hold("squares of neighbours", squares / n, 0, 1 / std::sqrt(n));
  }
  for (const double bound : {2.0, 3.0, 4.0})
    for (const double side : {-1.0, 1.0}) {
      const double p = std::erfc(bound / std::numbers::sqrt2) / 2;
      const auto beyond = std::ranges::count_if(x, [&](double v) { return side * v > bound; });
      hold("tail", static_cast<double>(beyond) / n, p, std::sqrt(p / n));
    }
  std::ranges::sort(x);
  double distance = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double p = std::erfc(-x[i] / std::numbers::sqrt2) / 2;
    distance = std::max({distance, p - static_cast<double>(i) / n, static_cast<double>(i + 1) / n - p});
  }
  if (!(std::sqrt(n) * distance <= 2.3)) found += "distance ";  // 1 in 20,000
  return found;
}

constexpr std::int64_t kSample = 1 << 20;

TEST(RandomNormal, PhiloxAsPublished) {
  using counter::Block;
  const auto words = [](const Block& b) { return std::vector<std::uint32_t>(b.word, b.word + 4); };
  EXPECT_EQ(words(counter::philox({{0, 0, 0, 0}}, 0)),
            (std::vector<std::uint32_t>{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  EXPECT_EQ(words(counter::philox({{~0u, ~0u, ~0u, ~0u}}, ~std::uint64_t{0})),
            (std::vector<std::uint32_t>{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
  EXPECT_EQ(
      words(counter::philox({{0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}}, 0x299f31d0a4093822u)),
      (std::vector<std::uint32_t>{0xd16cfe09u, 0x94fdcceb, 0x5001e420u, 0x24126ea1u}));
}

TEST(RandomNormal, LogarithmAndCircleAreThoseOfLibm) {
  double worst_log = 0, worst_circle = 0;
  const auto look = [&](std::uint64_t bits) {
    const double u = counter::uniform(bits), expected = std::log(u);
    worst_log = std::max(worst_log, std::abs(counter::logarithm(u) / expected - 1));
    const counter::Pair at = counter::circle(bits);
    // The angle from the middle of the first quadrant: the pair turned by what its series count from.
    const double angle =
        std::numbers::pi / 2 * (static_cast<double>(bits >> 62) + counter::uniform(bits << 2) - 0.5);
    worst_circle =
        std::max({worst_circle, std::abs(at.first - std::cos(angle)), std::abs(at.second - std::sin(angle))});
  };
  for (std::uint64_t i = 0; i < 200000; ++i) {
    const counter::Block b = counter::philox({{static_cast<std::uint32_t>(i), 0, 0, 0}}, 5);
    look(std::uint64_t{b.word[0]} << 32 | b.word[1]);
    look(i << 12);
    look(~(i << 12));  // next to 0 and to 1
  }
  EXPECT_LT(worst_log, 1e-13);
  EXPECT_LT(worst_circle, 2e-15);
  EXPECT_GT(std::abs(counter::logarithm(0.3) / std::log(0.3001) - 1), 1e-13) << "control";
}

TEST(RandomNormal, AreNormal) {
  for (const std::uint64_t key : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{0x9e3779b97f4a7c15u}})
    EXPECT_EQ(not_normal(numbers_of(key, kSample)), "") << key;
  // Two tensors of one model, element by element.
  const std::vector<double> a = numbers_of(2, kSample), b = numbers_of(3, kSample);
  std::vector<double> turns;
  for (std::size_t i = 0; i < a.size() / 2; ++i) {
    turns.push_back(a[i]);
    turns.push_back(b[i]);
  }
  EXPECT_EQ(not_normal(turns), "");
}

TEST(RandomNormal, WhatIsNotNormalIsSeen) {
  const std::vector<double> x = numbers_of(1, kSample);
  const auto changed = [&](auto&& f) {
    std::vector<double> y = x;
    for (std::size_t i = 0; i < y.size(); ++i) y[i] = f(i);
    return not_normal(y);
  };
  EXPECT_NE(changed([&](std::size_t i) { return 1.01 * x[i]; }), "");
  EXPECT_NE(changed([&](std::size_t i) { return x[i] + 0.01; }), "");
  EXPECT_NE(changed([&](std::size_t i) { return (x[i] + 0.02 * x[i ^ 1]) / std::sqrt(1.0004); }), "");
  EXPECT_NE(changed([&](std::size_t i) { return std::clamp(x[i], -4.0, 4.0); }), "") << "no tails";
  EXPECT_NE(changed([&](std::size_t i) { return std::abs(x[i]) * (i % 2 == 0 ? 1 : -1); }), "")
      << "signs by turns";
  EXPECT_NE(changed([&](std::size_t i) { return std::sqrt(3.0) * std::erf(x[i] / std::numbers::sqrt2); }), "")
      << "uniform";
}

TEST(RandomNormal, ASliceIsAPartOfTheWhole) {
  constexpr std::int64_t kAllRows = 9, kCols = 37;
  const std::vector<double> whole = numbers_of(7, kAllRows * kCols, 0.02);
  for (const Dtype dtype : {Dtype::fp64, Dtype::fp32, Dtype::bf16})
    for (const std::int64_t first_col : {0, 5, 20})
      for (const std::int64_t begin : {0, 1, 18}) {
        const std::int64_t cols = first_col == 0 ? kCols : 17, first_row = 2, n = 5 * cols - begin;
        const Matrix got(dtype, 1, n), expected(dtype, 1, n, [&] {
          std::vector<double> values;
          for (std::int64_t e = begin; e < begin + n; ++e)
            values.push_back(
                whole[static_cast<std::size_t>((first_row + e / cols) * kCols + first_col + e % cols)]);
          return values;
        }());
        RandomNormalArgs args{.x = got.view(),
                              .key = 7,
                              .begin = begin,
                              .cols = cols,
                              .first_row = first_row,
                              .first_col = first_col,
                              .model_cols = kCols,
                              .deviation = 0.02};
        cpu_kernels().random_normal(args);
        EXPECT_EQ(to_doubles(got.view()), to_doubles(expected.view()));  // rounded once
        args.first_row = 3;
        cpu_kernels().random_normal(args);
        EXPECT_NE(to_doubles(got.view()), to_doubles(expected.view())) << "control";
      }
}

// Runs start from them: a change of any bit changes every loss, and belongs into CHANGELOG.md.
TEST(RandomNormal, StayAsTheyAre) {
  std::vector<std::uint64_t> bits;
  for (const double v : numbers_of(42, 4)) bits.push_back(std::bit_cast<std::uint64_t>(v));
  EXPECT_EQ(bits, (std::vector<std::uint64_t>{4598392984431163114u, 4608096967215626222u,
                                              13827983890076112881u, 4608593016618875886u}));
}

}  // namespace
}  // namespace sextant::testing

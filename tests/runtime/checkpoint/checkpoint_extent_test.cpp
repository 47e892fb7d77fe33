// Properties of places in a tensor. Oracle: a boolean per element.
#include <random>

#include <gtest/gtest.h>

#include "runtime/checkpoint/extent.hpp"

namespace sextant {
namespace {

ModelSlice slice_of(std::int64_t rows, std::int64_t cols, std::int64_t first_row, std::int64_t first_col) {
  ModelSlice s;
  s.name = "t";
  s.model_rows = 13;
  s.model_cols = 17;
  s.rows = rows;
  s.cols = cols;
  s.first_row = first_row;
  s.first_col = first_col;
  return s;
}

TEST(CheckpointExtent, RangesBecomeRectanglesInOrderAndContiguous) {
  std::mt19937 random(1);
  const auto upto = [&](std::int64_t n) { return std::uniform_int_distribution<std::int64_t>(0, n)(random); };
  for (int round = 0; round < 2000; ++round) {
    const std::int64_t first_row = upto(12), first_col = upto(16);
    // Rows may be padding beyond the model's 13.
    const ModelSlice s = slice_of(1 + upto(15), 1 + upto(16 - first_col), first_row, first_col);
    const std::int64_t begin = upto(s.rows * s.cols), end = begin + upto(s.rows * s.cols - begin);
    const std::int64_t most = 1 + upto(40);
    std::vector<std::pair<std::int64_t, std::int64_t>> expected, got;
    for (std::int64_t at = begin; at < end; ++at)
      if (first_row + at / s.cols < s.model_rows)
        expected.emplace_back(first_row + at / s.cols, first_col + at % s.cols);
    std::int64_t at = begin;
    for (const SliceExtent& e : extents_of(s, {begin, end}, most)) {
      EXPECT_EQ(e.begin, at) << "each begins where the last one ends";
      at += e.extent.elements();
      EXPECT_TRUE(e.extent.elements() <= most || e.extent.rows == 1);
      for (std::int64_t r = 0; r < e.extent.rows; ++r)
        for (std::int64_t c = 0; c < e.extent.cols; ++c) got.emplace_back(e.extent.row + r, e.extent.col + c);
    }
    ASSERT_EQ(got, expected) << s.rows << " x " << s.cols << ", " << begin << " to " << end;
  }
}

TEST(CheckpointExtent, AtMostThreeWithoutALimit) {
  EXPECT_EQ(extents_of(slice_of(13, 17, 0, 0), {5, 200}, 1 << 20).size(), 3U);
  EXPECT_EQ(extents_of(slice_of(13, 17, 0, 0), {0, 221}, 1 << 20).size(), 1U);
  EXPECT_TRUE(extents_of(slice_of(4, 17, 13, 0), {0, 68}).empty()) << "padding only";
}

TEST(CheckpointExtent, CoverIsFoundAndItsFaultsAreNamed) {
  std::mt19937 random(2);
  for (int round = 0; round < 500; ++round) {
    // Cut 13 x 17 into random rectangles, by cutting the largest so far.
    std::vector<Extent> parts = {{0, 0, 13, 17}};
    for (int cut = 0; cut < 6; ++cut) {
      const auto big = std::ranges::max_element(parts, {}, &Extent::elements);
      Extent a = *big, b = *big;
      if (random() % 2 == 0 && a.rows > 1) {
        a.rows = 1 + static_cast<std::int64_t>(random() % static_cast<unsigned>(a.rows - 1));
        b.row += a.rows;
        b.rows -= a.rows;
      } else if (a.cols > 1) {
        a.cols = 1 + static_cast<std::int64_t>(random() % static_cast<unsigned>(a.cols - 1));
        b.col += a.cols;
        b.cols -= a.cols;
      } else {
        continue;
      }
      *big = a;
      parts.push_back(b);
    }
    std::ranges::shuffle(parts, random);
    EXPECT_EQ(cover_problem(parts, 13, 17), std::nullopt);
    std::vector<Extent> spoilt = parts;
    spoilt.pop_back();
    ASSERT_TRUE(cover_problem(spoilt, 13, 17));
    EXPECT_NE(cover_problem(spoilt, 13, 17)->find("are not there"), std::string::npos);
    spoilt = parts;
    spoilt.push_back(parts.front());
    ASSERT_TRUE(cover_problem(spoilt, 13, 17));
    EXPECT_NE(cover_problem(spoilt, 13, 17)->find("overlap"), std::string::npos);
    // One lost and as many elements twice: only looking at places finds it.
    if (parts[0].elements() == parts[1].elements()) {
      spoilt = parts;
      spoilt[0] = parts[1];
      EXPECT_TRUE(cover_problem(spoilt, 13, 17));
    }
    spoilt = parts;
    spoilt[0].col += 17;
    ASSERT_TRUE(cover_problem(spoilt, 13, 17));
    EXPECT_NE(cover_problem(spoilt, 13, 17)->find("outside"), std::string::npos);
  }
  const Extent huge{0, 0, INT64_MAX, INT64_MAX};
  EXPECT_TRUE(cover_problem(std::span(&huge, 1), 13, 17));
  const Extent negative{-1, 0, 13, 17};
  EXPECT_TRUE(cover_problem(std::span(&negative, 1), 13, 17));
}

}  // namespace
}  // namespace sextant

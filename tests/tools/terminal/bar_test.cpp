// Bars and curves of a line: lengths, ends, what is no number, and ASCII where blocks cannot be shown.
#include "tools/terminal/bar.hpp"

#include <cmath>
#include <limits>
#include <sstream>

#include <gtest/gtest.h>

namespace sextant {
namespace {

struct Screen {
  std::ostringstream out, err;
  Terminal utf8{.out = out, .err = err, .columns = 80, .utf8 = true};
  Terminal ascii{.out = out, .err = err, .columns = 80, .utf8 = false};
  Terminal pipe{.out = out, .err = err, .columns = kUnlimitedColumns, .utf8 = true};
};

TEST(Bar, IsAsLongAsItsShare) {
  Screen s;
  EXPECT_EQ(bar_text(s.utf8, 0.5, 4), "██");
  EXPECT_EQ(bar_text(s.utf8, 0.5625, 2), "█▏");  // nine eighths
  EXPECT_EQ(bar_text(s.utf8, 0, 4), "");
  EXPECT_EQ(bar_text(s.utf8, 7, 3), "███");  // beyond the end
  EXPECT_EQ(bar_text(s.utf8, std::nan(""), 3), "");
  EXPECT_NE(bar_text(s.utf8, 0.25, 4), bar_text(s.utf8, 0.75, 4));
}

TEST(Bar, IsAsciiInAnotherLocaleAndInAPipe) {
  Screen s;
  EXPECT_EQ(bar_text(s.ascii, 0.5, 4), "##");
  EXPECT_EQ(bar_text(s.pipe, 0.5, 4), "##");
}

TEST(Curve, GoesFromTheLeastToTheLargest) {
  Screen s;
  EXPECT_EQ(curve_text(s.utf8, {7, 6, 5, 4, 3, 2, 1, 0}, 40), "█▇▆▅▄▃▂▁");
  EXPECT_EQ(curve_text(s.ascii, {0, 7}, 40), "_#");
  EXPECT_EQ(curve_text(s.utf8, {2, 2, 2}, 40), "▁▁▁");
  EXPECT_EQ(curve_text(s.utf8, {0, 2, 6, 8}, 2), "▁█");  // means of stretches
}

TEST(Curve, LeavesOutWhatIsNoNumber) {
  Screen s;
  EXPECT_EQ(curve_text(s.utf8, {0, std::nan(""), std::numeric_limits<double>::infinity(), 1}, 40), "▁█");
  EXPECT_EQ(curve_text(s.utf8, {std::nan("")}, 40), "");
  EXPECT_EQ(curve_text(s.utf8, {}, 40), "");
}

}  // namespace
}  // namespace sextant

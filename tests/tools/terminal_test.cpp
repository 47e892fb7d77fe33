#include "tools/terminal.hpp"

#include <gtest/gtest.h>

namespace sextant {
namespace {

TEST(Terminal, WidthCountsCodePointsAndSkipsColour) {
  EXPECT_EQ(display_width("abc"), 3);
  EXPECT_EQ(display_width("2³⁰ GiB"), 7);
  EXPECT_EQ(display_width(paint(true, Style::red, "abc")), 3);
  EXPECT_EQ(display_width("abc\x1b["), 3);  // a cut sequence ends the text
  EXPECT_EQ(paint(false, Style::red, "abc"), "abc");
  EXPECT_NE(paint(true, Style::red, "abc"), "abc");
}

TEST(Terminal, WrapKeepsWordsAndWidth) {
  const auto lines = wrap("one two three four", 9);
  EXPECT_EQ(lines, (std::vector<std::string>{"one two", "three", "four"}));
  EXPECT_EQ(wrap("a-word-longer-than-that x", 5), (std::vector<std::string>{"a-word-longer-than-that", "x"}));
  EXPECT_EQ(wrap("first\nsecond", 80), (std::vector<std::string>{"first", "second"}));
  EXPECT_EQ(wrap("", 10), std::vector<std::string>{""});
}

}  // namespace
}  // namespace sextant

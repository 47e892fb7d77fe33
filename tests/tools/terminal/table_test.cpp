#include "tools/terminal/table.hpp"

#include <iostream>
#include <sstream>

#include <gtest/gtest.h>

#include "core/base/error.hpp"

namespace sextant {
namespace {

Terminal plain(int columns) { return {.out = std::cout, .err = std::cerr, .columns = columns, .utf8 = true}; }

// Full width 9 + 2 + 7 + 2 + 8 + 2 + 20 = 50 columns.
Table sample() {
  Table table({{"plan", Align::left},
               {"step ms", Align::right, 1},
               {"peak GiB", Align::right, 2},
               {"note", Align::left}});
  table.add_row({"tp4.pp2.x", "812.5", "71.3", "crosses nodes, slowly"});
  table.add_row({"tp2", "1012.5", "9.3", "fits"});
  return table;
}

std::vector<std::string> lines(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> out;
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

TEST(Table, AlignsAndShowsAllWhenThereIsRoom) {
  const auto out = lines(sample().render(plain(80)));
  ASSERT_EQ(out.size(), 4U);
  EXPECT_EQ(out[0], "plan       step ms  peak GiB  note");
  EXPECT_EQ(out[2], "tp4.pp2.x    812.5      71.3  crosses nodes, slowly");
  EXPECT_EQ(out[3], "tp2         1012.5       9.3  fits");
}

TEST(Table, DropsTheHighestNumberFirstAndSaysSo) {
  const std::string at_45 = sample().render(plain(45));
  EXPECT_EQ(at_45.find("71.3"), std::string::npos);
  EXPECT_NE(at_45.find("812.5"), std::string::npos);
  EXPECT_NE(at_45.find("(not shown: peak GiB;"), std::string::npos);
  const std::string at_35 = sample().render(plain(35));
  EXPECT_EQ(at_35.find("812.5"), std::string::npos);
}

TEST(Table, NeverWraps) {
  for (int columns = 25; columns <= 60; ++columns)
    for (const auto& line : lines(sample().render(plain(columns))))
      EXPECT_LE(display_width(line), columns) << line;
  // Negative control: the full table is wider than that.
  EXPECT_GT(display_width(lines(sample().render(plain(25), true))[2]), 25);
}

TEST(Table, ShortensTextWithAnEllipsisThatTheTerminalKnows) {
  const std::string utf8 = sample().render(plain(25));
  EXPECT_NE(utf8.find("…"), std::string::npos);
  Terminal ascii = plain(25);
  ascii.utf8 = false;
  const std::string text = sample().render(ascii);
  EXPECT_NE(text.find("..."), std::string::npos);
  for (const char c : text) EXPECT_GE(c, 0) << "not ASCII";
}

TEST(Table, ColourOnlyWhenAsked) {
  Terminal terminal = plain(80);
  EXPECT_EQ(sample().render(terminal).find('\x1b'), std::string::npos);
  terminal.color = true;
  EXPECT_NE(sample().render(terminal).find('\x1b'), std::string::npos);
}

TEST(Table, RefusesARowOfWrongLength) { EXPECT_THROW(sample().add_row({"x"}), std::logic_error); }

}  // namespace
}  // namespace sextant

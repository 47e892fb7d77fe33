#include "tools/terminal/progress.hpp"

#include <iostream>
#include <sstream>

#include <gtest/gtest.h>

namespace sextant {
namespace {

using std::chrono::milliseconds;

struct Fixture {
  std::ostringstream err;
  std::chrono::steady_clock::time_point now{};
  Terminal terminal{.out = std::cout, .err = err};
  Progress::Clock clock = [this] { return now; };
};

TEST(Progress, SaysNothingAboutShortJobs) {
  for (const bool tty : {true, false}) {
    Fixture f;
    f.terminal.err_is_terminal = tty;
    {
      Progress progress(f.terminal, "searching", 100, "plans", f.clock);
      for (int i = 0; i < 40; ++i) {
        f.now += milliseconds(10);
        progress.update(i);
      }
    }
    EXPECT_EQ(f.err.str(), "");
  }
}

TEST(Progress, BarWithRateAndTimeLeftOnATerminalAndClearedAtTheEnd) {
  Fixture f;
  f.terminal.err_is_terminal = true;
  {
    Progress progress(f.terminal, "searching", 100, "plans", f.clock);
    f.now += milliseconds(2000);
    progress.update(50, "best 812 ms");
    EXPECT_NE(f.err.str().find(" 50 %, 50 plans, 25 plans/s, 2.0 s left; best 812 ms"), std::string::npos)
        << f.err.str();
    EXPECT_NE(f.err.str().find("█████     ]"), std::string::npos);
    EXPECT_EQ(f.err.str().find('\n'), std::string::npos);
  }
  EXPECT_TRUE(f.err.str().ends_with("\r\x1b[K"));
}

TEST(Progress, PlainLinesEveryFewSecondsElsewhere) {
  Fixture f;
  Progress progress(f.terminal, "searching", 100, "plans", f.clock);
  for (int i = 0; i < 120; ++i) {
    f.now += milliseconds(100);
    progress.update(i);
  }
  const std::string text = f.err.str();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text;  // 12 s, one line in 5 s
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
}

TEST(Progress, Durations) {
  EXPECT_EQ(duration_text(3.21), "3.2 s");
  EXPECT_EQ(duration_text(245), "4 min 05 s");
  EXPECT_EQ(duration_text(59.97), "1 min 00 s");
  EXPECT_EQ(duration_text(7380), "2 h 03 min");
}

}  // namespace
}  // namespace sextant

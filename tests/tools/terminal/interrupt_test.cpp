// Which requests to end are obeyed, and how often.
#include "tools/terminal/interrupt.hpp"

#include <csignal>

#include <gtest/gtest.h>

namespace sextant {
namespace {

TEST(Interrupt, TheFirstRequestCountsAndTheOthersChangeNothing) {
  for (const int first : {SIGTERM, SIGUSR1, SIGHUP, SIGINT}) {
    const InterruptGuard guard;
    EXPECT_FALSE(guard.stopped());
    std::raise(first);
    for (const int number : {SIGTERM, SIGUSR1, SIGHUP, SIGTERM}) std::raise(number);
    EXPECT_TRUE(guard.stopped());
    EXPECT_EQ(guard.signal(), first);
  }
}

TEST(Interrupt, WithoutARequestTheSignalsAreWhatTheyWere) {
  const auto hang_up = std::signal(SIGHUP, SIG_IGN);
  {
    const InterruptGuard guard;
    std::raise(SIGHUP);
    EXPECT_FALSE(guard.stopped()) << "as under nohup";
  }
  EXPECT_EQ(std::signal(SIGHUP, hang_up), SIG_IGN);
}

TEST(InterruptDeathTest, OnlyTheSecondCtrlCEndsTheProcess) {
  EXPECT_EXIT(
      {
        const InterruptGuard guard("saving; Ctrl-C again");
        std::raise(SIGINT);
        std::raise(SIGINT);
        std::_Exit(0);
      },
      testing::KilledBySignal(SIGINT), "saving; Ctrl-C again");
}

// timeout and schedulers ask the process and then its group: the second request may come when all is done.
TEST(InterruptDeathTest, ARequestBehindTheEndThatWasAskedForIsNone) {
  EXPECT_EXIT(
      {
        {
          const InterruptGuard guard;
          std::raise(SIGTERM);
        }
        std::raise(SIGTERM);
        std::_Exit(0);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace sextant

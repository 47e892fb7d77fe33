// The suite on threads of this process, plain and behind emulated links; then what only local ranks can show:
// disagreement, abort, exceptions.
#include <chrono>
#include <fstream>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/runtime/communicators/communicator_suite.hpp"
#include "tests/runtime/communicators/device_at_once.hpp"
#include "tests/support/sanitized.hpp"

namespace sextant::testing {
namespace {

struct Local {
  static std::vector<int> rank_counts() { return {1, 2, 3, 4, 8}; }
  static void run(int ranks, const RankBody& body) { run_local_ranks(ranks, body); }
};

void run_shaped(int ranks, const LinkShape& shape, const RankBody& body) {
  const auto fabric = make_fabric(shape, ranks, ranks);
  auto world = make_local_world(ranks);
  for (auto& c : world) c = make_shaped(std::move(c), fabric);
  run_ranks(world, body);
}

struct Shaped {
  static std::vector<int> rank_counts() { return {1, 2, 4, 5}; }
  static void run(int ranks, const RankBody& body) {
    run_shaped(ranks, {2, BytesPerSecond(50e9), Seconds(1e-6), BytesPerSecond(20e9), Seconds(2e-6)}, body);
  }
};

struct SharedDevice {
  static std::vector<int> rank_counts() { return {1, 2, 3, 4, 8}; }
  static void run(int ranks, const RankBody& body) {
    auto world = make_local_world(ranks);
    share_device(std::span(world), DeviceAtOnce{});
    run_ranks(world, body);
  }
};

using Backends = ::testing::Types<Local, Shaped, SharedDevice>;
INSTANTIATE_TYPED_TEST_SUITE_P(InProcess, CommunicatorSuite, Backends);

std::string error_of(int ranks, const RankBody& body) {
  try {
    run_local_ranks(ranks, body);
  } catch (const BackendError& error) {
    return error.what();
  }
  return "";
}

TEST(LocalCommunicator, RanksThatDisagreeAreToldSo) {
  EXPECT_NE(error_of(3,
                     [](Communicator& c) {
                       std::vector<float> x(10);
                       c.all_reduce(x.data(), x.data(), c.rank() == 2 ? 9 : 10, Dtype::fp32, Reduction::sum,
                                    kNoStream);
                     })
                .find("ranks disagree: rank 0 calls all_reduce of 10 (fp32), rank 2 calls all_reduce of 9"),
            std::string::npos);
  EXPECT_NE(error_of(2,
                     [](Communicator& c) {
                       float x = 0;
                       if (c.rank() == 0)
                         c.barrier(kNoStream);
                       else
                         c.broadcast(&x, 4, 0, kNoStream);
                     })
                .find("ranks disagree"),
            std::string::npos);
  EXPECT_NE(error_of(2,
                     [](Communicator& c) {
                       double x = 0;
                       if (c.rank() == 0)
                         c.send(&x, 8, 1, kNoStream);
                       else
                         c.recv(&x, 4, 0, kNoStream);
                     })
                .find("rank 0 sends 8 bytes, rank 1 receives 4"),
            std::string::npos);
  EXPECT_EQ(error_of(2, [](Communicator& c) { c.barrier(kNoStream); }), "");
}

TEST(LocalCommunicator, DtypesWithoutSumAreRefused) {
  EXPECT_NE(error_of(2,
                     [](Communicator& c) {
                       std::uint8_t x[4] = {};
                       c.all_reduce(x, x, 4, Dtype::fp8, Reduction::sum, kNoStream);
                     })
                .find("not fp8"),
            std::string::npos);
}

// In a process of its own, with addresses for the stacks of a few threads more; those that started wait in the barrier.
TEST(LocalCommunicator, RanksThatCannotBeStartedEndTheOthers) {
  if (kSanitized) GTEST_SKIP() << "needs a limit of address space, which sanitizers do not bear";
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    long pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const auto most = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE) + (64 << 20));
    const rlimit limit{most, most};
    if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(3);
    const std::string why = error_of(64, [](Communicator& c) { c.barrier(kNoStream); });
    _exit(why.find("of 64 ranks can be started") != std::string::npos ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// One rank throws while the others wait, each in a different way: nobody hangs, the cause is what is
// reported.
TEST(LocalCommunicator, AnExceptionOnOneRankFreesTheOthers) {
  for (int round = 0; round < 20; ++round) {
    const auto error = error_of(4, [&](Communicator& c) {
      const auto pair = c.group(std::vector<int>{0, 1, 2, 3});
      std::vector<float> x(5000);
      c.all_reduce(x.data(), x.data(), 5000, Dtype::fp32, Reduction::sum, kNoStream);
      if (c.rank() == round % 4) throw BackendError("rank gives up");
      if (c.rank() == (round + 1) % 4)
        pair->recv(x.data(), 4, (c.rank() + 1) % 4, kNoStream);
      else if (c.rank() == (round + 2) % 4)
        pair->send(x.data(), 4, (c.rank() + 2) % 4, kNoStream);
      else
        c.all_reduce(x.data(), x.data(), 5000, Dtype::fp32, Reduction::sum, kNoStream);
    });
    EXPECT_EQ(error, "rank gives up");
  }
}

// An abort in the middle of collectives: a rank that leaves early must not free what a peer still reads
// (ASan).
TEST(LocalCommunicator, AbortAtAnyMomentIsSafe) {
  for (int round = 0; round < 30; ++round) {
    auto world = make_local_world(4);
    std::jthread aborter([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(100 * round));
      world[0]->abort("enough");
    });
    int stopped = 0;
    std::mutex mutex;
    {
      std::vector<std::jthread> ranks;
      for (auto& c : world)
        ranks.emplace_back([&, comm = c.get()] {
          try {
            while (true) {
              std::vector<float> x(20000, 1.0F);
              comm->all_reduce(x.data(), x.data(), 20000, Dtype::fp32, Reduction::sum, kNoStream);
            }
          } catch (const BackendError& error) {
            EXPECT_STREQ(error.what(), "aborted: enough");
            const std::lock_guard lock(mutex);
            ++stopped;
          }
        });
    }
    EXPECT_EQ(stopped, 4);
  }
}

TEST(LocalCommunicator, CallsAfterAnAbortThrow) {
  auto world = make_local_world(1);
  world[0]->abort("first");
  world[0]->abort("second");
  try {
    world[0]->barrier(kNoStream);
    FAIL();
  } catch (const BackendError& error) {
    EXPECT_STREQ(error.what(), "aborted: first");
  }
}

TEST(EvenSplit, FirstPartsTakeTheRemainder) {
  EXPECT_EQ(even_split(10, 4), (std::vector<std::int64_t>{3, 3, 2, 2}));
  EXPECT_EQ(even_split(2, 4), (std::vector<std::int64_t>{1, 1, 0, 0}));
}

}  // namespace
}  // namespace sextant::testing

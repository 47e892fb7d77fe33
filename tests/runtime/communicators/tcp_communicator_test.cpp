// The suite on processes that meet over TCP, here threads of one process, each with connections of its own; then what only
// they can show: ranks that do not come, come from another job, or go in the middle of things.
#include <atomic>
#include <chrono>
#include <future>

#include <sys/wait.h>

#include "tests/runtime/communicators/communicator_suite.hpp"
#include "tests/runtime/communicators/tcp_trial.hpp"

namespace sextant::testing {
namespace {

struct Tcp {
  static std::vector<int> rank_counts() { return {1, 2, 3, 4}; }
  static void run(int ranks, const RankBody& body) { run_processes(ranks, body); }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Processes, CommunicatorSuite, Tcp);

TEST(TcpCommunicator, EqualsTheLocalReference) {
  const std::int64_t count = 300'001;  // far beyond what a connection holds
  std::vector<float> expected;
  run_local_ranks(3, [&](Communicator& c) {
    auto x = random_input<float>(77, c.rank(), count);
    c.all_reduce(x.data(), x.data(), count, Dtype::fp32, Reduction::sum, kNoStream);
    if (c.rank() == 0) expected = x;
  });
  run_processes(3, [&](Communicator& c) {
    auto x = random_input<float>(77, c.rank(), count);
    c.all_reduce(x.data(), x.data(), count, Dtype::fp32, Reduction::sum, kNoStream);
    EXPECT_TRUE(same_bits(x, expected));
    x[12345] = -x[12345];
    EXPECT_FALSE(same_bits(x, expected)) << "control";
  });
}

// Sizes beside those in which connections are read, each way and again: none is left lying until more comes.
TEST(TcpCommunicator, LargeMessages) {
  run_processes(2, [](Communicator& c) {
    constexpr std::int64_t kStep = 8 << 20;
    for (const std::int64_t bytes : {kStep - 24, kStep - 8, kStep, 3 * kStep + 5, 8 * kStep})
      for (int time = 0; time < 8; ++time) {
        std::vector<char> data(static_cast<std::size_t>(bytes),
                               c.rank() == 0 ? static_cast<char>(time) : 'x');
        if (c.rank() == 0) c.send(data.data(), bytes, 1, kNoStream);
        c.recv(data.data(), bytes, 1 - c.rank(), kNoStream);
        if (c.rank() == 1) c.send(data.data(), bytes, 0, kNoStream);
        EXPECT_EQ(data.back(), static_cast<char>(time));
      }
  });
}

// Two groups of the same ranks keep their messages apart, whatever the order in which they are read.
TEST(TcpCommunicator, GroupsOfTheSameRanksAreApart) {
  run_processes(2, [](Communicator& c) {
    const std::array<int, 2> both = {0, 1};
    const auto one = c.group(both), two = c.group(both);
    if (c.rank() == 0) {
      const int a = 1, b = 2;
      one->send(&a, sizeof a, 1, kNoStream);
      two->send(&b, sizeof b, 1, kNoStream);
    } else {
      int a = 0, b = 0;
      two->recv(&b, sizeof b, 0, kNoStream);
      one->recv(&a, sizeof a, 0, kNoStream);
      EXPECT_EQ(a, 1);
      EXPECT_EQ(b, 2);
    }
  });
}

TEST(TcpCommunicator, SizesThatDisagree) {
  EXPECT_THROW(run_processes(2,
                             [](Communicator& c) {
                               const std::int64_t word = 0;
                               std::int64_t got = 0;
                               if (c.rank() == 0) return c.send(&word, 8, 1, kNoStream);
                               c.recv(&got, 4, 0, kNoStream);
                             }),
               BackendError);
}

TEST(TcpCommunicator, AnAbortReachesRanksThatWait) {
  std::atomic<int> told{0};
  EXPECT_THROW(run_processes(3,
                             [&](Communicator& c) {
                               if (c.rank() == 1) throw BackendError("the disk is full");
                               try {
                                 c.barrier(kNoStream);
                                 c.barrier(kNoStream);
                               } catch (const Aborted& aborted) {
                                 told += std::string(aborted.what()).find("the disk is full") !=
                                         std::string::npos;
                                 throw;
                               }
                             }),
               BackendError);
  EXPECT_EQ(told, 2);
}

TEST(TcpCommunicator, WhoDoesNotComeIsNotWaitedForForEver) {
  const int port = free_port();
  const auto start = std::chrono::steady_clock::now();
  try {
    make_tcp_world(world_of(0, 3, port, 0.5));
    FAIL() << "two ranks are missing";
  } catch (const BackendError& error) {
    EXPECT_NE(std::string(error.what()).find("2 of 3 ranks (1, 2) have not come"), std::string::npos)
        << error.what();
  }
  EXPECT_THROW(make_tcp_world(world_of(1, 2, port, 0.5)), BackendError) << "nor is rank 0";
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

// After 0.2 s of silence, then 0.4 s, then 0.8 s: at most three times in 1.5 s.
TEST(TcpCommunicator, WhoWaitsSaysForWhom) {
  const int port = free_port();
  const auto said_by = [&](int rank, double told_after_s) {
    std::vector<std::string> said;
    TcpWorld world = world_of(rank, 3, port, 1.5);
    world.tell = [&](const std::string& what) { said.push_back(what); };
    world.told_after = Seconds(told_after_s);
    EXPECT_THROW(make_tcp_world(world), BackendError);
    return said;
  };
  for (const auto& [rank, words] :
       {std::pair(0, fmt::format("rank 0 waits for 2 of 3 ranks (1, 2) to come to 127.0.0.1:{}, for another ",
                                 port)),
        std::pair(1, fmt::format("rank 1 waits for rank 0 at 127.0.0.1:{} to answer, for another ", port))}) {
    const auto said = said_by(rank, 0.2);
    ASSERT_FALSE(said.empty()) << rank;
    EXPECT_LE(said.size(), 3u) << rank;
    EXPECT_TRUE(said[0].starts_with(words)) << said[0];
  }
  EXPECT_TRUE(said_by(0, 10).empty()) << "not yet";
}

// It is told so and ends; the job goes on waiting for the one that belongs to it.
TEST(TcpCommunicator, RanksOfAnotherJob) {
  for (const bool other_size : {false, true}) {
    const int port = free_port();
    auto first = std::async(std::launch::async, [&] { make_tcp_world(world_of(0, 2, port)); });
    TcpWorld other = world_of(1, other_size ? 3 : 2, port);
    if (!other_size) other.job = "another";
    try {
      make_tcp_world(other);
      ADD_FAILURE() << "it is of another job";
    } catch (const BackendError& error) {
      EXPECT_NE(std::string(error.what()).find(other_size ? "of a job of 3 ranks" : "another job"),
                std::string::npos)
          << error.what();
    }
    EXPECT_NO_THROW(make_tcp_world(world_of(1, 2, port)));
    EXPECT_NO_THROW(first.get());
  }
}

// A process that dies says nothing: the others learn it from its connection.
TEST(TcpCommunicator, ARankThatDies) {
  const int port = free_port();
  const pid_t child = fork();
  if (child == 0) {
    const auto world = make_tcp_world(world_of(1, 2, port));
    _exit(0);  // without a word
  }
  const auto world = make_tcp_world(world_of(0, 2, port));
  char byte = 0;
  EXPECT_THROW(world->recv(&byte, 1, 1, kNoStream), BackendError);
  int status = 0;
  waitpid(child, &status, 0);
}

// Who sends to it is told the same as who waits for it, and not what the operating system says of a pipe.
TEST(TcpCommunicator, ARankThatDiesWhileOthersSend) {
  for (int time = 0; time < 20; ++time) {
    const int port = free_port();
    const pid_t child = fork();
    if (child == 0) {
      const auto world = make_tcp_world(world_of(1, 2, port));
      _exit(0);
    }
    const auto world = make_tcp_world(world_of(0, 2, port));
    const std::vector<char> bytes(1 << 16);
    try {
      for (int more = 0; more < 100'000; ++more) world->send(bytes.data(), std::ssize(bytes), 1, kNoStream);
      ADD_FAILURE() << "nobody has taken it in";
    } catch (const BackendError& error) {
      EXPECT_NE(std::string(error.what()).find("rank 1 has gone without a word"), std::string::npos)
          << error.what();
    }
    int status = 0;
    waitpid(child, &status, 0);
  }
}

// One that ends well has sent what others still read.
TEST(TcpCommunicator, ARankThatIsDoneEarlier) {
  run_processes(2, [](Communicator& c) {
    int word = 7;
    if (c.rank() == 0) return c.send(&word, sizeof word, 1, kNoStream);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    word = 0;
    c.recv(&word, sizeof word, 0, kNoStream);
    EXPECT_EQ(word, 7);
    EXPECT_THROW(c.recv(&word, sizeof word, 0, kNoStream), BackendError) << "there is no more";
  });
}

}  // namespace
}  // namespace sextant::testing

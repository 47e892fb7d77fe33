// Jobs of processes that outlive some of them. System: ranks as threads with connections of their own, those that die in
// processes of their own, which end without a word. Expectation: what is under way ends on all others at once; they agree on who
// they are, compute on together, and whoever was given up does not go on by itself.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <future>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <sys/wait.h>

#include "runtime/communicators/tcp_socket.hpp"
#include "tests/runtime/communicators/tcp_trial.hpp"

namespace sextant::testing {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;
const NativeStream kHost{};
constexpr Seconds kPatience{20};

// What a rank does that dies: it is sent elsewhere before threads begin here.
pid_t start_dying(int rank, int ranks, int port, const RankBody& body) {
  const pid_t child = fork();
  if (child != 0) return child;
  const auto world = make_tcp_world(outliving(rank, ranks, port));
  try {
    body(*world);
  } catch (const std::exception&) {  // it dies all the same
  }
  _exit(0);  // without a word: the world is not taken down
}

// Until somebody is lost.
void work(Communicator& c, std::int64_t count = 1000) {
  std::vector<float> x(static_cast<std::size_t>(count));
  try {
    while (true) {
      std::ranges::fill(x, 1.0F);
      c.all_reduce(x.data(), x.data(), count, Dtype::fp32, Reduction::sum, kHost);
      if (x.back() != static_cast<float>(c.size())) throw BackendError("a wrong sum");
    }
  } catch (const RankLost&) {
  }
}

// A group in which all are that are left, however often one is lost meanwhile; by rank, who they were.
struct Left {
  std::unique_ptr<Communicator> world;
  std::vector<int> first;
};
// `then`: what they do in it; who has met the loss of a member before it heard of the group may break it once more.
Left regrouped(
    Communicator& c, const std::function<void(const Left&)>& then = [](const Left&) {}) {
  Left left;
  left.first.resize(static_cast<std::size_t>(c.size()));
  std::iota(left.first.begin(), left.first.end(), 0);
  Communicator* world = &c;
  while (true) try {
      Regrouped next = world->regroup(kPatience);
      std::vector<int> first;
      for (const int before : next.before) first.push_back(left.first[static_cast<std::size_t>(before)]);
      left.first = first;
      left.world = std::move(next.world);
      world = left.world.get();
      world->barrier(kHost);
      then(left);
      return left;
    } catch (const RankLost&) {
    }
}

using Ranks = std::vector<int>;
// The ranks that do not die, each on a thread; they end with the group `expected`.
void survive(int ranks, int port, const Ranks& expected, const RankBody& until_lost) {
  std::vector<std::future<void>> all;
  for (const int rank : expected)
    all.push_back(std::async(std::launch::async, [=] {
      const auto world = make_tcp_world(outliving(rank, ranks, port));
      until_lost(*world);
      regrouped(*world, [&](const Left& left) {
        EXPECT_EQ(left.first, expected);
        EXPECT_EQ(left.first[static_cast<std::size_t>(left.world->rank())], rank);
        const int n = left.world->size();
        for (int time = 0; time < 20; ++time) EXPECT_EQ(sum_of_ranks(*left.world), n * (n + 1) / 2);
        EXPECT_THROW(world->barrier(kHost), RankLost) << "the world before stays lost";
        const auto beside = everyone(*left.world);
        EXPECT_EQ(sum_of_ranks(*beside), n * (n + 1) / 2);
        left.world->barrier(kHost);
      });
    }));
  for (auto& one : all) EXPECT_NO_THROW(one.get());
}

void bury(const std::vector<pid_t>& children) {
  for (const pid_t child : children) waitpid(child, nullptr, 0);
}

const RankBody kDiesAtWork = [](Communicator& c) {
  for (int time = 0; time < 5; ++time) sum_of_ranks(c);
  std::this_thread::sleep_for(50ms);
};
const RankBody kWorks = [](Communicator& c) {
  for (int time = 0; time < 5; ++time) sum_of_ranks(c);
  work(c);
};

TEST(TcpRegroup, OneDies) {
  for (const int dies : {0, 1, 3}) {
    const int port = free_port();
    const pid_t child = start_dying(dies, 4, port, kDiesAtWork);
    Ranks left = {0, 1, 2, 3};
    std::erase(left, dies);
    const auto start = Clock::now();
    survive(4, port, left, kWorks);
    EXPECT_LT(Clock::now() - start, 10s);
    bury({child});
  }
}

TEST(TcpRegroup, TwoAtOnceAndAllButOne) {
  for (const Ranks& die : {Ranks{0, 2}, Ranks{0, 1, 2}}) {
    const int port = free_port();
    std::vector<pid_t> children;
    for (const int rank : die) children.push_back(start_dying(rank, 4, port, kDiesAtWork));
    Ranks left = {0, 1, 2, 3};
    std::erase_if(left, [&](int rank) { return std::ranges::find(die, rank) != die.end(); });
    survive(4, port, left, kWorks);
    bury(children);
  }
}

// The one that is to decide meets the loss of another, and dies then: before the others hear of it, or behind its decision.
TEST(TcpRegroup, TheOneThatDecidesDies) {
  for (const bool decides : {false, true})
    for (int time = 0; time < 5; ++time) {
      const int port = free_port();
      const pid_t first = start_dying(0, 5, port, [decides](Communicator& c) {
        kWorks(c);
        if (decides) c.regroup(kPatience);
      });
      const pid_t other = start_dying(3, 5, port, kDiesAtWork);
      survive(5, port, {1, 2, 4}, kWorks);
      bury({first, other});
    }
}

// What survivors have under way when one dies does not come into what they do next.
TEST(TcpRegroup, LargeMessagesUnderWay) {
  for (int time = 0; time < 6; ++time) {
    const int port = free_port();
    const pid_t child = start_dying(2, 4, port, [time](Communicator& c) {
      for (int more = 0; more < 5; ++more) sum_of_ranks(c);
      std::vector<float> x(4'000'000, 1.0F);
      const auto dies = std::async(std::launch::async, [time] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20 + 17 * time));
        _exit(0);
      });
      while (true) c.all_reduce(x.data(), x.data(), std::ssize(x), Dtype::fp32, Reduction::sum, kHost);
    });
    survive(4, port, {0, 1, 3}, [](Communicator& c) {
      for (int more = 0; more < 5; ++more) sum_of_ranks(c);
      work(c, 4'000'000);
    });
    bury({child});
  }
}

// Without a word of its end, as it is stopped: the others give it up, and it ends when it wakes.
TEST(TcpRegroup, ASilentOneIsLeftOut) {
  const int port = free_port();
  std::atomic<bool> given_up{false};
  std::string told;
  auto silent = std::async(std::launch::async, [&] {
    const auto world = make_tcp_world(outliving(2, 4, port));
    while (!given_up) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(200ms);
    try {
      world->barrier(kHost);
      ADD_FAILURE() << "it was given up";
    } catch (const Aborted& aborted) {
      told = aborted.what();
    }
    EXPECT_THROW(world->regroup(kPatience), Aborted);
  });
  survive(4, port, {0, 1, 3}, [&](Communicator& c) {
    if (c.rank() == 1) {
      std::this_thread::sleep_for(100ms);
      EXPECT_TRUE(c.lose(Ranks{2}, "rank 2 gives no sign of life"));
      given_up = true;
    }
    work(c);
  });
  silent.get();
  EXPECT_NE(told.find("go on without it"), std::string::npos) << told;
}

// Nor where the others could not tell it, as what they had sent before was stuck: it finds their connections closed when it
// wakes, as if all of them had died.
TEST(TcpRegroup, AStoppedOneDoesNotGoOnByItself) {
  const int port = free_port();
  constexpr int kEnds = 7;
  constexpr std::int64_t kBeyond = 12'000'000;  // what connections hold
  const pid_t child = start_dying(2, 3, port, [](Communicator& c) {
    try {
      try {  // on a busy machine it is stopped before it is at work
        for (int time = 0; time < 5; ++time) sum_of_ranks(c);
        work(c, kBeyond);
      } catch (const RankLost&) {
      }
      c.regroup(kPatience);
    } catch (const RankLost&) {
    } catch (const Aborted&) {
      _exit(kEnds);
    }
  });
  survive(3, port, {0, 1}, [&](Communicator& c) {
    for (int time = 0; time < 5; ++time) sum_of_ranks(c);
    std::thread other([&] {  // while all three exchange what no connection holds
      std::this_thread::sleep_for(c.rank() == 0 ? 200ms : 3500ms);
      if (c.rank() == 0)
        ::kill(child, SIGSTOP);
      else
        c.lose(Ranks{2}, "rank 2 gives no sign of life");
    });
    work(c, kBeyond);
    other.join();
  });
  ::kill(child, SIGCONT);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == kEnds) << status;
}

// It has met the loss, and does not come within the patience.
TEST(TcpRegroup, OneThatDoesNotComeIsLeftOut) {
  const int port = free_port();
  const pid_t child = start_dying(1, 4, port, kDiesAtWork);
  std::atomic<int> done{0};
  std::vector<std::future<void>> all;
  for (const int rank : {0, 2, 3})
    all.push_back(std::async(std::launch::async, [&, rank] {
      const auto world = make_tcp_world(outliving(rank, 4, port));
      kWorks(*world);
      if (rank == 3) {
        while (done < 2) std::this_thread::sleep_for(1ms);
        EXPECT_THROW(world->regroup(kPatience), Aborted);
        return;
      }
      const Regrouped left = world->regroup(Seconds(0.5));
      EXPECT_EQ(left.before, (Ranks{0, 2}));
      EXPECT_EQ(sum_of_ranks(*left.world), 3);
      ++done;
    }));
  for (auto& one : all) EXPECT_NO_THROW(one.get());
  bury({child});
}

// Half of a job may be behind a network that is cut: as many may go on there, so nobody does here.
TEST(TcpRegroup, AsManySilentAsAreLeft) {
  const int port = free_port();
  std::atomic<bool> over{false};
  auto silent = std::async(std::launch::async, [&] {
    const auto world = make_tcp_world(outliving(1, 2, port));
    while (!over) std::this_thread::sleep_for(1ms);
  });
  {
    const auto world = make_tcp_world(outliving(0, 2, port));
    world->lose(Ranks{1}, "rank 1 gives no sign of life");
    EXPECT_THROW(world->barrier(kHost), RankLost);
    try {
      world->regroup(kPatience);
      ADD_FAILURE() << "rank 1 may go on";
    } catch (const Aborted& aborted) {
      EXPECT_NE(std::string(aborted.what()).find("--resume"), std::string::npos) << aborted.what();
    }
    over = true;
  }
  silent.get();
}

// An error is no loss: it ends the job on all, as ever; and so does a loss where the job does not outlive one.
TEST(TcpRegroup, ControlWhatEndsTheJob) {
  const int port = free_port();
  std::vector<std::future<void>> all;
  std::atomic<int> told{0};
  for (int rank = 0; rank < 3; ++rank)
    all.push_back(start_rank(outliving(rank, 3, port), [&](Communicator& c) {
      if (c.rank() == 1) throw BackendError("the disk is full");
      try {
        work(c);  // a RankLost would end it
        ADD_FAILURE() << "taken for a loss";
      } catch (const Aborted& aborted) {
        told += std::string(aborted.what()).find("the disk is full") != std::string::npos;
      }
    }));
  for (auto& one : all) try {
      one.get();
    } catch (const BackendError&) {
    }
  EXPECT_EQ(told, 2);

  const int other = free_port();
  const pid_t child = fork();
  if (child == 0) {
    const auto world = make_tcp_world(world_of(1, 2, other));
    _exit(0);
  }
  const auto world = make_tcp_world(world_of(0, 2, other));
  try {
    world->barrier(kHost);
    world->barrier(kHost);
    ADD_FAILURE() << "rank 1 has gone";
  } catch (const RankLost&) {
    ADD_FAILURE() << "a loss that is not outlived";
  } catch (const Aborted&) {
  }
  EXPECT_FALSE(world->lose(Ranks{1}, "gone"));
  EXPECT_THROW(world->regroup(kPatience), BackendError);
  bury({child});
}

// Nobody listens any more: a stranger, or one with the secret that comes later, finds no door.
TEST(TcpRegroup, NobodyElseComesIn) {
  const int port = free_port();
  const pid_t child = start_dying(1, 3, port, kDiesAtWork);
  std::atomic<bool> over{false};
  std::atomic<int> let_in{0};
  std::thread stranger;
  survive(3, port, {0, 2}, [&](Communicator& c) {
    for (int time = 0; time < 5; ++time) sum_of_ranks(c);
    if (c.rank() == 0)
      stranger = std::thread([&] {
        while (!over)
          let_in += connect_once(resolve("127.0.0.1", port).front(), {Clock::now() + 100ms}).fd() >= 0;
      });
    work(c);
  });
  over = true;
  stranger.join();
  EXPECT_EQ(let_in, 0);
  bury({child});
}

}  // namespace
}  // namespace sextant::testing

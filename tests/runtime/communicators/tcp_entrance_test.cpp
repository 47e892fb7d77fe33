// Processes that come to a job which is under way. System: ranks as threads with connections of their own. Expectation: who has
// the secret waits until it is given a place, and then computes with the others; all others are refused or dropped, and those that
// are there notice nothing. Controls: another job, another secret, a rank that is there, one that gives up.
#include "runtime/communicators/tcp_entrance.hpp"

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "tests/runtime/communicators/tcp_trial.hpp"

namespace sextant::testing {
namespace {

using namespace std::chrono_literals;

std::future<std::unique_ptr<Communicator>> come(const TcpWorld& world) {
  return std::async(std::launch::async, [world] { return make_tcp_world(world); });
}

std::string refusal(std::future<std::unique_ptr<Communicator>>& one) {
  try {
    one.get();
  } catch (const BackendError& error) {
    return error.what();
  }
  return "let in";
}

void wait_for(TcpEntrance& entrance, const std::set<int>& ranks) {
  for (int looks = 0; looks < 1000 && entrance.waiting() != ranks; ++looks) std::this_thread::sleep_for(10ms);
  ASSERT_EQ(entrance.waiting(), ranks);
}

// A job of two ranks, which has met, and its entrance.
struct Job {
  int port = free_port();
  std::unique_ptr<Communicator> first, second;
  std::unique_ptr<TcpEntrance> entrance;
  Job() {
    auto other = come(outliving(1, 2, port));
    first = make_tcp_world(outliving(0, 2, port));
    second = other.get();
    entrance = std::make_unique<TcpEntrance>(outliving(0, 2, port), std::set{0, 1}, 4);
  }
  // All compute together in the next generation, those that were there with their old connections still standing.
  void meet_with(std::vector<std::future<std::unique_ptr<Communicator>>>& guests) {
    const int ranks = 2 + static_cast<int>(guests.size());
    auto a = come(outliving(0, ranks, port, 1)), b = come(outliving(1, ranks, port, 1));
    std::vector<std::unique_ptr<Communicator>> all;
    all.push_back(a.get());
    all.push_back(b.get());
    for (auto& guest : guests) all.push_back(guest.get());
    std::vector<std::future<double>> sums;
    for (auto& one : all) {
      EXPECT_EQ(one->size(), ranks);
      sums.push_back(std::async(std::launch::async, [&one] { return sum_of_ranks(*one); }));
    }
    for (auto& sum : sums) EXPECT_EQ(sum.get(), ranks * (ranks + 1) / 2);
    for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i]->joined(), i >= 2);
    auto old = std::async(std::launch::async, [this] { return sum_of_ranks(*second); });
    EXPECT_EQ(sum_of_ranks(*first), 3);
    EXPECT_EQ(old.get(), 3);
    std::vector<std::future<void>> ends;  // each says goodbye to the others
    for (auto& one : all) ends.push_back(std::async(std::launch::async, [&one] { one.reset(); }));
  }
  ~Job() {
    auto other = std::async(std::launch::async, [this] { second.reset(); });
    first.reset();
  }
};

TEST(TcpEntrance, WhoComesWaitsForAPlaceAndComputesWithTheOthers) {
  Job job;
  std::string told;
  TcpWorld late = outliving(3, 4, job.port);  // as which rank it comes is not which it becomes
  late.tell = [&](const std::string& what) { told = what; };
  std::vector<std::future<std::unique_ptr<Communicator>>> guests;
  guests.push_back(come(late));
  wait_for(*job.entrance, {3});
  EXPECT_EQ(guests[0].wait_for(0s), std::future_status::timeout);
  job.entrance->invite({{3, 2}}, 3, 1);
  job.meet_with(guests);
  EXPECT_NE(told.find("the job is under way"), std::string::npos) << told;
}

TEST(TcpEntrance, SeveralAtOnceAndTheRankThatTheJobBeganWith) {
  Job job;
  job.entrance->set_here({1});  // rank 0 was lost, another one leads
  std::vector<std::future<std::unique_ptr<Communicator>>> guests;
  guests.push_back(come(outliving(0, 2, job.port)));
  guests.push_back(come(outliving(2, 4, job.port)));
  wait_for(*job.entrance, {0, 2});
  job.entrance->invite({{0, 2}, {2, 3}}, 4, 1);
  job.meet_with(guests);
}

// It is started again at once, and takes the port for a job that is about to begin.
TEST(TcpEntrance, ARank0ThatBeginsAnewGivesWayToTheJobThatIsUnderWay) {
  Job job;
  job.entrance.reset();
  std::vector<std::future<std::unique_ptr<Communicator>>> guests;
  guests.push_back(come(outliving(0, 2, job.port)));
  const auto open = [&] {
    try {
      job.entrance = std::make_unique<TcpEntrance>(outliving(1, 2, job.port), std::set{1}, 4);
    } catch (const BackendError&) {
      return false;
    }
    return true;
  };
  int refused = 0;
  std::this_thread::sleep_for(100ms);
  while (!open()) {
    ASSERT_LT(++refused, 100);
    std::this_thread::sleep_for(50ms);
  }
  EXPECT_GT(refused, 0);
  wait_for(*job.entrance, {0});
  job.entrance->invite({{0, 2}}, 3, 1);
  job.meet_with(guests);
}

TEST(TcpEntrance, WhoIsNotWantedIsToldWhyOrDropped) {
  Job job;
  TcpWorld other_job = outliving(3, 4, job.port);
  other_job.job = "another";
  auto one = come(other_job), twice = come(outliving(1, 2, job.port)),
       beyond = come(outliving(4, 8, job.port));
  EXPECT_NE(refusal(one).find("another job"), std::string::npos);
  EXPECT_NE(refusal(twice).find("has come to rank 0"), std::string::npos);
  EXPECT_NE(refusal(beyond).find("is not one that"), std::string::npos);
  TcpWorld other_settings = outliving(3, 4, job.port);
  other_settings.settings = 1;
  auto unlike = come(other_settings);
  EXPECT_NE(refusal(unlike).find("other settings"), std::string::npos);
  TcpWorld other_secret = outliving(3, 4, job.port);
  other_secret.secret = "another secret";
  other_secret.patience = Seconds(1.5);
  auto stranger = come(other_secret);
  EXPECT_NE(refusal(stranger).find("not the same secret"), std::string::npos);
  EXPECT_TRUE(job.entrance->waiting().empty());
}

TEST(TcpEntrance, WhoGoesIsForgottenAndMayComeAgain) {
  Job job;
  std::atomic<bool> stop{false};
  TcpWorld impatient = outliving(2, 3, job.port);
  impatient.stop = &stop;
  auto first = come(impatient);
  wait_for(*job.entrance, {2});
  stop = true;
  EXPECT_NE(refusal(first).find("asked to end"), std::string::npos);
  wait_for(*job.entrance, {});
  auto again = come(outliving(2, 3, job.port));
  wait_for(*job.entrance, {2});
  job.entrance.reset();
  EXPECT_NE(refusal(again).find("the job has ended"), std::string::npos);
}

TEST(TcpEntrance, WhoIsNotInvitedComesToTheNextOne) {
  Job job;
  std::vector<std::future<std::unique_ptr<Communicator>>> guests;
  guests.push_back(come(outliving(2, 3, job.port)));
  auto left_out = come(outliving(3, 4, job.port));
  wait_for(*job.entrance, {2, 3});
  job.entrance->invite({{2, 2}}, 3, 1);
  job.meet_with(guests);
  job.entrance = std::make_unique<TcpEntrance>(outliving(0, 2, job.port), std::set{0, 1, 2}, 4);
  wait_for(*job.entrance, {3});
  job.entrance.reset();
  EXPECT_NE(refusal(left_out).find("the job has ended"), std::string::npos);
}

}  // namespace
}  // namespace sextant::testing

// Strangers at the ports of a job: who scans, is silent, slow or talks nonsense, repeats what a member has said, or knows the
// job's name but not its secret. System: jobs of two and three processes that sum numbers while strangers come. Expectation:
// each job ends with the right sum within its time; members with another secret are told so.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <set>
#include <sstream>
#include <thread>

#include <poll.h>

#include "core/base/error.hpp"
#include "runtime/communicators/tcp_handshake.hpp"
#include "runtime/communicators/tcp_messages.hpp"
#include "tests/runtime/communicators/tcp_trial.hpp"

namespace sextant::testing {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

// What each rank of an undisturbed job does.
void sum_ranks(Communicator& c) {
  std::vector<float> x(10'000, static_cast<float>(c.rank() + 1));
  c.all_reduce(x.data(), x.data(), std::ssize(x), Dtype::fp32, Reduction::sum, NativeStream{});
  EXPECT_EQ(x.back(), static_cast<float>(c.size() * (c.size() + 1)) / 2);
}

SocketAddress at_port(int port) { return resolve("127.0.0.1", port).front(); }

Socket connected(int port) {
  const auto until = Clock::now() + 10s;
  while (Clock::now() < until) {
    Socket s = connect_once(at_port(port), {until});
    if (s.fd() >= 0) return s;
    std::this_thread::sleep_for(10ms);
  }
  ADD_FAILURE() << "nobody listens at port " << port;
  return Socket();
}

// A job of two, whose rank 0 is there first, then strangers, then rank 1.
void job_with(const std::function<void(int port)>& strangers) {
  const int port = free_port();
  const auto start = Clock::now();
  auto first = start_rank(world_of(0, 2, port), sum_ranks);
  strangers(port);
  auto second = start_rank(world_of(1, 2, port), sum_ranks);
  EXPECT_NO_THROW(second.get());
  EXPECT_NO_THROW(first.get());
  EXPECT_LT(Clock::now() - start, 10s);
}

TEST(TcpStrangers, PortScan) {
  job_with([](int port) {
    for (int time = 0; time < 500; ++time) connected(port);
  });
}

// More than rank 0 keeps, and all are still open when rank 1 comes.
TEST(TcpStrangers, SilentConnections) {
  std::vector<Socket> silent;
  job_with([&](int port) {
    for (int n = 0; n < 300; ++n) silent.push_back(connected(port));
  });
}

TEST(TcpStrangers, Garbage) {
  std::vector<Socket> open;
  job_with([&](int port) {
    std::mt19937 random(1);
    for (int n = 0; n < 200; ++n) {
      std::string words = n % 4 == 0   ? "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
                          : n % 4 == 1 ? std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11)
                                       : std::string();
      if (n % 4 == 2) words.append("3txs");  // the first word of a member, then noise
      for (int byte = 0; byte < 3000; ++byte) words += static_cast<char>(random());
      Socket s = connected(port);
      write_bytes(s.fd(), words.data(), words.size(), {Clock::now() + 1s});
      open.push_back(std::move(s));
    }
  });
}

TEST(TcpStrangers, SlowSenders) {
  std::atomic<bool> over{false};
  std::vector<std::thread> slow;
  job_with([&](int port) {
    for (int n = 0; n < 20; ++n)
      slow.emplace_back([&over, s = connected(port)] {
        const Hello hello;
        for (std::size_t byte = 0; byte < sizeof hello && !over; ++byte) {
          ::send(s.fd(), reinterpret_cast<const char*>(&hello) + byte, 1, MSG_NOSIGNAL);
          std::this_thread::sleep_for(20ms);
        }
      });
  });
  over = true;
  for (auto& t : slow) t.join();
}

// It knows all but the secret, and is told that this is what it lacks.
TEST(TcpStrangers, TheRightJobWithoutItsSecret) {
  std::string said;
  job_with([&](int port) {
    TcpWorld stranger = world_of(1, 2, port, 2);
    stranger.secret = "another secret";
    try {
      make_tcp_world(stranger);
    } catch (const BackendError& error) {
      said = error.what();
    }
  });
  EXPECT_NE(said.find("not the same secret"), std::string::npos) << said;
}

// Rank 0 says who was dropped when it ends for want of the right ones.
TEST(TcpStrangers, AreCountedInTheReason) {
  const int port = free_port();
  auto first = std::async(std::launch::async, [&] { make_tcp_world(world_of(0, 2, port, 1.5)); });
  connected(port);
  connected(port);
  try {
    first.get();
    ADD_FAILURE() << "rank 1 is missing";
  } catch (const BackendError& error) {
    EXPECT_NE(std::string(error.what()).find("2 connections without proof"), std::string::npos)
        << error.what();
  }
}

// Listens for rank 1 in front of rank 0, and hands all on both ways; what rank 1 said first is kept.
std::vector<char> record_member(int port) {
  const int front = free_port();
  std::vector<char> said;
  std::atomic<bool> over{false};
  std::thread between([&, listener = listen_at(at_port(front))] {
    Socket member;
    while (!over && member.fd() < 0) member = accept_from(listener);
    const Socket zero = connected(port);
    while (!over) {
      std::array<pollfd, 2> p = {pollfd{member.fd(), POLLIN, 0}, pollfd{zero.fd(), POLLIN, 0}};
      poll(p.data(), p.size(), 20);
      for (const bool from_member : {true, false}) {
        std::array<char, 65536> bytes;
        const ssize_t n =
            ::recv(from_member ? member.fd() : zero.fd(), bytes.data(), bytes.size(), MSG_DONTWAIT);
        if (n <= 0) continue;
        if (from_member) said.insert(said.end(), bytes.begin(), bytes.begin() + n);
        write_bytes(from_member ? zero.fd() : member.fd(), bytes.data(), static_cast<std::size_t>(n),
                    {Clock::now() + 5s});
      }
    }
  });
  start_rank(world_of(1, 2, front), sum_ranks).get();
  over = true;
  between.join();
  return said;
}

TEST(TcpStrangers, ReplayOfWhatAMemberSaid) {
  const int port = free_port();
  auto first = start_rank(world_of(0, 2, port), sum_ranks);
  const std::vector<char> said = record_member(port);
  EXPECT_NO_THROW(first.get());
  ASSERT_GT(said.size(), sizeof(Hello)) << "the job went through the recorder";
  const std::string secret = world_of(1, 2, port).secret, text(said.begin(), said.end());
  EXPECT_EQ(text.find(secret), std::string::npos) << "it is never sent";
  job_with([&](int again) {
    const Socket s = connected(again);
    write_bytes(s.fd(), said.data(), said.size(), {Clock::now() + 1s});
    Challenge challenge;
    EXPECT_TRUE(read_value(s.fd(), challenge, {Clock::now() + 5s})) << "which is all that it is told";
    char byte = 0;
    EXPECT_FALSE(read_value(s.fd(), byte, {Clock::now() + 5s}));
  });
}

// Local addresses and ports of this process's listeners, of IPv4: "0100007F:1F90".
std::vector<std::string> listeners() {
  std::set<std::string> own;
  for (const auto& fd : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code closed;
    own.insert(std::filesystem::read_symlink(fd.path(), closed).string());
  }
  std::vector<std::string> found;
  std::ifstream table("/proc/net/tcp");
  std::string line, place, local, remote, state, queues, timer, retransmits, user, timeout, inode;
  std::getline(table, line);
  while (std::getline(table, line)) {
    std::istringstream words(line);
    words >> place >> local >> remote >> state >> queues >> timer >> retransmits >> user >> timeout >> inode;
    if (state == "0A" && own.contains("socket:[" + inode + "]")) found.push_back(local);
  }
  return found;
}

// Ranks beyond 0 listen too, for later ones: on the same interface, and with the same manners.
TEST(TcpStrangers, AtThePortOfALaterRank) {
  const int port = free_port();
  auto zero = start_rank(world_of(0, 3, port), sum_ranks), one = start_rank(world_of(1, 3, port), sum_ranks);
  std::vector<Socket> strangers;
  std::vector<std::string> listening;
  for (const auto until = Clock::now() + 10s; listening.size() < 2 && Clock::now() < until;) {
    listening = listeners();
    std::this_thread::sleep_for(20ms);
  }
  ASSERT_EQ(listening.size(), 2U) << "of rank 0, and of rank 1 which waits for rank 2";
  for (const std::string& l : listening) {
    EXPECT_EQ(l.substr(0, 8), "0100007F") << "the loopback alone, which leads to all of them";
    for (int n = 0; n < 20; ++n) strangers.push_back(connected(std::stoi(l.substr(9), nullptr, 16)));
    ::send(strangers.back().fd(), "3txs....", 8, MSG_NOSIGNAL);
  }
  start_rank(world_of(2, 3, port), sum_ranks).get();
  EXPECT_NO_THROW(zero.get());
  EXPECT_NO_THROW(one.get());
}

// Who is of the job but comes a second time is told so; the first stays.
TEST(TcpStrangers, ARankThatComesTwice) {
  const int port = free_port();
  auto zero = start_rank(world_of(0, 3, port), sum_ranks), one = start_rank(world_of(1, 3, port), sum_ranks);
  std::this_thread::sleep_for(500ms);
  try {
    make_tcp_world(world_of(1, 3, port));
    ADD_FAILURE() << "there is a rank 1 already";
  } catch (const BackendError& error) {
    EXPECT_NE(std::string(error.what()).find("a rank 1 has come"), std::string::npos) << error.what();
  }
  start_rank(world_of(2, 3, port), sum_ranks).get();
  EXPECT_NO_THROW(zero.get());
  EXPECT_NO_THROW(one.get());
}

TEST(TcpAddresses, IPv6) {
  if (listen_at(resolve("::1", 0).front()).fd() < 0) GTEST_SKIP() << "this machine has no IPv6";
  run_processes(3, sum_ranks, "::1");
  run_processes(2, sum_ranks, "[::1]");
}

// A name that this machine's hosts file may give to the loopback: processes still find each other.
TEST(TcpAddresses, TheNameOfThisMachine) {
  std::array<char, 256> name{};
  ASSERT_EQ(gethostname(name.data(), name.size() - 1), 0);
  try {
    resolve(name.data(), 1);
  } catch (const BackendError& error) {
    GTEST_SKIP() << error.what();
  }
  run_processes(3, sum_ranks, name.data());
}

struct Pair {
  Pair() {
    std::array<int, 2> fds{};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds.data()), 0);
    from = Socket(fds[0]);
    to = Socket(fds[1]);
  }
  void send(const MessageHeader& header) const {
    EXPECT_EQ(::send(from.fd(), &header, sizeof header, 0), static_cast<ssize_t>(sizeof header));
  }
  Socket from, to;
};

std::int64_t virtual_bytes() {
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

TEST(TcpMessages, LengthsThatNobodySends) {
  const auto ignore = [](Message&&) { ADD_FAILURE() << "it is not whole"; };
  for (const MessageHeader& header :
       {MessageHeader{.bytes = -1}, MessageHeader{.bytes = std::int64_t{1} << 62},
        MessageHeader{.kind = MessageKind::abort, .bytes = 1 << 21},
        MessageHeader{.kind = MessageKind::goodbye, .bytes = 1}, MessageHeader{.kind = MessageKind{77}},
        MessageHeader{.magic = 7}}) {
    const Pair pair;
    pair.send(header);
    Inflow inflow;
    EXPECT_FALSE(inflow.take_in(pair.to.fd(), ignore));
    EXPECT_FALSE(inflow.fault().empty()) << header.bytes;
  }
  // One that may be: memory is asked for as it comes.
  const Pair pair;
  pair.send({.bytes = std::int64_t{1} << 39});
  const std::int64_t before = virtual_bytes();
  Inflow inflow;
  EXPECT_TRUE(inflow.take_in(pair.to.fd(), ignore));
  EXPECT_LT(virtual_bytes() - before, 64 << 20);
}

TEST(TcpMessages, ArriveInPieces) {
  const Pair pair;
  const std::vector<char> data(5000, 'x');
  std::vector<char> bytes(sizeof(MessageHeader));
  const MessageHeader header{.channel = 9, .bytes = std::ssize(data)};
  std::memcpy(bytes.data(), &header, sizeof header);
  bytes.insert(bytes.end(), data.begin(), data.end());
  const MessageHeader goodbye{.kind = MessageKind::goodbye};
  bytes.insert(bytes.end(), reinterpret_cast<const char*>(&goodbye),
               reinterpret_cast<const char*>(&goodbye + 1));
  Inflow inflow;
  std::vector<Message> got;
  for (std::size_t at = 0; at < bytes.size(); at += 7) {
    const std::size_t n = std::min<std::size_t>(7, bytes.size() - at);
    EXPECT_EQ(::send(pair.from.fd(), bytes.data() + at, n, 0), static_cast<ssize_t>(n));
    EXPECT_TRUE(inflow.take_in(pair.to.fd(), [&](Message&& m) { got.push_back(std::move(m)); }));
  }
  ASSERT_EQ(got.size(), 2u);
  EXPECT_EQ(got[0].channel, 9u);
  EXPECT_EQ(got[0].payload.size(), data.size());
  EXPECT_EQ(got[1].kind, MessageKind::goodbye);
}

}  // namespace
}  // namespace sextant::testing

// Jobs of processes that meet over TCP, here threads of one process, each with connections of its own.
#pragma once

#include <future>
#include <string>
#include <vector>

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/communicators/make_communicator.hpp"

namespace sextant::testing {

// A port that nobody has now.
inline int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof at;
  EXPECT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&at), sizeof at), 0);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&at), &length), 0);
  ::close(fd);
  return ntohs(at.sin_port);
}

inline TcpWorld world_of(int rank, int ranks, int port, double patience_s = 20) {
  return {.rank = rank,
          .ranks = ranks,
          .address = "127.0.0.1",
          .port = port,
          .job = "test",
          .secret = "a secret of the tests",
          .secret_source = "the tests",
          .patience = Seconds(patience_s)};
}

// Of a job that outlives some of its ranks; `generation`: of its meeting.
inline TcpWorld outliving(int rank, int ranks, int port, int generation = 0) {
  TcpWorld world = world_of(rank, ranks, port);
  world.outlives_ranks = true;
  world.generation = generation;
  return world;
}

// Counted from 1.
inline double sum_of_ranks(Communicator& c) {
  double x = c.rank() + 1;
  c.all_reduce(&x, &x, 1, Dtype::fp64, Reduction::sum, {});
  return x;
}

// One rank's part of a job, on a thread.
inline std::future<void> start_rank(const TcpWorld& world, const RankBody& body) {
  return std::async(std::launch::async, [world, body] {
    const auto communicator = make_tcp_world(world);
    try {
      body(*communicator);
    } catch (const std::exception& error) {
      communicator->abort(error.what());
      throw;
    }
  });
}

// Each rank on its own thread; the first exception is thrown again.
inline void run_processes(int ranks, const RankBody& body, const std::string& address = "127.0.0.1") {
  const int port = free_port();
  std::vector<std::future<void>> all;
  for (int r = 0; r < ranks; ++r) {
    TcpWorld world = world_of(r, ranks, port);
    world.address = address;
    all.push_back(start_rank(world, body));
  }
  std::exception_ptr first;
  for (auto& one : all) try {
      one.get();
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  if (first) std::rethrow_exception(first);
}

}  // namespace sextant::testing

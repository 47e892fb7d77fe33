// How fast are messages between two processes of --comm env?
//   build/release/bin/transport_bench [--short]
#include <cstdlib>

#include <sys/wait.h>
#include <unistd.h>

#include "runtime/communicators/make_communicator.hpp"
#include "tests/bench/transport_trial.hpp"

int main(int argc, char**) {
  using namespace sextant;
  const int port = 20000 + getpid() % 12000;  // below those that the system gives to whoever connects
  const int rank = fork() == 0 ? 1 : 0;
  const auto world = make_tcp_world({.rank = rank,
                                     .ranks = 2,
                                     .address = "127.0.0.1",
                                     .port = port,
                                     .job = "bench",
                                     .secret = "a secret of the bench",
                                     .secret_source = "the bench",
                                     .patience = Seconds(20)});
  bench::measure_transport(
      "own", rank, argc > 1 ? 0.01 : 1,
      [&](std::size_t bytes, const void* data) {
        world->send(data, static_cast<std::int64_t>(bytes), 1 - rank, NativeStream{});
      },
      [&](std::size_t bytes, void* data) {
        world->recv(data, static_cast<std::int64_t>(bytes), 1 - rank, NativeStream{});
      });
  if (rank == 0) wait(nullptr);
}

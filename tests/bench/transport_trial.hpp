// One measurement for every transport: latency and bandwidth between two processes of this machine.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <vector>

namespace sextant::bench {

// `share` of the usual number of messages. `send(bytes, data)` returns when the data may change, `receive` when they are there. Rank 0 prints the figures.
template <class Send, class Receive>
void measure_transport(const char* name, int rank, double share, const Send& send, const Receive& receive) {
  using Clock = std::chrono::steady_clock;
  const auto seconds = [](Clock::time_point from) {
    return std::chrono::duration<double>(Clock::now() - from).count();
  };
  const auto ping_pong = [&](std::vector<char>& data, int times) {
    for (int time = 0; time < times; ++time) {
      if (rank == 0) send(data.size(), data.data());
      receive(data.size(), data.data());
      if (rank == 1) send(data.size(), data.data());
    }
  };
  for (const std::size_t bytes : {std::size_t{8}, std::size_t{64} << 10, std::size_t{64} << 20}) {
    const double usual = bytes < 1024 ? 20'000 : bytes < (1 << 20) ? 5'000 : 20;
    const int times = std::max(1, static_cast<int>(usual * share));
    std::vector<char> data(bytes, 'x');
    ping_pong(data, times / 10);
    const auto start = Clock::now();
    ping_pong(data, times);
    const double one_way_s = seconds(start) / times / 2;
    if (rank == 0)
      std::printf("%-8s %9zu bytes  one way %9.1f us  %6.2f GB/s\n", name, bytes, 1e6 * one_way_s,
                  static_cast<double>(bytes) / one_way_s / 1e9);
    std::fflush(stdout);
  }
}

}  // namespace sextant::bench

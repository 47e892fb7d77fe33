// Emulated links take the time they state. Lower bounds always hold; upper bounds need a machine that is not
// overloaded, hence a label of their own.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>

#include <gtest/gtest.h>

#include "runtime/communicators/make_communicator.hpp"
#include "runtime/devices/make_device.hpp"

namespace sextant {
namespace {

constexpr NativeStream kNoStream{};
constexpr int kTries = 12;  // the quickest counts: machines are shared, and noise only adds time

void run_shaped(int ranks, const LinkShape& shape, const RankBody& body) {
  const auto fabric = make_fabric(shape, ranks, ranks);
  auto world = make_local_world(ranks);
  for (auto& c : world) c = make_shaped(std::move(c), fabric);
  run_ranks(world, body);
}

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// The quickest of all tries.
template <class Body>
double quickest(Communicator& c, Body body) {
  double best = 1e9;
  for (int i = 0; i < kTries; ++i) {
    c.barrier(kNoStream);
    const Stopwatch watch;
    body();
    best = std::min(best, watch.seconds());
  }
  return best;
}

// 4 ranks on one node at 100 MB/s: a ring all-reduce of 4 MB moves 2 * 3/4 * 4 MB = 6 MB per link: 60 ms, and
// 6 hops of 2 ms on top. Half of that for a reduce-scatter.
TEST(ShapedCommunicator, ARingTakesLatencyPlusBytesOverBandwidth) {
  run_shaped(4, {4, BytesPerSecond(100e6), Seconds(2e-3), {}, {}}, [](Communicator& c) {
    std::vector<float> x(1'000'000);
    const double reduce = quickest(
        c, [&] { c.all_reduce(x.data(), x.data(), 1'000'000, Dtype::fp32, Reduction::sum, kNoStream); });
    EXPECT_GE(reduce, 0.069);
    EXPECT_LT(reduce, 0.110);
    const double scatter = quickest(c, [&] {
      c.reduce_scatter(x.data(), x.data() + 250'000 * c.rank(), even_split(1'000'000, 4), Dtype::fp32,
                       Reduction::sum, kNoStream);
    });
    EXPECT_GE(scatter, 0.034);
    EXPECT_LT(scatter, 0.070);
  });
}

// Two nodes of two ranks, NIC 100 MB/s. One pair across sends 3 MB in 30 ms; both pairs at once share the NIC
// and take 60 ms. Inside the node the same bytes are free. A rank that begins a moment behind the others measures less.
TEST(ShapedCommunicator, RanksOfANodeShareItsNic) {
  run_shaped(4, {2, {}, {}, BytesPerSecond(100e6), {}}, [](Communicator& c) {
    std::vector<char> x(3'000'000);
    const auto exchange = [&](int from, int to) {
      if (c.rank() == from) c.send(x.data(), std::ssize(x), to, kNoStream);
      if (c.rank() == to) c.recv(x.data(), std::ssize(x), from, kNoStream);
    };
    const double alone = quickest(c, [&] {
      exchange(0, 2);
      c.barrier(kNoStream);
    });
    EXPECT_GE(alone, 0.028);
    EXPECT_LT(alone, 0.055);
    const double both = quickest(c, [&] {
      exchange(0, 2);
      exchange(1, 3);
      c.barrier(kNoStream);
    });
    EXPECT_GE(both, 0.056);
    EXPECT_LT(both, 0.100);
    const double inside = quickest(c, [&] {
      exchange(0, 1);
      exchange(2, 3);
      c.barrier(kNoStream);
    });
    EXPECT_LT(inside, 0.025);
  });
}

// Emulated transfers burn no CPU: 8 ranks wait 300 ms together, where one that spins would use
// 300 ms of a core.
TEST(ShapedCommunicator, WaitingCostsNoCpu) {
  const auto cpu_before = std::clock();
  run_shaped(8, {8, BytesPerSecond(10e6), {}, {}, {}}, [](Communicator& c) {
    std::vector<float> x(428'571);
    c.all_reduce(x.data(), x.data(), std::ssize(x), Dtype::fp32, Reduction::sum, kNoStream);
  });
  EXPECT_LT(static_cast<double>(std::clock() - cpu_before) / CLOCKS_PER_SEC, 0.15);
}

// 2 MB over 100 MB/s with 5 ms latency: 25 ms. Two copies the same way share the link, two opposite ones do
// not.
TEST(CpuDevice, TheHostLinkTakesItsTime) {
  CpuDeviceOptions options;
  options.host_link = BytesPerSecond(100e6);
  options.host_link_latency = Seconds(5e-3);
  const auto device = make_cpu_device(options);
  const auto out = device->create_stream("out"), in = device->create_stream("in"),
             out2 = device->create_stream("o");
  const Bytes bytes(2'000'000);
  const Allocation on_device(*device, Space::device, bytes), on_host(*device, Space::host, bytes);
  const Allocation other_device(*device, Space::device, bytes), other_host(*device, Space::host, bytes);
  std::memset(on_device.data(), 42, static_cast<std::size_t>(bytes.v));
  std::memset(on_host.data(), 0, static_cast<std::size_t>(bytes.v));
  std::memset(other_host.data(), 1, static_cast<std::size_t>(bytes.v));

  const auto timed = [&](StreamId second, bool reverse) {
    const auto begin = device->now();
    device->copy(out, on_host.data(), Space::host, on_device.data(), Space::device, bytes);
    if (second >= 0 && reverse)
      device->copy(second, other_device.data(), Space::device, other_host.data(), Space::host, bytes);
    else if (second >= 0)
      device->copy(second, other_host.data(), Space::host, other_device.data(), Space::device, bytes);
    device->synchronize(device->record(out));
    if (second >= 0) device->synchronize(device->record(second));
    return (device->now() - begin).v;
  };
  double alone = 1e9, opposite = 1e9, together = 1e9;
  for (int i = 0; i < kTries; ++i) {
    alone = std::min(alone, timed(-1, false));
    opposite = std::min(opposite, timed(in, true));
    together = std::min(together, timed(out2, false));
  }
  EXPECT_EQ(on_host.data()[bytes.v - 1], std::byte{42});
  EXPECT_GE(alone, 0.0245);
  EXPECT_LT(alone, 0.040);
  EXPECT_LT(opposite, 0.040);
  EXPECT_GE(together, 0.0445);
  EXPECT_LT(together, 0.070);

  const auto begin = device->now();
  device->copy(out, other_device.data(), Space::device, on_device.data(), Space::device, bytes);
  device->synchronize(device->record(out));
  EXPECT_LT((device->now() - begin).v, 0.015);  // inside one memory there is no link
}

}  // namespace
}  // namespace sextant

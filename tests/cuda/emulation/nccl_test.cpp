// System: communicators over an emulated NCCL, whose calls are under way until they are asked about, on as many emulated
// GPUs as there are ranks. Expectation: sums and copies that each rank works out alone; what is recorded behind a call
// comes after it; an abort and a lost peer end every rank. Numbers: sums of whole numbers, exact.
#include "tests/cuda/emulation/nccl.hpp"

#include <numeric>
#include <thread>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "runtime/communicators/make_communicator.hpp"
#include "runtime/devices/make_device.hpp"
#include "tests/cuda/emulation/gpu.hpp"

namespace sextant::testing {
namespace {

// A rank: its GPU, a stream, and page-locked memory that both sides read here.
struct Rank {
  std::unique_ptr<Communicator> comm;
  std::unique_ptr<Device> device;
  StreamId stream;

  explicit Rank(Communicator& host) {
    std::vector<int> all(static_cast<std::size_t>(host.size()));
    std::iota(all.begin(), all.end(), 0);
    device = make_cuda_device({.ordinal = host.rank()});
    stream = device->create_stream("test");
    comm = connect_nccl(host.group(all), host.rank());
  }
  template <class F>
  void call(F&& f) {
    device->launch(stream, [&](NativeStream s) { f(s); });
    device->synchronize(device->record(stream));
  }
};

constexpr int kRanks = 4;
using Values = std::vector<float>;
Values counted(int rank, std::int64_t n) {
  Values values(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(100 * rank + static_cast<int>(i));
  return values;
}
Values summed(int ranks, std::int64_t first, std::int64_t n) {
  Values sum(static_cast<std::size_t>(n));
  for (int r = 0; r < ranks; ++r)
    for (std::size_t i = 0; i < sum.size(); ++i)
      sum[i] += static_cast<float>(100 * r + first) + static_cast<float>(i);
  return sum;
}

TEST(EmulatedNccl, CollectivesGiveWhatRanksWorkOutAlone) {
  run_local_ranks(kRanks, [](Communicator& host) {
    Rank rank(host);
    const int me = host.rank();
    for (int repeat = 0; repeat < 20; ++repeat) {
      Values x = counted(me, 129), y(129);
      rank.call([&](NativeStream s) {
        rank.comm->all_reduce(x.data(), y.data(), 129, Dtype::fp32, Reduction::sum, s);
        rank.comm->all_reduce(y.data(), y.data(), 129, Dtype::fp32, Reduction::max, s);  // in place
      });
      EXPECT_EQ(y, summed(kRanks, 0, 129));

      for (const std::vector<std::int64_t>& counts : {std::vector<std::int64_t>{5, 5, 5, 5}, {3, 0, 7, 10}}) {
        const auto mine = static_cast<std::size_t>(counts[static_cast<std::size_t>(me)]);
        const std::int64_t first = std::accumulate(counts.begin(), counts.begin() + me, std::int64_t{0});
        Values in = counted(me, 20), part(mine), all(20);
        std::vector<std::int64_t> bytes = counts;
        for (auto& b : bytes) b *= 4;
        rank.call([&](NativeStream s) {
          rank.comm->reduce_scatter(in.data(), part.data(), counts, Dtype::fp32, Reduction::sum, s);
          rank.comm->all_gather(part.data(), all.data(), bytes, s);
        });
        EXPECT_EQ(part, summed(kRanks, first, static_cast<std::int64_t>(mine)));
        EXPECT_EQ(all, summed(kRanks, 0, 20));
      }

      Values told = counted(me, 7), heard(7);
      rank.call([&](NativeStream s) {
        rank.comm->broadcast(told.data(), 28, 2, s);
        rank.comm->barrier(s);
        if (me % 2 == 0)
          rank.comm->send(told.data(), 28, me + 1, s);
        else
          rank.comm->recv(heard.data(), 28, me - 1, s);
      });
      EXPECT_EQ(told, counted(2, 7));
      EXPECT_EQ(heard, me % 2 == 1 ? counted(2, 7) : Values(7));
    }
  });
}

TEST(EmulatedNccl, GroupsBesideTheWorld) {
  run_local_ranks(kRanks, [](Communicator& host) {
    Rank rank(host);
    const int me = host.rank();
    const std::vector<int> members = me % 2 == 0 ? std::vector{0, 2} : std::vector{1, 3};
    const auto pair = rank.comm->group(members);
    Values x(3, static_cast<float>(me)), y(3), z(3);
    rank.call([&](NativeStream s) {
      pair->all_reduce(x.data(), y.data(), 3, Dtype::fp32, Reduction::sum, s);
      rank.comm->all_reduce(y.data(), z.data(), 3, Dtype::fp32, Reduction::sum, s);
    });
    EXPECT_EQ(y, Values(3, me % 2 == 0 ? 2.0f : 4.0f));
    EXPECT_EQ(z, Values(3, 12.0f));
  });
}

TEST(EmulatedNccl, AnAbortFreesWhoWaits) {
  std::atomic<int> freed = 0;
  EXPECT_THROW(run_local_ranks(2,
                               [&](Communicator& host) {
                                 Values x(5);  // outlives the stream that may yet write it
                                 Rank rank(host);
                                 if (host.rank() == 1) {
                                   std::this_thread::sleep_for(std::chrono::milliseconds(50));
                                   rank.comm->abort("the test ends it");
                                   throw BackendError("the test ends it");
                                 }
                                 const auto wait = [&] {
                                   rank.call([&](NativeStream s) {  // the other never comes
                                     rank.comm->all_reduce(x.data(), x.data(), 5, Dtype::fp32, Reduction::sum,
                                                           s);
                                   });
                                   rank.comm->barrier({});
                                 };
                                 std::thread watchdog([&] {  // as the runtime's, of this process
                                   std::this_thread::sleep_for(std::chrono::milliseconds(100));
                                   rank.comm->abort("late");
                                 });
                                 EXPECT_THROW(wait(), Aborted);
                                 watchdog.join();
                                 ++freed;
                                 rank.device->launch(rank.stream, [&](NativeStream s) {
                                   EXPECT_THROW(rank.comm->barrier(s), Aborted);
                                 });
                               }),
               BackendError);
  EXPECT_EQ(freed, 1);
}

// No call is made with a communicator that an abort has taken: the emulation reports one that is gone.
TEST(EmulatedNccl, AnAbortAmidCalls) {
  for (int repeat = 0; repeat < 100; ++repeat)
    run_local_ranks(1, [&](Communicator& host) {
      Values x(5);  // outlives the stream that may yet write it
      Rank rank(host);
      std::thread watchdog([&] {
        std::this_thread::sleep_for(std::chrono::microseconds(10 * repeat));
        rank.comm->abort("late");
      });
      EXPECT_THROW(rank.device->launch(rank.stream,
                                       [&](NativeStream s) {
                                         for (;;)
                                           rank.comm->all_reduce(x.data(), x.data(), 5, Dtype::fp32,
                                                                 Reduction::sum, s);
                                       }),
                   Aborted);
      watchdog.join();
    });
}

TEST(EmulatedNccl, OneGpuIsNotForTwoRanks) {
  EXPECT_THROW(run_local_ranks(2,
                               [](Communicator& host) {
                                 const std::array all = {0, 1};
                                 connect_nccl(host.group(all), 0);
                               }),
               BackendError);
  EXPECT_FALSE(emulation::take_reports().empty());
}

// Last: it lasts.
TEST(EmulatedNccl, ALostPeerEndsEveryRank) {
  EXPECT_THROW(run_local_ranks(2,
                               [](Communicator& host) {
                                 Rank rank(host);
                                 host.barrier({});
                                 if (host.rank() == 0) emulation::break_links();
                                 for (;;) rank.comm->barrier({});  // of hosts, until the watch has told them
                               }),
               BackendError);
}

}  // namespace
}  // namespace sextant::testing

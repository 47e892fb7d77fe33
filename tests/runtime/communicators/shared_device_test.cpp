// Ranks that share a device, and leave each other by an error at any moment.
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "runtime/communicators/make_communicator.hpp"
#include "tests/runtime/communicators/device_at_once.hpp"

namespace sextant::testing {
namespace {

// Its marks and buffers say when they are gone.
struct WatchedDevice : DeviceAtOnce {
  using Mark = std::atomic<bool>*;  // whether it stands
  struct Seen {
    std::mutex mutex;
    std::vector<std::unique_ptr<std::atomic<bool>>> marks;
    std::set<const void*> buffers;  // that stand
    std::atomic<int> dead_marks{0}, dead_buffers{0}, calls{0};
  };
  std::shared_ptr<Seen> seen = std::make_shared<Seen>();
  int fails_at = -1;  // the call to the device that does

  Mark make_mark() const {
    const std::lock_guard lock(seen->mutex);
    return seen->marks.emplace_back(std::make_unique<std::atomic<bool>>(true)).get();
  }
  static void destroy_mark(Mark mark) { *mark = false; }
  void record(Mark, NativeStream) const { call(); }
  void wait(NativeStream, Mark mark) const {
    call();
    if (!*mark) ++seen->dead_marks;
  }
  void copy(NativeStream stream, void* to, const void* from, std::int64_t bytes) const {
    call();
    {
      const std::lock_guard lock(seen->mutex);
      if (!seen->buffers.contains(from)) ++seen->dead_buffers;
      if (seen->dead_buffers > 0) return;
    }
    DeviceAtOnce::copy(stream, to, from, bytes);
  }
  void call() const {
    const int n = seen->calls++;
    std::this_thread::sleep_for(std::chrono::microseconds(n % 3 == 0 ? 300 : 0));
    if (n == fails_at) throw BackendError("the device gives up");
  }
};

TEST(SharedDevice, WhoLeavesByAnErrorTakesNothingFromItsPeers) {
  constexpr int kRanks = 3;
  int failed = 0;
  for (int fails_at = 0; fails_at < 60; ++fails_at) {
    auto world = make_local_world(kRanks);
    WatchedDevice device;
    device.fails_at = fails_at;
    const auto seen = device.seen;
    share_device(std::span(world), device);
    const auto body = [&](Communicator& c) {
      const auto group = everyone(c);
      std::vector<float> own(1), gathered(kRanks);
      const std::vector<std::int64_t> bytes(kRanks, sizeof(float));
      {
        const std::lock_guard lock(seen->mutex);
        seen->buffers.insert(own.data());
      }
      const auto gone = [&](void*) {
        const std::lock_guard lock(seen->mutex);
        seen->buffers.erase(own.data());
      };
      const std::unique_ptr<void, decltype(gone)> buffer(own.data(), gone);
      group->all_gather(own.data(), gathered.data(), bytes, NativeStream{});
      if (c.rank() == 0) group->send(own.data(), sizeof(float), 1, NativeStream{});
      if (c.rank() == 1) group->recv(gathered.data(), sizeof(float), 0, NativeStream{});
      if (c.rank() == fails_at % kRanks) throw BackendError("the rank gives up");
      group->broadcast(own.data(), sizeof(float), 0, NativeStream{});
    };
    try {
      run_ranks(world, body);
      ADD_FAILURE() << "somebody gives up";
    } catch (const BackendError& error) {
      if (error.what() == std::string("the device gives up")) ++failed;
    }
    world.clear();
    EXPECT_EQ(seen->dead_marks, 0) << fails_at;
    EXPECT_EQ(seen->dead_buffers, 0) << fails_at;
    for (const auto& mark : seen->marks) EXPECT_FALSE(*mark) << "nobody is left, but a mark is";
  }
  EXPECT_GT(failed, 10);
}

}  // namespace
}  // namespace sextant::testing

// Devices: order on streams and across events, errors that travel, memory accounts, emulated host link, and
// the virtual clock.
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "runtime/devices/make_device.hpp"

namespace sextant {
namespace {

using std::chrono::milliseconds;

TEST(CpuDevice, AStreamRunsInOrderAndStreamsRunAtOnce) {
  const auto device = make_cpu_device({});
  const auto a = device->create_stream("a"), b = device->create_stream("b");
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) device->launch(a, [&, i](NativeStream) { order.push_back(i); });
  device->synchronize(device->record(a));
  ASSERT_EQ(order.size(), 100u);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));

  // Each waits for the other's flag: only possible when both run at the same time.
  std::atomic<bool> flag_a{false}, flag_b{false};
  device->launch(a, [&](NativeStream) {
    flag_a = true;
    while (!flag_b) std::this_thread::yield();
  });
  device->launch(b, [&](NativeStream) {
    flag_b = true;
    while (!flag_a) std::this_thread::yield();
  });
  device->synchronize(device->record(a));
  device->synchronize(device->record(b));
}

TEST(CpuDevice, AProgramRunsWhenItIsReplayed) {
  const auto device = make_cpu_device({});
  ASSERT_TRUE(device->captures());
  const auto stream = device->create_stream("a"), other = device->create_stream("b");
  std::vector<int> seen;
  device->begin_capture(stream);
  for (int i = 0; i < 3; ++i) device->launch(stream, [&, i](NativeStream) { seen.push_back(i); });
  std::atomic<int> beside{0};
  device->launch(other, [&](NativeStream) { ++beside; });  // not captured
  EXPECT_THROW(device->record(stream), BackendError);
  const Program program = device->end_capture(stream);
  ASSERT_TRUE(program);
  device->synchronize(device->record(stream));
  device->synchronize(device->record(other));
  EXPECT_TRUE(seen.empty()) << "nothing has run";
  EXPECT_EQ(beside, 1);
  device->launch(stream, [&](NativeStream) { seen.push_back(7); });
  EXPECT_TRUE(device->replay(stream, program));
  EXPECT_TRUE(device->replay(stream, program));
  device->synchronize(device->record(stream));
  EXPECT_EQ(seen, (std::vector<int>{7, 0, 1, 2, 0, 1, 2}));
  EXPECT_FALSE(make_virtual_device()->captures()) << "control";
}

TEST(CpuDevice, AnEventOrdersStreams) {
  for (const bool with_event : {true, false}) {
    const auto device = make_cpu_device({});
    const auto a = device->create_stream("a"), b = device->create_stream("b");
    std::atomic<int> value{0};
    int seen = -1;
    device->launch(a, [&](NativeStream) {
      std::this_thread::sleep_for(milliseconds(30));
      value = 7;
    });
    const auto produced = device->record(a);
    EXPECT_FALSE(device->reached(produced));
    if (with_event) device->wait(b, produced);
    device->launch(b, [&](NativeStream) { seen = value; });
    const auto consumed = device->record(b);
    device->synchronize(consumed);
    EXPECT_EQ(seen, with_event ? 7 : 0);  // negative control: without the edge the old value is read
    device->synchronize(produced);
    EXPECT_EQ(*device->reached(produced) <= *device->reached(consumed), with_event);
  }
}

TEST(CpuDevice, AnErrorSkipsWhatDependsOnIt) {
  std::atomic<int> told{0};
  CpuDeviceOptions options;
  options.on_error = [&](const std::string& what) { told += what == "boom"; };
  const auto device = make_cpu_device(options);
  const auto a = device->create_stream("a"), b = device->create_stream("b"), c = device->create_stream("c");
  std::atomic<int> ran{0};
  device->launch(a, [](NativeStream) { throw BackendError("boom"); });
  device->launch(a, [&](NativeStream) { ++ran; });
  device->wait(b, device->record(a));
  device->launch(b, [&](NativeStream) { ++ran; });
  device->launch(c, [&](NativeStream) { ran += 10; });
  EXPECT_THROW(device->synchronize(device->record(b)), BackendError);
  EXPECT_NO_THROW(device->synchronize(device->record(c)));
  EXPECT_EQ(ran, 10);
  EXPECT_EQ(told, 1);
}

TEST(CpuDevice, SpacesAreAccountedApart) {
  CpuDeviceOptions options;
  options.device_memory = Bytes(1000);
  options.host_memory = Bytes(500);
  const auto device = make_cpu_device(options);
  {
    const Allocation x(*device, Space::device, Bytes(600));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(x.data()) % 64, 0u);
    EXPECT_EQ(device->memory(Space::device).used, Bytes(600));
    EXPECT_EQ(device->memory(Space::host).used, Bytes(0));
    EXPECT_THROW(Allocation(*device, Space::device, Bytes(401)), BackendError);
    EXPECT_NO_THROW(Allocation(*device, Space::device, Bytes(400)));
    EXPECT_THROW(device->release(Space::host, x.data()), std::logic_error);
  }
  EXPECT_EQ(device->memory(Space::device).used, Bytes(0));
  EXPECT_EQ(device->memory(Space::device).peak, Bytes(1000));
  try {
    device->allocate(Space::host, Bytes(501));
    FAIL();
  } catch (const BackendError& error) {
    EXPECT_STREQ(error.what(), "host memory: 501 bytes asked, 0 of 500 in use");
  }
}

TEST(VirtualDevice, EventsMoveClocksForward) {
  const auto device = make_virtual_device();
  const auto a = device->create_stream("a"), b = device->create_stream("b");
  const auto work = [](double seconds) {
    return [=](NativeStream stream) { virtual_clock(stream) += Seconds(seconds); };
  };
  device->launch(a, work(3));
  const auto three = device->record(a);
  device->launch(b, work(1));
  device->wait(b, three);
  device->launch(b, work(1));
  device->launch(a, work(0.5));
  device->wait(a, device->record(b));
  EXPECT_EQ(device->reached(three), Seconds(3));
  EXPECT_EQ(device->reached(device->record(b)), Seconds(4));
  EXPECT_EQ(device->now(), Seconds(4));
}

}  // namespace
}  // namespace sextant

// The measurements of a machine, here of CPU ranks. System: calls that sleep, whose times are known; then the whole sweep
// at small sizes. Expectation: no call is found shorter than it sleeps, calls are counted only where both streams were
// busy, and the sweep has every kind of measurement with rates that follow from its times.
#include "profiler/machine_sweep.hpp"

#include <chrono>
#include <mutex>
#include <set>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.hpp"
#include "core/timeline/work_profile.hpp"
#include "kernels/cpu/cpu_kernels.hpp"
#include "profiler/gpu_monitor.hpp"
#include "profiler/kernel_trace.hpp"
#include "profiler/sample_summary.hpp"
#include "profiler/stream_bench.hpp"
#include "runtime/communicators/make_communicator.hpp"
#include "runtime/devices/make_device.hpp"

namespace sextant::testing {
namespace {

StreamCall sleeping(Device& device, int milliseconds, int* calls = nullptr) {
  return [&device, milliseconds, calls](StreamId stream) {
    device.launch(stream, [milliseconds, calls](NativeStream) {
      if (calls) ++*calls;
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    });
  };
}

TEST(StreamBench, CallsAlone) {
  const auto device = make_cpu_device({});
  StreamBench bench(*device);
  int calls = 0, meetings = 0;
  const auto seconds = bench.alone(sleeping(*device, 4, &calls), 5, [&] { ++meetings; });
  EXPECT_EQ(seconds.size(), 5u);
  EXPECT_EQ(calls, 7) << "one rehearsed, one dropped";
  EXPECT_EQ(meetings, 7);
  for (const double s : seconds) EXPECT_GE(s, 0.004);
}

TEST(StreamBench, AsManyCallsAsTakeAsLong) {
  constexpr int least = StreamBench::kLeast, most = StreamBench::kMost;
  EXPECT_EQ(StreamBench::counts(1.0, 1.0), std::pair(least, least));
  EXPECT_EQ(StreamBench::counts(4.0, 1.0), std::pair(least, 4 * least));
  EXPECT_EQ(StreamBench::counts(0.5, 2.0), std::pair(4 * least, least));
  EXPECT_EQ(StreamBench::counts(1e-9, 1.0).first, most);
  EXPECT_EQ(StreamBench::counts(0, 1.0).first, least) << "nothing is known of it";
}

TEST(StreamBench, OnlyCallsBesideTheOtherCount) {
  const auto device = make_cpu_device({});
  StreamBench bench(*device);
  // Ten short calls end long before three long ones do.
  const auto both = bench.concurrent(sleeping(*device, 2), sleeping(*device, 20), {10, 3}, 2);
  EXPECT_GE(both.first.size(), 16u) << "all but those at the very ends";
  EXPECT_LE(both.first.size(), 20u);
  EXPECT_LE(both.second.size(), 4u) << "the last ones have nothing beside them";
  for (const double s : both.first) EXPECT_GE(s, 0.002);
  for (const double s : both.second) EXPECT_GE(s, 0.020);
}

// Groups of two, of four, ..., and of all; nodes by the names of the machines.
TEST(MachineSweep, OfSixRanksOnTwoNodes) {
  std::vector<MachineMeasurement> measured;
  run_local_ranks(6, [&](Communicator& rank) {
    SweepOptions options;
    options.repetitions = 1;
    options.copy_bytes = 4096;
    options.formats = {Dtype::fp32};
    options.extents = {16};
    options.collective_bytes = {4096};
    options.node = rank.rank() < 3 ? "here" : "there";
    CpuDeviceOptions cpu;
    cpu.on_error = [&](const std::string& what) { rank.abort(what); };
    const auto device = make_cpu_device(cpu);
    auto all = sweep_machine(*device, cpu_reference_kernels(), rank, options);
    if (rank.rank() == 0) measured = std::move(all);
  });
  MachineFacts facts;
  facts.measurements = std::move(measured);
  for (const char* what : {"all_reduce 4096B g2", "all_reduce 4096B g4 nodes2", "all_gather 4096B g6 nodes2"})
    EXPECT_NE(facts.find(what), nullptr) << what;
  EXPECT_EQ(facts.find("all_reduce 4096B g6"), nullptr);
}

TEST(MachineSweep, OfTwoRanks) {
  SweepOptions options;
  options.repetitions = 3;
  options.copy_bytes = 1 << 20;
  options.formats = {Dtype::fp32};
  options.extents = {64, 128};
  options.collective_bytes = {1 << 12, 1 << 16};
  std::vector<std::string> parts;
  options.before_part = [&](const std::string& part) { parts.push_back(part); };
  MachineFacts facts;
  facts.device = "these ranks";
  run_local_ranks(2, [&](Communicator& rank) {
    CpuDeviceOptions cpu;
    cpu.on_error = [&](const std::string& what) { rank.abort(what); };
    const auto device = make_cpu_device(cpu);
    auto measured = sweep_machine(*device, cpu_reference_kernels(), rank, options);
    if (rank.rank() == 0) facts.measurements = std::move(measured);
  });
  EXPECT_EQ(parts.size(), 6u);
  for (const char* what :
       {"copy device_to_device 1048576B", "copy host_to_device 1048576B", "copy device_to_host 1048576B",
        "gemm fp32 64x64x64", "gemm fp32 128x128x128", "launch", "launch by the host", "all_reduce 4096B g2",
        "all_reduce 65536B g2", "all_gather 65536B g2", "reduce_scatter 65536B g2",
        "gemm fp32 64x64x64 on 2 ranks"}) {
    const MachineMeasurement* m = facts.find(what);
    ASSERT_NE(m, nullptr) << what;
    EXPECT_GT(m->median_us, 0) << what;
    EXPECT_EQ(m->samples, 3) << what;
  }
  const MachineMeasurement *product = facts.find("gemm fp32 128x128x128"),
                           *copy = facts.find("copy device_to_device 1048576B"),
                           *sum = facts.find("all_reduce 65536B g2");
  EXPECT_NEAR(product->rate_TFLOPS, 2.0 * 128 * 128 * 128 / product->median_us * 1e-6, 1e-9);
  EXPECT_NEAR(copy->rate_GBps, 2.0 * 1048576 / copy->median_us * 1e-3, 1e-6) << "read and written";
  EXPECT_NEAR(sum->rate_GBps, 65536 / sum->median_us * 1e-3, 1e-6) << "2 (n - 1) / n of the bytes";
  // Whether two calls were ever under way together is the machine's to say; if they were, both have a time.
  for (const MachineMeasurement& m : facts.measurements) {
    if (m.concurrent_with.empty()) continue;
    EXPECT_GT(facts.lengthening(m.what, m.concurrent_with), 0) << m.what << " beside " << m.concurrent_with;
  }
  EXPECT_EQ(facts.lengthening("launch", "the moon"), 0);

  WorkProfile profile;
  facts.libraries = {"none"};
  MachineCondition& condition = facts.conditions.emplace_back();
  condition.at = "before copies";
  condition.time_s = 0.5;
  condition.temperature_C = 40;
  condition.limited_by = "heat";
  profile.timed_by = "events";
  profile.facts = facts;
  const nlohmann::json stored = profile;
  EXPECT_EQ(stored.get<WorkProfile>(), profile);
  nlohmann::json broken = stored;
  broken["facts"]["measurements"][0]["median_us"] = -1;
  EXPECT_THROW(broken.get<WorkProfile>(), ConfigError);
}

// Bits of nvml.h: an idle GPU and clocks that were asked for hinder nothing.
TEST(GpuMonitor, WhatHoldsClocksDown) {
  EXPECT_EQ(clock_limits(0), "");
  EXPECT_EQ(clock_limits(0x1 | 0x2), "");
  EXPECT_EQ(clock_limits(0x4), "power cap");
  EXPECT_EQ(clock_limits(0x20 | 0x80), "heat, power brake");
}

TEST(GpuMonitor, SaysWhatIsMissing) {
  std::string why;
  if (!cuda_gpus(why).empty()) GTEST_SKIP() << "there is a GPU";
  const GpuMonitor state(0);
  EXPECT_FALSE(state.missing().empty());
  MachineFacts facts;
  state.describe(facts);
  EXPECT_EQ(facts, MachineFacts{});
  MachineCondition nothing;
  nothing.at = "here";
  EXPECT_EQ(state.now("here"), nothing);
}

TEST(KernelTrace, SaysWhatIsMissing) {
  std::string why;
  if (!cuda_gpus(why).empty()) GTEST_SKIP() << "there is a GPU";
  // CUPTI may be there without a GPU; either way nothing crashes and the reason is a sentence.
  const std::string missing = kernel_trace_missing();
  EXPECT_EQ(missing.empty(), !kernel_trace_library().empty());
  if (missing.empty()) return;
  EXPECT_THROW(KernelTrace(), BackendError);
}

}  // namespace
}  // namespace sextant::testing

// Unit: the emulated GPU. Expectation: a kernel with one mistake is found out, by the emulation or by the sanitizer that
// the program is built with; the same kernel without one is not. Numbers: sums of whole numbers, exact.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cuda/emulation/faulty_kernels.hpp"
#include "tests/cuda/emulation/gpu.hpp"

namespace sextant::testing {
namespace {

constexpr int kThreads = 64;
constexpr float kSum = kThreads * (kThreads + 1) / 2;

struct Outcome {
  cudaError_t launched = cudaSuccess;
  std::vector<float> out;
  std::string report;
};

Outcome run(Mistake mistake) {
  cudaStream_t stream = nullptr;
  cudaStreamCreate(&stream);
  void* memory = nullptr;
  cudaMalloc(&memory, kThreads * sizeof(float));
  Outcome outcome;
  run_faulty(mistake, static_cast<float*>(memory), kThreads, stream);
  outcome.launched = cudaGetLastError();
  cudaStreamSynchronize(stream);
  const auto* values = static_cast<const float*>(memory);
  outcome.out.assign(values, values + kThreads);
  cudaFree(memory);
  cudaStreamDestroy(stream);
  for (const std::string& report : emulation::take_reports()) outcome.report += report;
  return outcome;
}

class Faults : public ::testing::Test {
 protected:
  void SetUp() override {
    ::testing::FLAGS_gtest_death_test_style = "threadsafe";
    cudaSetDevice(0);
  }
};

TEST_F(Faults, AKernelWithoutAMistakeRuns) {
  for (int repeat = 0; repeat < 20; ++repeat) {
    const Outcome o = run(Mistake::none);
    EXPECT_EQ(o.out, std::vector<float>(kThreads, kSum));
    EXPECT_EQ(o.report, "");
  }
}

TEST_F(Faults, LaunchesBeyondTheLimitsAreRefused) {
  EXPECT_EQ(run(Mistake::too_much_shared).launched, cudaErrorInvalidValue);
  EXPECT_EQ(run(Mistake::too_many_rows).launched, cudaErrorInvalidConfiguration);
}

TEST_F(Faults, SharedMemoryBeginsAsNoNumber) {
  for (const float x : run(Mistake::not_written).out) EXPECT_NE(x, x);
}

#ifdef SEXTANT_EMULATION_RACES

// What any order of threads hides: ThreadSanitizer, which knows of barriers only.
TEST_F(Faults, RacesAreReported) {
  EXPECT_DEATH(run(Mistake::no_barrier), "data race");
  EXPECT_DEATH(run(Mistake::blocks_share), "data race");
}

#else

TEST_F(Faults, BarriersAndWarpsMustBeWhole) {
  EXPECT_NE(run(Mistake::two_barriers).report.find("different barriers"), std::string::npos);
  EXPECT_NE(run(Mistake::lane_is_missing).report.find("wait for ever"), std::string::npos);
}

TEST_F(Faults, AMissingBarrierShowsInWhatIsComputed) {
  const std::vector<float> right(kThreads, kSum);
  int wrong = 0;
  for (int repeat = 0; repeat < 20; ++repeat) wrong += run(Mistake::no_barrier).out != right;
  EXPECT_EQ(wrong, 20);
}

#endif
#ifdef SEXTANT_EMULATION_ADDRESSES

TEST_F(Faults, WhatLiesOutsideIsReported) {
  EXPECT_DEATH(run(Mistake::shared_overrun), "out of bounds");
  EXPECT_DEATH(run(Mistake::memory_overrun), "heap-buffer-overflow");
  EXPECT_DEATH(run(Mistake::unaligned), "misaligned address");
}

#endif

}  // namespace
}  // namespace sextant::testing

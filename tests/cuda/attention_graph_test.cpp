// System: the graphs that attention hands to cuDNN, on a machine without a GPU. Expectation: for an A100 and an H200 the
// library finds an engine, compiles its kernel and asks for no more workspace than a plan has. Numbers: none. Each shape is
// asked of one of the two, of both nightly: compiling takes seconds.
#include <array>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/cuda_kernels.hpp"
#include "tests/support/whole_grid.hpp"

namespace sextant::testing {
namespace {

constexpr const char* kH200 =
    R"({"deviceVer": 900, "driverVer": 13000, "deviceName": "NVIDIA H200", "cudaDeviceId": 0,
  "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536,
  "multiProcessorCount": 132, "warpSize": 32, "maxSharedMemoryPerBlock": 49152,
  "maxSharedMemoryPerBlockOptin": 232448, "reservedSharedMemoryPerBlock": 1024, "maxRegistersPerSM": 65536,
  "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "pciDeviceId": 0, "isTccDriver": 0,
  "supportCoopLaunch": 1, "smClockRateKHz": 1980000, "memClockRateKHz": 3201000, "l2CacheSize": 62914560,
  "totalGlobalMem": 150754820096})";

constexpr const char* kA100 =
    R"({"deviceVer": 800, "driverVer": 13000, "deviceName": "NVIDIA A100-SXM4-80GB", "cudaDeviceId": 0,
  "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536,
  "multiProcessorCount": 108, "warpSize": 32, "maxSharedMemoryPerBlock": 49152,
  "maxSharedMemoryPerBlockOptin": 166912, "reservedSharedMemoryPerBlock": 1024, "maxRegistersPerSM": 65536,
  "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "pciDeviceId": 0, "isTccDriver": 0,
  "supportCoopLaunch": 1, "smClockRateKHz": 1410000, "memClockRateKHz": 1593000, "l2CacheSize": 41943040,
  "totalGlobalMem": 85097971712})";

// What came of both graphs; "" when they could run.
std::string refusal(const char* gpu, int batch, int heads, int kv_heads, int d, int seq, int window = 0,
                    bool alibi = false) {
  std::vector<std::int32_t> positions(static_cast<std::size_t>(seq));
  std::iota(positions.begin(), positions.end(), 0);
  float slopes[256] = {};
  return attention_refusal({.batch = batch,
                            .heads = heads,
                            .kv_heads = kv_heads,
                            .head_dim = d,
                            .q_positions = positions,
                            .k_positions = positions,
                            .window = window,
                            .slopes = alibi ? TensorView(slopes, Dtype::fp32, 1, heads) : TensorView(),
                            .scale = 0.125},
                           gpu);
}

// Calls f(GPU, one of the shapes) for the two in turn.
template <class Shapes, class F>
void each_asked(const Shapes& shapes, F&& f) {
  std::size_t at = 0;
  for (const auto& shape : shapes) {
    for (const char* gpu : {kH200, kA100})
      if (whole_grid() || (gpu == kH200) == (at % 2 == 0)) f(gpu, shape);
    ++at;
  }
}

class AttentionGraphs : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_libraries().attention.empty()) GTEST_SKIP() << "cuDNN was not found";
    static const bool driver = refusal(kH200, 2, 2, 2, 20, 64).find("libcuda") == std::string::npos;
    if (!driver) GTEST_SKIP() << "no driver to load kernels with";
  }
};

TEST_F(AttentionGraphs, A100AndH200ServeBothPasses) {
  each_asked(std::array{std::array{2, 8, 2, 128, 512}, std::array{2, 4, 4, 64, 129},
                        std::array{4, 32, 8, 64, 2048},   // Llama-3.2-1B
                        std::array{2, 24, 8, 128, 2048},  // Llama-3.2-3B
                        std::array{1, 32, 32, 128, 4096}},
             [](const char* gpu, const std::array<int, 5>& shape) {
               const auto& [batch, heads, kv_heads, d, seq] = shape;
               EXPECT_EQ(refusal(gpu, batch, heads, kv_heads, d, seq), "")
                   << heads << "/" << kv_heads << " of " << d;
             });
}

TEST_F(AttentionGraphs, WindowsAreServed) {
  each_asked(
      std::array{std::array{2, 8, 2, 128, 512, 100}, std::array{1, 32, 8, 128, 8192, 4096}},  // Mistral 7B
      [](const char* gpu, const std::array<int, 6>& shape) {
        const auto& [batch, heads, kv_heads, d, seq, window] = shape;
        EXPECT_EQ(refusal(gpu, batch, heads, kv_heads, d, seq, window), "")
            << heads << "/" << kv_heads << " of " << d << ", " << window << " of " << seq;
      });
}

TEST_F(AttentionGraphs, DistancesAreServed) {
  each_asked(std::array{40}, [](const char* gpu, int heads) {  // Baichuan 2 13B
    EXPECT_EQ(refusal(gpu, 1, heads, heads, 128, 4096, 0, true), "");
  });
}

// Control: a graph that no engine takes is refused.
TEST_F(AttentionGraphs, AHeadThatNoEngineTakesIsRefused) {
  for (const char* gpu : {kA100, kH200}) EXPECT_NE(refusal(gpu, 2, 2, 2, 20, 64), "");
}

}  // namespace
}  // namespace sextant::testing

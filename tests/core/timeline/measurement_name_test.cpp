// Names that profiles hold are read as what was measured, and as nothing else.
#include "core/timeline/measurement_name.hpp"

#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace sextant {
namespace {

TEST(MeasurementName, IsReadAsWhatItNames) {
  const std::vector<std::pair<const char*, Measured>> named = {
      {"gemm bf16 8192x8192x8192", SquareGemm{Dtype::bf16, 8192}},
      {"gemm fp32 128x128x128 on 2 ranks", SquareGemm{Dtype::fp32, 128, 2}},
      {"copy device_to_device 64B", CopyWithin{Bytes(64)}},
      {"copy host_to_device 64B", CopyWork{Bytes(64), CopyDirection::host_to_device}},
      {"launch", SmallestKernel{}},
      {"launch by the host", SmallestKernel{.by_host = true}},
      {"all_gather 4096B g6", MeasuredCollective{CollectiveKind::all_gather, Bytes(4096), 6}},
      {"all_reduce 4096B g16 nodes2", MeasuredCollective{CollectiveKind::all_reduce, Bytes(4096), 16, 2}},
      {"reduce_scatter 4096B g2 one_device",
       MeasuredCollective{CollectiveKind::reduce_scatter, Bytes(4096), 2, 1, true}},
      {"", {}},
  };
  for (const auto& [name, of] : named) {
    EXPECT_EQ(measurement_name(of), name);
    EXPECT_EQ(parse_measurement(name), of) << name;
  }
}

TEST(MeasurementName, OfAnotherVersionIsNothing) {
  for (const char* name :
       {"gemm bf16 8192x8192x4096", "gemm bf17 64x64x64", "gemm bf16 -1x-1x-1", "copy device_to_device B",
        "copy sideways 64B", "all_reduce 64B", "all_reduce 64B g2 nodes1", "all_reduce 64B g2 nodes2 fast",
        "all_reduce 99999999999999999999B g2", "launch by", "launch ", " launch", "attention bf16 64B"})
    EXPECT_EQ(parse_measurement(name), Measured{}) << name;
}

}  // namespace
}  // namespace sextant

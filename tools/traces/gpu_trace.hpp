// What a profiler saw of one rank's device, whatever wrote it: kernels, copies and collectives with their streams, and the marks of
// steps. Names are kept once; an activity takes some 70 bytes, so that traces of a million kernels stay small.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sextant {

// What a kernel does, by its name (tools/presets/kernel_names.json).
enum class KernelClass : std::uint8_t {
  gemm,          // matrix products, convolutions
  attention,     // attention cores, flash or not
  element_wise,  // norms, activations, RoPE, casts, loss, embedding, layout changes
  optimizer,     // Adam, gradient norm, clipping
  other,         // computes, and no rule knows what
  collective,
  host_copy,    // between host and device
  device_copy,  // copies and memsets on the device
};
inline constexpr std::array<std::string_view, 8> kKernelClassNames = {
    "gemm", "attention", "element_wise", "optimizer", "other", "collective", "host_copy", "device_copy"};
constexpr std::string_view name(KernelClass c) { return kKernelClassNames[static_cast<std::size_t>(c)]; }
inline constexpr std::size_t kComputeClasses = 5;  // the first five
constexpr bool computes(KernelClass c) { return static_cast<std::size_t>(c) < kComputeClasses; }

enum class CollectiveName : std::uint8_t {
  all_reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  send_recv,
  broadcast,
  reduce,
  unnamed,  // a kernel for any of them, and nothing else says which
};
inline constexpr std::array<std::string_view, 8> kCollectiveWords = {
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "broadcast", "reduce", "any"};
constexpr std::string_view name(CollectiveName c) { return kCollectiveWords[static_cast<std::size_t>(c)]; }

struct DeviceActivity {
  std::int64_t begin_ns = 0, end_ns = 0;
  std::int64_t launch_ns = -1;  // when the host launched it; -1: not said
  std::int64_t bytes = 0;       // of a collective's larger side; 0: not said
  std::int64_t wait_ns =
      0;  // of a collective: at its begin, in which it waited for other ranks (collective_waits.hpp)
  std::uint64_t stream = 0;
  std::uint32_t name = 0;   // of RankTrace::names
  std::uint32_t group = 0;  // of RankTrace::groups; 0: not said
  std::int32_t peers = -1;  // of a send or receive: source * 2^15 + destination; -1: not said
  KernelClass kind = KernelClass::other;
  CollectiveName collective = CollectiveName::unnamed;
};

// A communicator as the framework names it.
struct ProcessGroup {
  std::string name, description;  // "3", "mesh_tp"
  int size = 0;                   // 0: not said
  std::vector<int> ranks;         // empty: not said, or cut by the profiler
  bool operator==(const ProcessGroup&) const = default;
};

// A step as the host marked it: ProfilerStep#7.
struct StepMark {
  std::int64_t number = 0, begin_ns = 0, end_ns = 0;
};

struct RankTrace {
  std::string file, program;  // "PyTorch profiler", "Nsight Systems"
  std::string device;         // "NVIDIA H100 80GB HBM3"; empty: not said
  int rank = -1, world = 0;   // -1, 0: not said
  bool has_launches = false;
  std::vector<std::string> names;
  std::vector<ProcessGroup> groups = {{}};  // the first stands for none
  std::vector<DeviceActivity> activities;   // in order of begin_ns
  std::vector<StepMark> marks;              // in order, none inside another
};

}  // namespace sextant

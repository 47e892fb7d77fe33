// A machine with GPUs, on a host's thread: streams are queues, and of those whose first entry may run, one is chosen by
// chance, so that work which no event orders runs in any order. What CUDA forbids is an error here too: launches
// beyond a GPU's limits, objects of another GPU than the thread's, calls that a capture cannot hold.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include "tests/cuda/emulation/block.hpp"

namespace emulation {

inline constexpr int kGpus = 8;

// A point of a stream that is reached or not.
struct Mark {
  bool reached = false;
  double at_ms = 0;
};

cudaError_t set_kernel_attribute(const void* kernel, cudaFuncAttribute, int value);
void enqueue_kernel(cudaStream_t, const Launch&, std::function<void()> kernel);
// What a library does on a stream; takes the place of its kernels.
cudaError_t enqueue(cudaStream_t, std::function<void()> work);
int device_of(cudaStream_t);

// What the host did since the counts were last taken: what a training step must do without.
struct Counts {
  int allocations = 0;      // cudaMalloc, cudaHostAlloc
  int waits = 0;            // of the host for the GPU
  int pageable_copies = 0;  // which wait too
  int kernels = 0, copies = 0;
};
Counts take_counts();

// Bytes of cudaMalloc on all GPUs at most since this was last asked, beyond those that were there then.
std::int64_t take_most_bytes();

// What went wrong since they were last taken: faults of kernels, errors that a call has returned.
std::vector<std::string> take_reports();

// From now on every call says that a kernel went astray, as of a GPU on which one did.
void break_down();

// Told of each kernel, copy and fill that has run: what a profiler sees. None by default.
struct Activity {
  enum Kind { kernel, copy, fill } kind;
  std::uint64_t correlation;
  std::uint64_t start_ns, end_ns;
};
struct Profiler {
  std::function<void(std::uint64_t correlation)> called;  // on the thread that enqueues
  std::function<void(const Activity&)> done;
};
void set_profiler(Profiler);
std::uint64_t now_ns();

}  // namespace emulation

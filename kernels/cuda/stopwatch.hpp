// What some runs of a call take on a stream, by the GPU's clock: for choices that are made in a rehearsed step.
#pragma once

#include <optional>

#include <cuda_runtime_api.h>

#include "kernels/cuda/cuda_stream.hpp"

namespace sextant::cuda {

class Stopwatch {
 public:
  explicit Stopwatch(const CudaStream& s) : stream_(s.stream) {
    check(cudaEventCreate(&begin_), "cudaEventCreate"), check(cudaEventCreate(&end_), "cudaEventCreate");
  }
  Stopwatch(const Stopwatch&) = delete;
  ~Stopwatch() { cudaEventDestroy(begin_), cudaEventDestroy(end_); }

  // Of one of them; nothing when one did not start.
  std::optional<double> seconds(int runs, const auto& run) const {
    bool all = true;
    check(cudaEventRecord(begin_, stream_), "cudaEventRecord");
    for (int i = 0; i < runs && all; ++i) all = run();
    check(cudaEventRecord(end_, stream_), "cudaEventRecord");
    check(cudaEventSynchronize(end_), "a call that was tried");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
    if (!all) return {};
    return 1e-3 * static_cast<double>(ms) / runs;
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace sextant::cuda

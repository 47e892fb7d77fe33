#include "kernels/cuda/stopwatch.hpp"

#include <cuda_runtime_api.h>

namespace sextant::cuda {

Stopwatch::Stopwatch(const CudaStream& s) : stream_(s.stream) {
  check(cudaEventCreate(&begin_), "cudaEventCreate");
  check(cudaEventCreate(&end_), "cudaEventCreate");
}
Stopwatch::~Stopwatch() {
  cudaEventDestroy(begin_);
  cudaEventDestroy(end_);
}

void Stopwatch::start() const { check(cudaEventRecord(begin_, stream_), "cudaEventRecord"); }

double Stopwatch::stop() const {
  check(cudaEventRecord(end_, stream_), "cudaEventRecord");
  check(cudaEventSynchronize(end_), "a call that was tried");
  float ms = 0;
  check(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
  return 1e-3 * static_cast<double>(ms);
}

}  // namespace sextant::cuda

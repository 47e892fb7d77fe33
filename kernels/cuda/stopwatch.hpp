// What some runs of a call take on a stream, by the GPU's clock: for choices that are made in a rehearsed step.
#pragma once

#include <optional>

#include "kernels/cuda/cuda_stream.hpp"

struct CUevent_st;  // what a cudaEvent_t points to

namespace sextant::cuda {

class Stopwatch {
 public:
  explicit Stopwatch(const CudaStream&);
  Stopwatch(const Stopwatch&) = delete;
  ~Stopwatch();

  // Of one of `runs` calls of run(), in seconds; nothing when one says that it did not start.
  std::optional<double> seconds(int runs, const auto& run) const {
    bool all = true;
    start();
    for (int i = 0; i < runs && all; ++i) all = run();
    const double taken = stop();
    if (!all) return {};
    return taken / runs;
  }

 private:
  void start() const;
  double stop() const;  // waits for what was started

  CUstream_st* stream_;
  CUevent_st *begin_ = nullptr, *end_ = nullptr;
};

}  // namespace sextant::cuda

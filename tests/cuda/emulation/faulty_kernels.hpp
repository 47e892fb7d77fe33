// Kernels with one mistake each: negative controls of the emulated GPU.
#pragma once

#include <cuda_runtime_api.h>

namespace sextant::testing {

enum class Mistake {
  none,
  no_barrier,       // between a write to shared memory and another thread's read
  two_barriers,     // half of the block waits at one, half at another
  lane_is_missing,  // from a shuffle of the whole warp
  shared_overrun,   // one element beyond
  memory_overrun,   // likewise
  unaligned,        // 16 bytes at an address that divides by 4
  not_written,      // shared memory is read before it is written
  blocks_share,     // an element is written by every block
  too_much_shared,  // without asking for it
  too_many_rows     // of blocks
};

// out[i] = sum over the block of 1, ..., n; `out` has n elements, n threads, 2 blocks.
void run_faulty(Mistake, float* out, int n, cudaStream_t);

}  // namespace sextant::testing

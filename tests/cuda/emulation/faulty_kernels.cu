#include "tests/cuda/emulation/faulty_kernels.hpp"

namespace sextant::testing {
namespace {

struct alignas(16) Four {
  float v[4];
};

__global__ void sum_kernel(Mistake mistake, float* out, int n) {
  __shared__ float values[64];
  extern __shared__ __align__(16) unsigned char more[];
  const int i = threadIdx.x;
  if (mistake != Mistake::not_written) values[i] = static_cast<float>(i + 1);
  if (mistake == Mistake::shared_overrun) values[i + 1] = 0;
  if (mistake == Mistake::two_barriers && i < n / 2)
    __syncthreads();
  else if (mistake != Mistake::no_barrier)
    __syncthreads();
  float sum = 0;
  for (int k = 0; k < n; ++k) sum += values[k];
  if (mistake != Mistake::lane_is_missing || i % 32 != 3) sum = __shfl_sync(0xffffffffu, sum, 0);
  if (mistake == Mistake::unaligned) sum += reinterpret_cast<const Four*>(out + 1)->v[0];
  more[i] = 1;
  if (mistake == Mistake::blocks_share || blockIdx.x == 0)
    out[i + (mistake == Mistake::memory_overrun)] = sum;
}

}  // namespace

void run_faulty(Mistake mistake, float* out, int n, cudaStream_t stream) {
  const dim3 grid(2, mistake == Mistake::too_many_rows ? 65536 : 1);
  const std::size_t shared = mistake == Mistake::too_much_shared ? 48 * 1024 + 16 : 64;
  sum_kernel<<<grid, n, shared, stream>>>(mistake, out, n);
}

}  // namespace sextant::testing

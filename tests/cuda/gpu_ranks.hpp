// Ranks on GPUs for tests/support/whole_run.hpp.
#pragma once

#include <numeric>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_kernels.hpp"
#include "tests/support/whole_run.hpp"

namespace sextant::testing {

// All on the first one; `reference`: products and attention in own tiles.
inline Ranks ranks_of_a_gpu(bool reference) {
  Ranks ranks{.kernels = cuda_kernels(reference ? KernelSet::reference : KernelSet::fast)};
  ranks.around = [](std::span<std::unique_ptr<Communicator>> world) { share_cuda_device(world, 0); };
  ranks.device = [](int) { return make_cuda_device({.rehearses = false}); };
  return ranks;
}

// Each on its own, under NCCL.
inline Ranks ranks_of_gpus(bool reference) {
  Ranks ranks{.kernels = cuda_kernels(reference ? KernelSet::reference : KernelSet::fast)};
  ranks.connect = [](Communicator& local) {
    std::vector<int> all(static_cast<std::size_t>(local.size()));
    std::iota(all.begin(), all.end(), 0);
    return connect_nccl(local.group(all), local.rank());
  };
  ranks.device = [](int rank) { return make_cuda_device({.ordinal = rank, .rehearses = false}); };
  return ranks;
}

}  // namespace sextant::testing

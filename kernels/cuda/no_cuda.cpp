// Linked instead of everything else in this folder when no CUDA toolkit was found.
#include "kernels/cuda/cuda_kernels.hpp"

namespace sextant {

const KernelTable* cuda_kernels(bool) { return nullptr; }
CudaLibraries cuda_libraries() { return {.missing = "built without CUDA"}; }

}  // namespace sextant

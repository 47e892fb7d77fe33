// Matrix products of a machine without cuBLASLt: own tiles.
#include "kernels/cuda/kernels.hpp"
#include "kernels/cuda/libraries.hpp"

namespace sextant::cuda {

void gemm(const GemmArgs& g) { gemm_tiles(g); }
std::string gemm_library() { return ""; }
std::string gemm_library_missing() { return ""; }

}  // namespace sextant::cuda

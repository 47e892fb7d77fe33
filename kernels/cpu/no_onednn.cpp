// Stands in for gemm_onednn.cpp where oneDNN is absent: the fast product is the reference one.
#include "kernels/cpu/cpu_kernels.hpp"
#include "kernels/cpu/kernels.hpp"

namespace sextant {

const char* cpu_gemm_library() { return "none"; }

namespace cpu {
void gemm_fast(const GemmArgs& g) { gemm_reference(g); }
}  // namespace cpu

}  // namespace sextant

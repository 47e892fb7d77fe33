// Linked instead of everything else in this folder when no CUDA toolkit was found.
#include "kernels/cuda/cuda_kernels.hpp"

namespace sextant {

const KernelTable* cuda_kernels(KernelSet) { return nullptr; }
std::string attention_refusal(const AttentionShape&, const std::string&) { return "built without CUDA"; }
std::string attention_fallback() { return ""; }
std::string attention_second_choice() { return ""; }
void fp8_casts(const GemmArgs&) {}
std::string gemm_fallback() { return ""; }
void lend_cuda_scratch(NativeStream, void*, std::int64_t) {}
CudaLibraries cuda_libraries() { return {.missing = "built without CUDA"}; }

}  // namespace sextant

// Names and versions of the libraries under the GPU's kernels, for the table and for nobody else.
#pragma once

#include <string>

namespace sextant::cuda {

std::string gemm_library();          // gemm_cublaslt.cpp; empty: not found
std::string gemm_library_missing();  // why
std::string attention_library();     // attention_cudnn.cpp or no_cudnn.cpp; empty: own tiles

}  // namespace sextant::cuda

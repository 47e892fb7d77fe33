// The GPU's kernel table; none in a build without CUDA (no_cuda.cpp).
#pragma once

#include <cstdint>
#include <string>

#include "kernels/kernel_table.hpp"

namespace sextant {

// `reference`: own tiles in place of cuBLASLt and cuDNN, to hold those against.
enum class KernelSet : std::uint8_t { fast, reference };

// nullptr when built without CUDA. Kernels run on the stream of their arguments (kernels/cuda/cuda_stream.hpp).
const KernelTable* cuda_kernels(KernelSet = KernelSet::fast);

// The only scratch of this stream's kernels from now on (kernels/cuda/scratch.hpp); outlives their work.
void lend_cuda_scratch(NativeStream, void* data, std::int64_t bytes);

// The libraries under the table, as found at run time.
struct CudaLibraries {
  std::string gemm = {};       // "cuBLASLt 13.1.0"; empty: not found
  std::string attention = {};  // "cuDNN 9.19.0"; empty: own tiles
  std::string missing = {};    // why what is needed cannot be loaded; empty when all is there
};
CudaLibraries cuda_libraries();

// Why attention has run in own tiles since the process began where the table has a library for it, each reason once; empty: it
// has not. Own tiles are many times slower.
std::string attention_fallback();

// Why the attention library has run another plan than the first that it advises, for each pass; empty: it has not.
std::string attention_second_choice();

// The same of GEMMs: how many shapes cuBLASLt has nothing for, and the first of them.
std::string gemm_fallback();

// Why the attention library would not serve this shape, by its first choice, on a GPU of these properties, which it takes as
// JSON and which need not be here; empty when it would. Asks its compiler: seconds.
std::string attention_refusal(const AttentionShape&, const std::string& gpu_properties);

// The casts of a GEMM in fp8 without the GEMM, to time them.
void fp8_casts(const GemmArgs&);

}  // namespace sextant

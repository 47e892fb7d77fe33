// The CPU's two kernel tables. They differ in the matrix product only: `fast` takes oneDNN for fp32 and bf16
// when it was found at configure time; `reference` adds up in fp64 in ascending k, so its bits depend neither
// on tiles, threads nor the machine, and the tests compare layouts with it. fp64 is the reference product in
// both.
#pragma once

#include "kernels/kernel_table.hpp"

namespace sextant {

const KernelTable& cpu_kernels();
const KernelTable& cpu_reference_kernels();

// Whether the fast table has a library under its products, and which ("oneDNN 2.6.3", "none").
const char* cpu_gemm_library();

}  // namespace sextant

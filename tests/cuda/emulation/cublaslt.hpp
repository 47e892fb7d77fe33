// What tests ask of the emulated cuBLASLt.
#pragma once

namespace emulation {

int last_gemm_algorithm();  // 0: the slow one; -1: none yet

}  // namespace emulation

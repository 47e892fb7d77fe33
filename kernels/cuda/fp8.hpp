// Operands of fp8 GEMMs on a GPU: where their codes stand in a stream's scratch, and what makes them. For the GEMMs'
// files and nobody else.
#pragma once

#include <cstdint>

#include "kernels/fp8.hpp"
#include "kernels/kernel_table.hpp"

namespace sextant::cuda {

// One operand: a bf16 matrix, and its codes, [rows, cols] and turned [cols, rows].
// Extents are multiples of 16, rows of the source start at multiples of 16 bytes.
struct Fp8Operand {
  TensorView source;
  Fp8 format = Fp8::e4m3;
  std::uint8_t* codes = nullptr;                   // as the source lies; none: not wanted
  std::uint8_t* turned = nullptr;                  // the same turned
  Fp8Largest largest = {};                         // words: the room's, or the caller's
  bool wanted() const { return codes || turned; }  // or else its codes stand already
};

// From one operand's factor to the next, in floats: cuBLASLt takes factors at whole 256 bytes; four bytes from one another it
// refused them on an H200 (13.1).
inline constexpr int kFp8Factor = 64;

// What both operands of a GEMM share.
struct Fp8Room {
  float down[2 * kFp8Factor] = {};  // the factor of each one's codes, the first of each kFp8Factor
  std::uint32_t largest[2][Fp8Largest::kWords] = {};
};

// Scales and casts both, where wanted; `room` is the GPU's.
void fp8_operands(const Fp8Operand& a, const Fp8Operand& b, Fp8Room* room, NativeStream);

// c (+)= a b^T of codes, a [m, k] and b [n, k], of round_a and round_b. `down`: the two factors, kFp8Factor apart, in
// the GPU's memory.
void gemm_codes(const GemmArgs&, const float* down);        // cuBLASLt, gemm_codes_tiles where it has nothing
void gemm_codes_tiles(const GemmArgs&, const float* down);  // plain tiles, ascending k

}  // namespace sextant::cuda

// Floating-point numbers as checkpoint files store them (F64, F32, F16, BF16) to doubles and back. Every stored value is
// a double exactly, so reading and writing in the same format gives the same bits; narrowing rounds once, to nearest
// even (IEEE 754).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/safetensors.hpp"

namespace sextant {

bool is_floating(StoredType);  // one of the four

// `from` holds to.size() numbers of this format, at any alignment.
void decode_numbers(StoredType, std::span<const std::byte> from, std::span<double> to);

// Beyond the largest number of a format is infinity, as IEEE 754 has it.
void encode_numbers(StoredType, std::span<const double> from, std::span<std::byte> to);

}  // namespace sextant

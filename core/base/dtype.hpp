// The number formats that parameters, gradients and GEMMs are kept in.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace sextant {

enum class Dtype : std::uint8_t { fp8, fp16, bf16, tf32, fp32, fp64 };

inline constexpr std::array<std::string_view, 6> kDtypeNames = {"fp8",  "fp16", "bf16",
                                                                "tf32", "fp32", "fp64"};

constexpr std::string_view name(Dtype d) { return kDtypeNames[static_cast<std::size_t>(d)]; }

// Bytes of one element; tf32 is stored as fp32.
constexpr int size_bytes(Dtype d) {
  constexpr std::array<int, 6> sizes = {1, 2, 2, 4, 4, 8};
  return sizes[static_cast<std::size_t>(d)];
}

constexpr std::optional<Dtype> dtype_from_name(std::string_view s) {
  for (std::size_t i = 0; i < kDtypeNames.size(); ++i)
    if (kDtypeNames[i] == s) return static_cast<Dtype>(i);
  return std::nullopt;
}

}  // namespace sextant

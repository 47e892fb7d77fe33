// What the units of attention share: parts of the keys and values, and their positions. Of kernels/blocks.cpp and
// kernels/qk_norms.cpp alone.
#pragma once

#include "kernels/blocks.hpp"

namespace sextant {

inline bool present(const TensorView& x) { return x.data != nullptr; }

inline void* end_of(const TensorView& x, std::int64_t elements) {
  return static_cast<std::byte*>(x.data) + elements * size_bytes(x.dtype);
}

inline TensorView keys_of(const BlockWork& w, const TensorView& kv) {
  return kv.column_range(0, static_cast<std::int64_t>(w.kv_heads) * w.head_dim);
}
inline TensorView values_of(const BlockWork& w, const TensorView& kv) {
  const std::int64_t columns = static_cast<std::int64_t>(w.kv_heads) * w.head_dim;
  return kv.column_range(columns, columns);
}

enum class Rotation : std::uint8_t { forward, inverse };
// Turns q and k by the angles of their positions, or back; as one where they are columns of one tensor.
void turn(const BlockContext&, const BlockWork&, const TensorView& q, const TensorView& k, Rotation);

}  // namespace sextant

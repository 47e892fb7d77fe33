// How the host's values reach memory that kernels read, and how results come back: directly where the device
// shares the host's memory, by blocking copies where it does not. For between steps, never within one.
#pragma once

#include <cstddef>

#include "kernels/tensor_view.hpp"
#include "runtime/devices/device.hpp"

namespace sextant {

// Converts `from` of the host into `to` of either memory, or back; bf16 rounds to nearest even. Views of one row,
// or without gaps between rows.
void put_values(Device&, const TensorView& to, const TensorView& from);
void get_values(Device&, const TensorView& to, const TensorView& from);
void put_zeros(Device&, const TensorView& to);

// Constant values of the host where kernels can read them: themselves when the device shares the memory, a
// copy otherwise. What is mirrored outlives the mirror.
class Mirror {
 public:
  Mirror() = default;
  Mirror(Device&, const void* values, Bytes);
  void* data() const { return data_; }

 private:
  Allocation memory_;
  void* data_ = nullptr;
};

}  // namespace sextant

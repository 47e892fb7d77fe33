// Why a layout is not possible. An infeasible plan is a value, not an error: it has a reason with numbers.
#pragma once

#include <cstdint>
#include <string>

namespace sextant {

enum class RejectReason : std::uint8_t {
  not_divisible,         // heads, vocabulary, batch, layers or ranks do not divide
  out_of_memory,         // needs more than the device has
  unsupported_by_stack,  // the software stack has no such feature or refuses the combination
  inconsistent,          // fields of the plan exclude each other
};

struct Rejection {
  RejectReason reason = RejectReason::not_divisible;
  std::string text;  // "needs 91.3 of 80.0 GiB (activations of stage 0)"
  double needed = 0, available = 0;
};

}  // namespace sextant

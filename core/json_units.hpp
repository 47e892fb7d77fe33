// The unit that the suffix of a JSON key states, private to the JSON reader and writer.
#pragma once

#include <array>
#include <string_view>

#include "core/error.hpp"

namespace sextant {

struct Unit {
  std::string_view suffix;
  int shift;    // SI value = number * 10^-shift, moved in decimal so that 2.5 us is exactly 2.5e-6 s
  bool binary;  // SI value = number * factor instead, exact for powers of two
  double factor;
};

inline constexpr std::array kUnits = {
    Unit{"_us", 6, false, 0},      Unit{"_ms", 3, false, 0},       Unit{"_s", 0, false, 0},
    Unit{"_GBps", -9, false, 0},   Unit{"_TFLOPS", -12, false, 0}, Unit{"_GiB", 0, true, 0x1p30},
    Unit{"_MiB", 0, true, 0x1p20}, Unit{"_bytes", 0, true, 1},
};

// The unit of a path: the last of its keys that has one ("device.peak_TFLOPS.bf16" is in TFLOPS).
inline const Unit& unit_of(std::string_view path) {
  while (true) {
    std::string_view key = path.substr(path.rfind('.') + 1);
    key = key.substr(0, key.find('['));
    for (const Unit& unit : kUnits)
      if (key.ends_with(unit.suffix)) return unit;
    SEXTANT_CHECK(path.find('.') != path.npos, "the key of a quantity has no unit");
    path = path.substr(0, path.rfind('.'));
  }
}

}  // namespace sextant

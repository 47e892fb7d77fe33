// The unit that the suffix of a JSON key states: one table for what reads and writes quantities, for messages, and for who
// checks that presets state the same.
#pragma once

#include <array>
#include <string_view>

#include "core/base/error.hpp"

namespace sextant {

struct Unit {
  std::string_view suffix;
  std::string_view name;  // as texts have it
  int shift;    // SI value = number * 10^-shift, moved in decimal so that 2.5 us is exactly 2.5e-6 s
  bool binary;  // SI value = number * factor instead, exact for powers of two
  double factor;
  bool quantity =
      true;  // false: the number stands as it is, no quantity of core/base/units.hpp is read from it
};

// A suffix that ends with another one comes before it.
inline constexpr std::array kUnits = {
    Unit{"_us", "us", 6, false, 0},
    Unit{"_ms", "ms", 3, false, 0},
    Unit{"_per_s", "1/s", 0, false, 0, false},
    Unit{"_s", "s", 0, false, 0},
    Unit{"_GBps", "GB/s", -9, false, 0},
    Unit{"_TFLOPS", "TFLOP/s", -12, false, 0},
    Unit{"_GiB", "GiB", 0, true, 0x1p30},
    Unit{"_MiB", "MiB", 0, true, 0x1p20},
    Unit{"_bytes", "bytes", 0, true, 1},
    Unit{"_GB", "GB", 0, false, 0, false},
    Unit{"_usd_per_hour", "USD", 0, false, 0, false},
    Unit{"_hours", "h", 0, false, 0, false},
    Unit{"_W", "W", 0, false, 0, false},
};

// Of one key; nothing where its suffix is none of these.
inline const Unit* stated_unit(std::string_view key) {
  for (const Unit& unit : kUnits)
    if (key.ends_with(unit.suffix)) return &unit;
  return nullptr;
}

// Of a quantity's path: the last of its keys that has one ("device.peak_TFLOPS.bf16" is in TFLOPS).
inline const Unit& unit_of(std::string_view path) {
  while (true) {
    std::string_view key = path.substr(path.rfind('.') + 1);
    key = key.substr(0, key.find('['));
    if (const Unit* unit = stated_unit(key); unit && unit->quantity) return *unit;
    SEXTANT_CHECK(path.find('.') != path.npos, "the key of a quantity has no unit");
    path = path.substr(0, path.rfind('.'));
  }
}

}  // namespace sextant

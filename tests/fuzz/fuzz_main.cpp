// A libFuzzer program of one target: fuzz_plan_key corpus/plan_key -max_total_time=60
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/targets.hpp"

namespace sextant::fuzz {
void planted_fault(std::string_view text);  // of planted_fault.cpp
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sextant::fuzz::SEXTANT_FUZZ_TARGET({reinterpret_cast<const char*>(data), size});
  return 0;
}

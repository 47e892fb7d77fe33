// A parser with a fault, which a fuzzer has to find: otherwise it finds nothing (tests/fuzz/fuzz.py).
#include <string_view>

#include "core/plan/parallel_plan.hpp"
#include "tests/fuzz/checks.hpp"

namespace sextant::fuzz {

void planted_fault(std::string_view text) {
  ParallelPlan plan;
  if (!accepts([&] { plan = parse_plan_key(text); })) return;
  SEXTANT_CHECK(plan.world() < 1'000, "planted");
}

}  // namespace sextant::fuzz

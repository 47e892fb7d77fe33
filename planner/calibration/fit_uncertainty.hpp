// How wide are the intervals of each class of uncertainty? As wide as most of the published runs of the class were off, each source by a
// fit that did not see it; steps by the constants that predictions use where these are further off: a class of one source, whose
// constants serve others too, can be. Written into the presets by `sextant calibrate --refit --write-presets`, and held against them by calibration_test.
//
// Ignores classes of which too few runs are known: their widths stay what they are.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "planner/validation/validate.hpp"

namespace sextant {

struct FittedWidth {
  const char* of = "step";  // or "memory"
  UncertaintyClass uncertainty = UncertaintyClass::none;
  int runs = 0;
  double half_width = 0;  // relative, of two digits
  std::string source;     // the command and the runs that it comes from
};

// Of rows of quality a and b, with their predictions in the same order: of fits that did not see their source, and of the presets
// (none: the former alone).
std::vector<FittedWidth> fit_widths(std::span<const RunRow>, std::span<const RunPrediction> unseen,
                                    std::span<const RunPrediction> presets, const UncertaintyRules&);

}  // namespace sextant

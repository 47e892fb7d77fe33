// What if one thing were different? A layout's neighbours, each with one degree or setting changed, simulated: which are slower,
// which do not fit, and why.
#pragma once

#include "planner/lowering/job.hpp"
#include "planner/simulation/predict.hpp"
#include "tools/report/report.hpp"

namespace sextant {

inline constexpr const char* kNeighboursTitle = "One change away";

ReportSection neighbours_section(const Job&, const ParallelPlan&, const Prediction&);

}  // namespace sextant

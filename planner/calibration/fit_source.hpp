// Where a fitted constant of the presets comes from: the command that gives it and the rows it was fitted to. Written
// into the presets by `sextant calibrate --refit --write-presets`, and held against them by calibration_test.
#pragma once

#include <span>
#include <string>

#include "planner/calibration/calibrate_memory.hpp"
#include "planner/calibration/calibrated_constants.hpp"

namespace sextant {

// `runs`: all of the fit; named are the sources of those whose time depends on the constant, with their number of rows.
std::string fit_source(const FreeConstant&, std::span<const MeasuredRun> runs);
std::string fit_source(const MemoryPlan&, const MemoryFit&);

// Do the rows tell the fit from the presets, which hold an earlier one? Where not, the presets stay.
bool finds_better(const MemoryFit&);

}  // namespace sextant

// Which runs are worth measuring first? Those that leave the least uncertainty about all the others: every candidate is as uncertain
// as the constants that decide its step and as layouts are beyond them (the priors of calibrate), and one that is measured
// takes from all others what they share with it. Nothing measured is looked at, only what was measured already is known to be.
// Greedy: the first is the best one, the second the best beside it, and so on. Source: active learning by the expected
// variance of all predictions (Cohn, Ghahramani and Jordan 1996), with the mean standard deviation in its place, which is what
// a mean absolute error is made of.
//
// Ignores what a run costs to measure, and whether it fits the memory.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "planner/calibration/calibrated_constants.hpp"

namespace sextant {

struct Suggestion {
  std::size_t run = 0;     // index into the candidates
  double uncertainty = 0;  // relative standard deviation, mean over candidates, once this one is measured too
};
struct Suggestions {
  double uncertainty = 0;  // before
  std::vector<Suggestion> runs;
};

// `known`: candidates that were measured already, by index. Steps of the candidates are not read. `base` as in calibrate().
Suggestions suggest_runs(std::span<const MeasuredRun> candidates, std::span<const std::size_t> known,
                         std::size_t count, const std::filesystem::path& preset_dir, const CalibrationRules&,
                         std::span<const FreeConstant>, std::vector<Setting> base = {});

}  // namespace sextant

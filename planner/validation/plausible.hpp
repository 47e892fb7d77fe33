// Can these measurements be true? No run is faster than its devices' peak or fuller than their memory; runs that are all
// far off in one direction were written in another unit; two runs of one layout cannot take twice as long as each other.
// Used before a fit and before a score, so that both refuse the same rows in the same words.
//
// Ignores what is merely unlikely: a slow run may be true.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/error.hpp"
#include "planner/validation/measured_run.hpp"

namespace sextant {

// What is measured of a run that no run can be; empty where all of it may be true. `at`: "runs.csv:3".
std::vector<Problem> impossible(const ResolvedRun&, const std::string& at, const std::string& id,
                                std::optional<Seconds> step, std::optional<double> peak_memory_GiB);

struct TimedRun {
  std::string at, id;
  double measured_s = 0, predicted_s = 0;
};
// Every run is off by a factor of 20 and more, all in one direction.
std::optional<Problem> in_another_unit(std::span<const TimedRun>);

// Two runs, by index, that are one and the same to every model (layout, model, batch, cluster, stack), with times further
// apart than `noise` (relative, of one run) puts 19 of 20 pairs. Of more than two the fastest and
// the slowest.
struct InconsistentPair {
  std::size_t fast = 0, slow = 0;
};
std::vector<InconsistentPair> inconsistent_pairs(std::span<const MeasuredRun>, double noise);

// Same run, same time, same name: a row that was given twice. Indices of the later ones.
std::vector<std::size_t> given_twice(std::span<const MeasuredRun>);

}  // namespace sextant

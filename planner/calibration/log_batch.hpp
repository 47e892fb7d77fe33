// Which global batches does a log mean that prints its batch with three digits, in sequences or in tokens (nanotron)? Used by
// planner/calibration/log_to_run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/calibration/run_log.hpp"

namespace sextant {

// Whether the log prints a batch of so many sequences as it does.
bool is_printed_so(const RunLog&, int seq_len, std::int64_t batch);

// The multiples of `at_once` (micro_batch * dp) that it prints so, among which is the nearest to `printed` if any; upwards from there last.
std::vector<std::int64_t> multiples_printed_so(const RunLog&, int seq_len, std::int64_t printed,
                                               std::int64_t at_once);

// "about 1024 sequences of 4096 (4.19 million tokens)".
std::string batch_as_printed(const RunLog&, int seq_len, std::int64_t batch);

}  // namespace sextant

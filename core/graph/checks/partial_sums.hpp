// Activations: partial sums of tensor and context parallelism are added up before anyone uses them, and every op reads
// what its own micro-batch wrote. A part of check_coverage.
#pragma once

#include "core/graph/checks/problem_list.hpp"

namespace sextant::checks {

void check_partial_sums(const ExecutionGraph&, ProblemList&);

}  // namespace sextant::checks

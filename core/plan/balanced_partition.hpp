// How does DeepSpeed cut a list of modules into pipeline stages of nearly equal weight? v0.6.5, runtime/utils.py 607-690,
// partition_balanced: the smallest bottleneck by bisection, and the parts that a probe of running sums makes of it. Part i is what
// lies from the i-th number of the answer to the next; there are parts + 1 numbers. Needs more weights than parts, and a sum above 0.
#pragma once

#include <vector>

namespace sextant {

std::vector<int> balanced_partition(const std::vector<double>& weights, int parts);

}  // namespace sextant

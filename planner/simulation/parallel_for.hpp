// The same for every index of a range, on all threads.
#pragma once

#include <cstddef>

#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>

namespace sextant {

// Indices are handed out one by one: some take a hundred times as long as others.
template <class F>
void parallel_for(std::size_t n, const F& f) {
  tbb::parallel_for(
      tbb::blocked_range<std::size_t>(0, n, 1),
      [&](const auto& range) {
        for (std::size_t i = range.begin(); i < range.end(); ++i) f(i);
      },
      tbb::simple_partitioner{});
}

}  // namespace sextant

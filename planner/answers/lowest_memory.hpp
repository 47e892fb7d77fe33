// Which layout of a space needs least memory? Best-first by floors of memory: only what may be smaller than the lowest-memory
// found is looked at. Time plays no part; of fields that cannot make a layout smaller one value stands for all.
#pragma once

#include <optional>
#include <string>

#include "planner/search/search.hpp"

namespace sextant {

struct LowestMemoryLayout {
  std::optional<ParallelPlan> plan;  // nothing: no layout is possible within the limit, if `exact`
  Bytes peak;                        // its
  Bytes floor;                       // no layout needs less; `peak` when exact
  SearchSpace equals;                // a part of the space that has all layouts of this peak, among others
  bool exact = true;
  std::string stopped;  // why, when not exact
};

// Of the options: memory_limit (nothing above it is looked for), budget_s and cancel.
LowestMemoryLayout lowest_memory_layout(const Job&, const SearchSpace&, const SearchOptions& = {});

// Some layout within the limit (the device's, when none is stated), or the proof that there is none.
LowestMemoryLayout any_layout(const Job&, const SearchSpace&, const SearchOptions& = {});

}  // namespace sextant

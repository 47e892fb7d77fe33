#include "core/timeline/timeline.hpp"

#include <algorithm>

namespace sextant {

Seconds Timeline::makespan() const {
  double end = 0;
  for (const Span& span : spans) end = std::max(end, span.end);
  return Seconds(end);
}

}  // namespace sextant

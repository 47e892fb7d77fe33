// When each operation ran, predicted or measured: spans keyed by the graph's op ids.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/units.hpp"
#include "core/graph/execution_graph.hpp"

namespace sextant {

struct Span {
  double start = 0, end = 0;  // seconds since the step began
};

enum class TimelineKind : std::uint8_t { predicted, measured };

// Spans of one representative rank per stage: spans[op]. With every rank simulated or measured, `rank_spans`
// holds spans[op] of each recorded rank as well.
struct Timeline {
  TimelineKind kind = TimelineKind::predicted;
  std::uint64_t graph_hash = 0;
  std::string device, build;
  std::vector<Span> spans;
  struct RankSpans {
    int rank = 0;
    std::vector<Span> spans;  // only ops of the rank's stage are meaningful
  };
  std::vector<RankSpans> ranks;
  Seconds makespan() const;
};

// Receives measured spans as the executor runs; one of the four abstract classes of the project.
class SpanRecorder {
 public:
  virtual ~SpanRecorder() = default;
  virtual void record(int rank, OpId op, Span span) = 0;
};

}  // namespace sextant

// What a GPU did for each operation, from two kinds of records that a tracer delivers in any order: which call to the
// driver belongs to which tag, and when the kernel, copy or fill of a call ran. A tag stands for an operation of a
// rank's step. Knows nothing of who delivers the records.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "core/graph/execution_graph.hpp"
#include "core/timeline/timeline.hpp"

namespace sextant {

// A call made while `tag` was in force, by the number that the tracer has given it.
struct TaggedCall {
  std::uint32_t call = 0;
  std::uint64_t tag = 0;
};
// A kernel, copy or fill on a GPU and the call that enqueued it. Without times, as tracers have it when they ran out of
// room, it is counted and otherwise ignored.
struct GpuActivity {
  std::uint32_t call = 0;
  std::uint64_t start_ns = 0, end_ns = 0;
};

// An operation of a step of a rank as a tag, ordered by rank, then step, then operation.
constexpr std::uint64_t operation_tag(int rank, std::uint32_t step, OpId op) {
  return static_cast<std::uint64_t>(rank & 0xfff) << 52 | static_cast<std::uint64_t>(step & 0xfffff) << 32 |
         op;
}
constexpr OpId operation_of(std::uint64_t tag) { return static_cast<OpId>(tag); }

struct TaggedTime {
  std::uint64_t first_ns = 0, last_ns = 0;  // from the first activity's start to the last one's end
  std::uint64_t busy_ns = 0;                // of it: with at least one activity under way
  int activities = 0;
};

class ActivityJoin {
 public:
  void add(const TaggedCall&);
  void add(const GpuActivity&);

  // What has run for the tags first..last, which are then forgotten, as is what was still awaited for them.
  std::map<std::uint64_t, TaggedTime> take(std::uint64_t first, std::uint64_t last);

  std::int64_t untimed() const { return untimed_; }  // activities without times
  // Activities that belonged to no tag, which was certain once other tags had been taken kPatience times since.
  std::int64_t untagged() const { return untagged_; }
  static constexpr int kPatience = 64;

 private:
  struct Waiting {
    GpuActivity activity;
    int takes = 0;
  };
  bool assign(const GpuActivity&);
  std::unordered_map<std::uint32_t, std::uint64_t> tag_of_call_;
  std::map<std::uint64_t, std::vector<GpuActivity>> by_tag_;
  std::vector<Waiting> waiting_;  // for their call's tag
  std::int64_t untimed_ = 0, untagged_ = 0;
};

// Puts what was traced in place of spans, both in seconds from `begin_ns`. Returns how many ops it has replaced.
int retime(std::vector<Span>& by_op, const std::map<std::uint64_t, TaggedTime>& traced,
           std::uint64_t begin_ns);

}  // namespace sextant

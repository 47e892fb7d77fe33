// Is every gradient of a stage filled by every micro-batch, reduced over all that hold it, normed, and handed to the host
// where that updates? A state machine per bucket: what must happen next, and to which bytes.
#pragma once

#include <set>
#include <utility>

#include "core/graph/checks/stage_facts.hpp"

namespace sextant::checks {

// What happens to a bucket's gradients in a step, in this order.
enum class Event : std::uint8_t { clear, fill, join, tied, sp, reduce, replica, accumulate, norm, to_host };

class GradientCheck {
 public:
  GradientCheck(const StageFacts&, ProblemList&);
  // A block, the head or another one, writes the gradient.
  void fill(OpId, std::size_t parameter, bool head, const Access& write, bool adds);
  void happens(OpId, std::size_t bucket, Event);  // anything else
  void norm_reduce(OpId);
  void finish();

 private:
  struct State {
    std::vector<Event> events;     // expected
    std::size_t next = 0;          // of events
    std::size_t round = 0;         // accumulations so far
    std::vector<int> missing;      // writes each parameter still needs before `fill` is over
    BufferId gradient = kUnknown;  // where the gradients of this round are
    OpId cleared = 0;
    std::set<std::pair<BufferId, std::int64_t>> begun;  // gradients that have been written in this step
    bool awaits(Event e) const { return next < events.size() && events[next] == e; }
  };

  void expect_events(std::size_t b);
  void begin_fill(std::size_t b);
  std::vector<Interval> gaps(std::size_t b) const;
  std::vector<Access> accesses(std::size_t b, Event) const;

  const StageFacts& facts_;
  ProblemList& problems_;
  int microbatches_;
  std::vector<State> buckets_;
  int norm_reduces_ = 0;
};

}  // namespace sextant::checks

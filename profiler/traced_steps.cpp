#include "profiler/traced_steps.hpp"

#include <limits>

namespace sextant {

TracedSteps::TracedSteps(int ranks) : ranks_(static_cast<std::size_t>(ranks)) {
  timer_.begin_step = [this](int rank) {
    Rank& r = ranks_.at(static_cast<std::size_t>(rank));
    ++r.step;
    r.begin_ns = trace_.now_ns();
  };
  timer_.begin_launch = [this](int rank, OpId op) {
    trace_.begin(operation_tag(rank, ranks_[static_cast<std::size_t>(rank)].step, op));
  };
  timer_.end_launch = [this] { trace_.end(); };
  timer_.end_step = [this](int rank, std::vector<Span>& by_op) {
    const Rank& r = ranks_[static_cast<std::size_t>(rank)];
    // With those of steps that nobody has asked for, as a rehearsed one, which are forgotten.
    auto traced =
        trace_.take(operation_tag(rank, 0, 0), operation_tag(rank, r.step, std::numeric_limits<OpId>::max()));
    traced.erase(traced.begin(), traced.lower_bound(operation_tag(rank, r.step, 0)));
    traced_ += retime(by_op, traced, r.begin_ns);
  };
}

TracedSteps::~TracedSteps() = default;

}  // namespace sextant

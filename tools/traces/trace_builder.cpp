#include "tools/traces/trace_builder.hpp"

#include <algorithm>
#include <tuple>

#include "core/base/error.hpp"

namespace sextant {
namespace {

// In order, numbered where they have no number, and none that begins inside another.
std::vector<StepMark> in_order(std::vector<StepMark> marks) {
  std::ranges::stable_sort(marks, {}, [](const StepMark& m) { return std::tuple(m.begin_ns, -m.end_ns); });
  std::vector<StepMark> out;
  for (StepMark mark : marks) {
    if (!out.empty() && mark.begin_ns < out.back().end_ns) {
      if (mark.end_ns <= out.back().end_ns) continue;
      mark.begin_ns = out.back().end_ns;  // marks of a profiler may overlap by a rounding
    }
    if (mark.number < 0) mark.number = out.empty() ? 0 : out.back().number + 1;
    out.push_back(mark);
  }
  return out;
}

}  // namespace

std::uint32_t TraceBuilder::name(const std::string& name) {
  const auto [found, is_new] = ids_.try_emplace(name, static_cast<std::uint32_t>(trace_.names.size()));
  if (is_new) {
    trace_.names.push_back(name);
    classes_.push_back(rules_.class_of(name));
  }
  return found->second;
}

std::uint32_t TraceBuilder::group(const ProcessGroup& group) {
  const auto next = static_cast<std::uint32_t>(trace_.groups.size());
  const auto [found, is_new] = groups_.try_emplace({group.name, group.description}, next);
  if (is_new) trace_.groups.push_back(group);
  ProcessGroup& known = trace_.groups[found->second];
  if (known.size == 0) known.size = group.size;
  if (known.ranks.empty()) known.ranks = group.ranks;
  return found->second;
}

void TraceBuilder::check(std::int64_t at_ns) const {
  constexpr std::int64_t kYear = 31'556'952'000'000'000, kMost = 100 * kYear;
  if (at_ns < -kMost || at_ns > kMost)
    throw ConfigError(Problem{trace_.file, "",
                              "a time that is more than a hundred years from the clock's origin",
                              "times of one clock", "is the file damaged? Profile again"});
}

void TraceBuilder::launched(std::int64_t correlation, std::int64_t at_ns) {
  check(at_ns);
  launches_.emplace(correlation, at_ns);
}

void TraceBuilder::add(const DeviceActivity& activity, std::int64_t correlation) {
  check(activity.begin_ns);
  check(activity.end_ns);
  if (activity.end_ns < activity.begin_ns) return;
  trace_.activities.push_back(activity);
  correlations_.push_back(correlation);
}

void TraceBuilder::range(const std::string& name, std::int64_t begin_ns, std::int64_t end_ns) {
  check(begin_ns);
  check(end_ns);
  const KernelNames::StepWord step = rules_.step_of(name);
  if (step.word >= 0) marks_[step.word].push_back({step.number, begin_ns, end_ns});
}

RankTrace TraceBuilder::finish() {
  for (std::size_t i = 0; i < correlations_.size(); ++i) {
    const auto found = correlations_[i] < 0 ? launches_.end() : launches_.find(correlations_[i]);
    if (found == launches_.end()) continue;
    trace_.activities[i].launch_ns = found->second;
    trace_.has_launches = true;
  }
  std::ranges::stable_sort(trace_.activities, {}, &DeviceActivity::begin_ns);
  if (!marks_.empty()) trace_.marks = in_order(marks_.begin()->second);
  return std::move(trace_);
}

}  // namespace sextant

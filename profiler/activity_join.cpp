#include "profiler/activity_join.hpp"

#include <algorithm>

namespace sextant {
namespace {

TaggedTime time_of(std::vector<GpuActivity>& activities) {
  std::ranges::sort(activities, {}, &GpuActivity::start_ns);
  TaggedTime t;
  t.activities = static_cast<int>(activities.size());
  t.first_ns = activities.front().start_ns;
  t.last_ns = t.first_ns;
  for (const GpuActivity& a : activities) {  // the union of the intervals
    const std::uint64_t from = std::max(a.start_ns, t.last_ns);
    if (a.end_ns > from) t.busy_ns += a.end_ns - from;
    t.last_ns = std::max(t.last_ns, a.end_ns);
  }
  return t;
}

// Signed: a span may begin before its step's mark when clocks disagree by a little.
double seconds_between(std::uint64_t from_ns, std::uint64_t to_ns) {
  return 1e-9 * static_cast<double>(static_cast<std::int64_t>(to_ns - from_ns));
}

}  // namespace

void ActivityJoin::add(const TaggedCall& call) { tag_of_call_[call.call] = call.tag; }

void ActivityJoin::add(const GpuActivity& activity) {
  if (activity.start_ns == 0 || activity.end_ns < activity.start_ns)
    ++untimed_;
  else if (!assign(activity))
    waiting_.push_back({activity});
}

bool ActivityJoin::assign(const GpuActivity& activity) {
  const auto found = tag_of_call_.find(activity.call);
  if (found == tag_of_call_.end()) return false;
  by_tag_[found->second].push_back(activity);
  return true;
}

std::map<std::uint64_t, TaggedTime> ActivityJoin::take(std::uint64_t first, std::uint64_t last) {
  std::erase_if(waiting_, [&](Waiting& w) {
    if (assign(w.activity)) return true;
    if (++w.takes <= kPatience) return false;
    ++untagged_;
    return true;
  });
  std::map<std::uint64_t, TaggedTime> taken;
  const auto begin = by_tag_.lower_bound(first), end = by_tag_.upper_bound(last);
  for (auto it = begin; it != end; ++it) taken.emplace_hint(taken.end(), it->first, time_of(it->second));
  by_tag_.erase(begin, end);
  std::erase_if(tag_of_call_,
                [&](const auto& entry) { return entry.second >= first && entry.second <= last; });
  return taken;
}

int retime(std::vector<Span>& by_op, const std::map<std::uint64_t, TaggedTime>& traced,
           std::uint64_t begin_ns) {
  int replaced = 0;
  for (const auto& [tag, time] : traced) {
    const OpId op = operation_of(tag);
    if (op >= by_op.size()) continue;
    by_op[op] = {seconds_between(begin_ns, time.first_ns), seconds_between(begin_ns, time.last_ns)};
    ++replaced;
  }
  return replaced;
}

}  // namespace sextant

#include "tools/traces/trace_steps.hpp"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "core/base/error.hpp"

namespace sextant {
namespace {

struct MarkedActivities {
  std::int64_t first_ns = std::numeric_limits<std::int64_t>::max(), last_ns = 0;
};

// What each marked step launched; of activities whose launch is not known, what began in it.
std::vector<MarkedActivities> by_mark(const RankTrace& trace) {
  std::vector<MarkedActivities> out(trace.marks.size());
  for (const DeviceActivity& a : trace.activities) {
    const std::int64_t at = a.launch_ns >= 0 ? a.launch_ns : a.begin_ns;
    auto mark = std::ranges::upper_bound(trace.marks, at, {}, &StepMark::begin_ns);
    if (mark == trace.marks.begin()) continue;
    --mark;
    if (at >= mark->end_ns) continue;
    MarkedActivities& m = out[static_cast<std::size_t>(mark - trace.marks.begin())];
    m.first_ns = std::min(m.first_ns, a.begin_ns);
    m.last_ns = std::max(m.last_ns, a.end_ns);
  }
  return out;
}

std::vector<StepWindow> marked_windows(const RankTrace& trace) {
  const std::vector<MarkedActivities> launched = by_mark(trace);
  std::vector<StepWindow> out;
  for (std::size_t i = 0; i < launched.size(); ++i) {
    if (launched[i].last_ns == 0) continue;
    const StepMark& mark = trace.marks[i];
    const std::int64_t length = mark.end_ns - mark.begin_ns;
    std::int64_t end = std::max(launched[i].last_ns, launched[i].first_ns + length);
    if (i + 1 < launched.size() && launched[i + 1].last_ns > 0 &&
        trace.marks[i + 1].begin_ns - mark.end_ns < length / 10)
      end = launched[i + 1].first_ns;
    const std::int64_t begin =
        out.empty() ? launched[i].first_ns : std::max(launched[i].first_ns, out.back().end_ns);
    if (end > begin) out.push_back({mark.number, begin, end});
  }
  return out;
}

// An optimizer's kernels between two products belong to one step.
std::vector<StepWindow> windows_between_optimizers(const RankTrace& trace) {
  std::vector<std::int64_t> ends;
  bool open = false;
  for (const DeviceActivity& a : trace.activities) {
    if (a.kind == KernelClass::optimizer) {
      if (!open) ends.push_back(a.end_ns);
      ends.back() = std::max(ends.back(), a.end_ns);
      open = true;
    } else if (a.kind == KernelClass::gemm || a.kind == KernelClass::attention) {
      open = false;
    }
  }
  std::vector<StepWindow> out;
  for (std::size_t i = 1; i < ends.size(); ++i)
    if (ends[i] > ends[i - 1]) out.push_back({static_cast<std::int64_t>(i), ends[i - 1], ends[i]});
  return out;
}

}  // namespace

StepWindow whole_window(const RankTrace& trace) {
  StepWindow out{0, trace.activities.front().begin_ns, 0};
  for (const DeviceActivity& a : trace.activities) out.end_ns = std::max(out.end_ns, a.end_ns);
  return out;
}

std::vector<StepWindow> step_windows(const RankTrace& trace, std::vector<std::string>& remarks) {
  if (!trace.marks.empty()) {
    std::vector<StepWindow> marked = marked_windows(trace);
    if (marked.empty())
      throw ConfigError(Problem{trace.file, fmt::format("step {}", trace.marks.front().number),
                                "no kernel that it launched", "steps with kernels",
                                "were host and device recorded at different times?"});
    return marked;
  }
  if (std::vector<StepWindow> found = windows_between_optimizers(trace); !found.empty()) {
    remarks.push_back(
        fmt::format("{}: no step is marked; {} taken from optimizer to optimizer", trace.file,
                    found.size() == 1 ? "one step was" : fmt::format("{} steps were", found.size())));
    return found;
  }
  remarks.push_back(fmt::format(
      "{}: no step is marked, and no two optimizer phases delimit one: the whole trace is taken as one step "
      "(torch.profiler marks them with prof.step(), Nsight Systems by an NVTX range called \"step\")",
      trace.file));
  return {whole_window(trace)};
}

}  // namespace sextant

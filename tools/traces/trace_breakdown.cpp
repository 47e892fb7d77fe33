#include "tools/traces/trace_breakdown.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace sextant {
namespace {

// What can run at an instant: a class of compute, a kind of collective moving or waiting, a kind of copy.
struct Lane {
  enum class What : std::uint8_t { compute, moving, waiting, host_copy, device_copy } what = What::compute;
  std::size_t place = 0;  // of the class, of the collective
  auto operator<=>(const Lane&) const = default;
};

struct Edge {
  std::int64_t at = 0;
  std::size_t lane = 0;
  int step = 0;  // +1: begins, -1: ends
  std::int64_t launch_ns = -1;
};

class Sweep {
 public:
  Sweep(const RankTrace& trace, const StepWindow& window) : trace_(trace), window_(window) {
    out_.step_s = window.seconds();
    for (const DeviceActivity& a : trace.activities) {
      if (a.begin_ns >= window.end_ns) {
        if (next_launch_ns_ == kNone) next_launch_ns_ = a.launch_ns;
        break;
      }
      if (a.end_ns > window.begin_ns) add(a);
    }
  }

  StepTime run() {
    // Ends before begins, so that what follows at once leaves no gap and no overlap.
    std::ranges::sort(edges_, {}, [](const Edge& e) { return std::pair(e.at, e.step); });
    running_.assign(lanes_.size(), 0);
    std::int64_t clock = window_.begin_ns;
    for (const Edge& edge : edges_) {
      pass(clock, edge.at, edge.launch_ns);
      clock = edge.at;
      running_[edge.lane] += edge.step;
      active_ += edge.step;
      if (lanes_[edge.lane].what == Lane::What::compute) computing_ += edge.step;
      if (is_collective(lanes_[edge.lane])) communicating_ += edge.step;
    }
    pass(clock, window_.end_ns, next_launch_ns_);
    return std::move(out_);
  }

 private:
  static constexpr std::int64_t kNone = -2;
  static bool is_collective(const Lane& l) {
    return l.what == Lane::What::moving || l.what == Lane::What::waiting;
  }
  std::size_t lane(Lane::What what, std::size_t place) {
    const auto [found, is_new] = places_.try_emplace({what, place}, lanes_.size());
    if (is_new) lanes_.push_back({what, place});
    return found->second;
  }
  void add_span(std::size_t lane, std::int64_t begin, std::int64_t end, std::int64_t launch) {
    begin = std::max(begin, window_.begin_ns);
    end = std::min(end, window_.end_ns);
    if (end <= begin) return;
    edges_.push_back({begin, lane, 1, launch});
    edges_.push_back({end, lane, -1, -1});
  }
  void add(const DeviceActivity& a) {
    if (computes(a.kind))
      return add_span(lane(Lane::What::compute, static_cast<std::size_t>(a.kind)), a.begin_ns, a.end_ns,
                      a.launch_ns);
    if (a.kind == KernelClass::host_copy)
      return add_span(lane(Lane::What::host_copy, 0), a.begin_ns, a.end_ns, a.launch_ns);
    if (a.kind == KernelClass::device_copy)
      return add_span(lane(Lane::What::device_copy, 0), a.begin_ns, a.end_ns, a.launch_ns);
    const auto [found, is_new] = collectives_.try_emplace({a.group, a.collective}, out_.collectives.size());
    if (is_new) out_.collectives.push_back({.group = a.group, .collective = a.collective});
    if (a.begin_ns >= window_.begin_ns) ++out_.collectives[found->second].count;
    const std::int64_t moves = std::min(a.end_ns, a.begin_ns + a.wait_ns);
    if (moves > a.begin_ns)
      add_span(lane(Lane::What::waiting, found->second), a.begin_ns, moves, a.launch_ns);
    add_span(lane(Lane::What::moving, found->second), moves, a.end_ns, a.launch_ns);
  }

  // Nothing changes between two edges. `launch_ns`: of what begins at the second.
  void pass(std::int64_t begin, std::int64_t end, std::int64_t launch_ns) {
    if (end <= begin) return;
    const double seconds = 1e-9 * static_cast<double>(end - begin);
    if (active_ == 0) {
      const bool host_was_late = trace_.has_launches && (launch_ns > begin || launch_ns == kNone);
      (host_was_late ? out_.host_idle_s : out_.wait_idle_s) += seconds;
      return;
    }
    if (communicating_ > 0) out_.communication_s += seconds;
    std::size_t copies = 0;
    for (std::size_t l = 0; l < lanes_.size(); ++l) {
      if (running_[l] == 0) continue;
      if (lanes_[l].what == Lane::What::moving) out_.collectives[lanes_[l].place].total_s += seconds;
      copies += lanes_[l].what == Lane::What::host_copy || lanes_[l].what == Lane::What::device_copy;
    }
    for (std::size_t l = 0; l < lanes_.size(); ++l)
      if (running_[l] > 0) share(lanes_[l], seconds, running_[l], copies);
  }
  // A lane's part of an instant: compute before collectives, collectives before copies.
  void share(const Lane& lane, double seconds, int running, std::size_t copies) {
    if (computing_ > 0) {
      if (lane.what == Lane::What::compute) out_.compute_s[lane.place] += seconds * running / computing_;
    } else if (communicating_ > 0) {
      if (!is_collective(lane)) return;
      CollectiveTime& c = out_.collectives[lane.place];
      (lane.what == Lane::What::moving ? c.exposed_s : c.exposed_wait_s) +=
          seconds * running / communicating_;
    } else {
      (lane.what == Lane::What::host_copy ? out_.host_copy_s : out_.device_copy_s) +=
          seconds / static_cast<double>(copies);
    }
  }

  const RankTrace& trace_;
  const StepWindow& window_;
  StepTime out_;
  std::vector<Lane> lanes_;
  std::map<Lane, std::size_t> places_;
  std::map<std::pair<std::uint32_t, CollectiveName>, std::size_t> collectives_;
  std::vector<Edge> edges_;
  std::vector<int> running_;
  int active_ = 0, computing_ = 0, communicating_ = 0;
  std::int64_t next_launch_ns_ = kNone;
};

}  // namespace

double StepTime::computing_s() const { return std::accumulate(compute_s.begin(), compute_s.end(), 0.0); }

double StepTime::exposed_s() const {
  double sum = 0;
  for (const CollectiveTime& c : collectives) sum += c.exposed_s + c.exposed_wait_s;
  return sum;
}

double StepTime::waiting_s() const {
  double sum = 0;
  for (const CollectiveTime& c : collectives) sum += c.exposed_wait_s;
  return sum;
}

StepTime step_time(const RankTrace& trace, const StepWindow& window) { return Sweep(trace, window).run(); }

}  // namespace sextant

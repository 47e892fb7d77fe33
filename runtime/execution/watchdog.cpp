#include "runtime/execution/watchdog.hpp"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "core/base/error.hpp"

namespace sextant {

namespace {

std::string_view doing(Watchdog::Between what) {
  switch (what) {
    case Watchdog::Between::reading_tokens:
      return "reading the tokens of the step";
    case Watchdog::Between::meeting:
      return "meeting the other ranks between steps";
    case Watchdog::Between::starting:
      return "waiting at the start until all ranks have their state";
    case Watchdog::Between::nothing:
      break;
  }
  return "not there yet";
}

bool waits_for_peers(const Work& work) {
  return std::holds_alternative<CollectiveWork>(work) || std::holds_alternative<TransferWork>(work);
}

}  // namespace

Watchdog::Watchdog(const ExecutionGraph& graph, std::vector<Seconds> expected, WatchdogOptions options)
    : graph_(graph), expected_(std::move(expected)), options_(std::move(options)) {
  SEXTANT_CHECK(expected_.size() == graph.works.size(), "one prediction for every distinct work");
  std::vector<Seconds> busy(graph.lanes.size());
  for (int stage = 0; stage < graph.plan.pp; ++stage) {
    const StageView view(graph, stage);
    std::ranges::fill(busy, Seconds());
    for (const OpId op : view.ops())
      step_ = std::max(step_, busy[view.lane(op)] += expected_[graph.ops[op].work]);
  }
  thread_ = std::jthread([this](const std::stop_token& stop) { loop(stop); });
}

Watchdog::~Watchdog() = default;

void Watchdog::enter(int rank, const Device& device, const StageView& view) {
  const std::lock_guard lock(mutex_);
  Rank& r = find_or_add(rank);
  r.device = &device;
  r.view = &view;
  r.lanes.assign(graph_.lanes.size(), {});
  r.issued = 0;
  r.between = Between::nothing;
}

void Watchdog::between(int rank, Between what) {
  const std::lock_guard lock(mutex_);
  Rank& r = find_or_add(rank);
  r.between = what;
  r.since = std::chrono::steady_clock::now();
}

void Watchdog::leave(int rank) {
  const std::lock_guard lock(mutex_);
  Rank& r = find(rank);
  settle(r);
  r.lanes.clear();  // an aborted step leaves ops behind
  r.device = nullptr;
}

void Watchdog::issued(int rank, OpId op, Event begin, Event end) {
  const std::lock_guard lock(mutex_);
  Rank& r = find(rank);
  r.lanes[r.view->lane(op)].push_back({op, std::move(begin), std::move(end)});
  ++r.issued;
}

std::string Watchdog::dump() const {
  const std::lock_guard lock(mutex_);
  std::string out;
  for (const Rank& rank : ranks_) out += describe(rank);
  return out;
}

Watchdog::Rank& Watchdog::find(int rank) {
  const auto found = std::ranges::find(ranks_, rank, &Rank::rank);
  SEXTANT_CHECK(found != ranks_.end(), "a rank enters before it issues");
  return *found;
}

Watchdog::Rank& Watchdog::find_or_add(int rank) {
  const auto found = std::ranges::find(ranks_, rank, &Rank::rank);
  if (found != ranks_.end()) return *found;
  ranks_.emplace_back().rank = rank;
  return ranks_.back();
}

Seconds Watchdog::in_between(const Rank& rank) const {
  return awake(Seconds(std::chrono::duration<double>(std::chrono::steady_clock::now() - rank.since).count()));
}

bool Watchdog::notice_sleep() {
  constexpr double kNoSleep = 1;  // s, which a busy machine may keep this thread waiting
  const auto now = std::chrono::steady_clock::now();
  const double beyond = std::chrono::duration<double>(now - looked_).count() - options_.poll.v;
  if (beyond > kNoSleep) sleeps_.push_back({now, Seconds(beyond)});
  looked_ = now;
  return beyond > kNoSleep;
}

Seconds Watchdog::awake(Seconds last) const {
  const auto now = std::chrono::steady_clock::now();
  double slept = 0;
  for (const Sleep& sleep : sleeps_) {
    const double since = std::chrono::duration<double>(now - sleep.end).count();
    slept += std::clamp(last.v - since, 0.0, sleep.length.v);
  }
  return Seconds(last.v - slept);
}

Seconds Watchdog::deadline_between(const Rank& rank) const {
  return (step_ * options_.factor + options_.floor) * (rank.between == Between::starting ? kStarting : 1.0);
}

Seconds Watchdog::deadline(OpId op) const {
  return expected_[graph_.ops[op].work] * options_.factor + options_.floor;
}

void Watchdog::loop(const std::stop_token& stop) {
  std::mutex sleep;
  std::condition_variable_any wake;
  while (!stop.stop_requested()) {
    std::string report;
    {
      const std::lock_guard lock(mutex_);
      notice_sleep();
      for (Rank& rank : ranks_) {
        settle(rank);
        for (const auto& lane : rank.lanes) {
          if (lane.empty() || !report.empty()) continue;
          const auto began = rank.device->reached(lane.front().begin);
          if (!began) continue;
          const Seconds elapsed = awake(rank.device->now() - *began);
          if (elapsed > deadline(lane.front().op)) report = verdict(lane.front().op, rank.rank, elapsed);
        }
        if (report.empty() && rank.between != Between::nothing && in_between(rank) > deadline_between(rank))
          report = verdict_between(rank);
      }
      if (!report.empty() && notice_sleep()) report.clear();  // stopped while it looked: the next look knows
      if (!report.empty())
        for (const Rank& rank : ranks_) report += describe(rank);
    }
    if (!report.empty()) {  // outside the lock: the handler may end steps
      if (options_.on_late) options_.on_late(report);
      return;
    }
    std::unique_lock lock(sleep);
    wake.wait_for(lock, stop, std::chrono::duration<double>(options_.poll.v), [] { return false; });
  }
}

// Moves what is over from the lanes to the history.
void Watchdog::settle(Rank& rank) {
  for (auto& lane : rank.lanes)
    while (!lane.empty()) {
      const auto end = rank.device->reached(lane.front().end);
      if (!end) break;
      rank.done.push_back({lane.front().op, *rank.device->reached(lane.front().begin), *end});
      lane.pop_front();
    }
  while (rank.done.size() > options_.history) rank.done.pop_front();
}

// The first op in the graph's order that the rank has not done.
Watchdog::Position Watchdog::position(const Rank& rank) const {
  const Entry* first = nullptr;
  for (const auto& lane : rank.lanes)
    if (!lane.empty() && (!first || lane.front().op < first->op)) first = &lane.front();
  if (first) {
    const auto began = rank.device->reached(first->begin);
    return {.op = first->op,
            .started = began.has_value(),
            .running = began ? rank.device->now() - *began : Seconds()};
  }
  if (!rank.device || rank.issued >= rank.view->ops().size()) return {.finished = true};
  return {.op = rank.view->ops()[rank.issued]};
}

// Ops before the first unfinished one are done everywhere, so whoever has not done that one holds up the
// rest; when it is an exchange, whoever has not even started it: those in it wait, perhaps for another process.
std::string Watchdog::verdict(OpId late, int straggler, Seconds elapsed) const {
  std::string noticed = fmt::format("rank {}: {} (op {}) is late: {:.3g} s, deadline {:.3g} s\n", straggler,
                                    op_name(graph_, late), late, elapsed.v, deadline(late).v);
  OpId first = late;
  for (const Rank& rank : ranks_)
    if (const auto p = position(rank); rank.device && !p.finished) first = std::min(first, p.op);
  std::string absent, present;
  for (const Rank& rank : ranks_) {
    const auto p = position(rank);
    if (!rank.device || p.finished || p.op != first) continue;
    auto& list = p.started ? present : absent;
    list += fmt::format("{}{}", list.empty() ? "" : ", ", rank.rank);
  }
  if (!absent.empty())
    return fmt::format("rank {} stalls the run: {} (op {}) is not started there; {}", absent,
                       op_name(graph_, first), first, noticed);
  if (first != late && !waits_for_peers(graph_.works[graph_.ops[first].work]))
    return fmt::format("rank {} stalls the run, still in {} (op {}); {}", present, op_name(graph_, first),
                       first, noticed);
  return noticed;
}

// Whoever waits for the others is not to blame, unless nobody of this process is.
std::string Watchdog::verdict_between(const Rank& late) const {
  std::string out;
  if (late.between == Between::meeting || late.between == Between::starting)
    for (const Rank& rank : ranks_)
      if (rank.between != late.between)
        out += fmt::format("rank {} stalls the run ({}); ", rank.rank,
                           rank.device ? "in the step" : doing(rank.between));
  return out + fmt::format("rank {}: {} is late: {:.3g} s, deadline {:.3g} s\n", late.rank,
                           doing(late.between), in_between(late).v, deadline_between(late).v);
}

std::string Watchdog::describe(const Rank& rank) const {
  std::string out = fmt::format("  rank {}:", rank.rank);
  std::string waiting;
  for (const auto& lane : rank.lanes) {
    if (lane.empty()) continue;
    const OpId op = lane.front().op;
    if (const auto began = rank.device->reached(lane.front().begin))
      out += fmt::format(" in {} (op {}) for {:.3g} s,", op_name(graph_, op), op,
                         (rank.device->now() - *began).v);
    else
      waiting += fmt::format(" {} (op {}) waits,", op_name(graph_, op), op);
  }
  out += waiting;
  if (rank.between != Between::nothing)
    out += fmt::format(" {} for {:.3g} s,", doing(rank.between), in_between(rank).v);
  if (out.ends_with(':')) out += rank.device ? " nothing under way," : " between steps,";
  out.back() = '\n';
  out += "    last done:";
  for (const Done& done : rank.done)
    out += fmt::format(" {} (op {}, {:.3g} ms),", op_name(graph_, done.op), done.op,
                       (done.end - done.begin).v * 1e3);
  if (rank.done.empty()) out += " nothing,";
  out.back() = '\n';
  return out;
}

}  // namespace sextant

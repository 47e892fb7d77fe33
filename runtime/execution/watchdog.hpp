// Nothing hangs: every op has a deadline, its predicted time * factor + floor, counted from when it starts on
// its lane; what a rank's host does between steps has that of a whole step. When one passes, the report begins with
// the rank that holds everything up and the op that it has not done, then whoever noticed; it lists the last ops of each
// rank, and the given handler ends the run (abort the communicators). Host side only; sees ranks of this process. Deadlines
// of collectives run while they wait for peers, so the floor bounds honest skew. Time in which this process was stopped as a
// whole (a suspended job, Ctrl-Z) does not count: the watchdog slept, too.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "core/base/units.hpp"
#include "core/graph/execution_graph.hpp"
#include "runtime/devices/device.hpp"
#include "runtime/execution/stage_view.hpp"

namespace sextant {

struct WatchdogOptions {
  double factor = 10.0;
  Seconds floor{10.0};
  Seconds poll{0.02};
  std::size_t history = 8;  // finished ops kept per rank
  // Called once, on the watchdog's thread, with the report; its first line is the verdict.
  std::function<void(const std::string& report)> on_late;
};

class Watchdog {
 public:
  // expected: predicted duration by WorkId.
  Watchdog(const ExecutionGraph&, std::vector<Seconds> expected, WatchdogOptions);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;

  // From now on this rank runs `view`'s ops on `device`, until leave().
  void enter(int rank, const Device& device, const StageView& view);
  void leave(int rank);
  // Between steps: what the rank's host begins to do now, until the next call of any of these. Nothing is not
  // watched. Starting, while others may still read their weights, has kStarting times the deadline.
  enum class Between : std::uint8_t { nothing, reading_tokens, meeting, starting };
  static constexpr double kStarting = 10;
  void between(int rank, Between);
  // The rank enqueued an op between these two events.
  void issued(int rank, OpId, Event begin, Event end);

  // The state of every rank, as the report has it.
  std::string dump() const;

 private:
  struct Entry {
    OpId op = 0;
    Event begin, end;
  };
  struct Done {
    OpId op = 0;
    Seconds begin, end;
  };
  struct Rank {
    int rank = 0;
    const Device* device = nullptr;
    const StageView* view = nullptr;
    std::vector<std::deque<Entry>> lanes;  // under way or waiting, by LaneId
    std::deque<Done> done;
    std::size_t issued = 0;  // ops of view->ops() handed over so far
    Between between = Between::nothing;
    std::chrono::steady_clock::time_point since = {};
  };
  struct Position {
    OpId op = 0;
    bool started = false, finished = false;
    Seconds running = {};
  };

  void loop(const std::stop_token&);
  void settle(Rank&);
  Position position(const Rank&) const;
  std::string verdict(OpId late, int straggler, Seconds elapsed) const;
  std::string verdict_between(const Rank& late) const;
  Seconds in_between(const Rank&) const;
  bool notice_sleep();                // whether the process was stopped since this was asked last
  Seconds awake(Seconds last) const;  // of the last seconds, those in which this process ran
  Seconds deadline_between(const Rank&) const;
  std::string describe(const Rank&) const;
  Seconds deadline(OpId) const;
  Rank& find(int rank);
  Rank& find_or_add(int rank);

  const ExecutionGraph& graph_;
  const std::vector<Seconds> expected_;
  const WatchdogOptions options_;
  Seconds step_;  // predicted, of the busiest lane: the others may wait for as long between steps
  struct Sleep {
    std::chrono::steady_clock::time_point end;
    Seconds length;
  };
  mutable std::mutex mutex_;
  std::deque<Rank> ranks_;
  std::vector<Sleep> sleeps_;
  std::chrono::steady_clock::time_point looked_ = std::chrono::steady_clock::now();
  std::jthread thread_;  // last: stops before the rest goes
};

}  // namespace sextant

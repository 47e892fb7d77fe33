// Issues one rank's ops of a graph: wait for dependencies, launch on the op's lane, record. Decides nothing;
// the graph has the order, the launcher knows what an op is. The host blocks only at the end of the step.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/graph/execution_graph.hpp"
#include "core/timeline/timeline.hpp"
#include "runtime/communicators/communicator.hpp"
#include "runtime/devices/device.hpp"
#include "runtime/devices/op_timer.hpp"
#include "runtime/execution/arena.hpp"
#include "runtime/execution/replay.hpp"
#include "runtime/execution/stage_view.hpp"
#include "runtime/execution/watchdog.hpp"

namespace sextant {

// Enqueues the work of an op on a stream with Device::launch and Device::copy; for a transfer, this rank's
// end of it.
using OpLauncher = std::function<void(OpId, StreamId)>;

struct ExecutorOptions {
  int rank = 0;
  int stage = 0;
  bool time_ops = true;  // events around every op; without them only lanes' ends are known
  // Issue in random_topological_order(seed), one op at a time. What lacks a dependency then gives wrong
  // results, on one core as well. All ranks need the same seed: they meet in collectives.
  std::optional<std::uint64_t> adversarial_seed;
  Watchdog* watchdog = nullptr;
  const OpTimer* timer = nullptr;  // told of steps and launches
  // Whether an op is launched with the same memory and arguments in every step. Runs of such ops on a compute lane that
  // wait for no other lane in between, nor are waited for, become programs of the device. Empty: every op is launched.
  std::function<bool(OpId)> repeats;
  Replay replay = Replay::off;  // of such programs
  // The least time that an op takes, as on a slower machine: what is left of it is waited for on its stream, without
  // burning the CPU. Of a CPU device; asked when the op is issued. Empty: its own time.
  std::function<Seconds(OpId)> least_time;
  // An op failed to launch or to run: frees the other ranks. Called before run_step waits for its lanes.
  std::function<void(const std::string& what)> on_failure;
};

class Executor {
 public:
  // Everything given outlives the executor.
  Executor(const ExecutionGraph&, Device&, OpLauncher, ExecutorOptions);

  // One step, to its end. Throws what went wrong first, with the op's name where it is known. With `as_ever` it is the same
  // as other such steps, so that programs may stand for ops; not when they are recorded one by one.
  void run_step(SpanRecorder* recorder = nullptr, bool as_ever = false);

  const StageView& view() const { return view_; }
  StreamId stream(LaneId lane) const { return streams_[lane]; }
  const MemoryLedger& memory() const { return memory_; }  // what was alive, as issued
  // Programs that have run so far, and ops that they stood for; runs of ops that the device would not capture.
  struct Programs {
    std::int64_t replayed = 0, ops = 0, refused = 0;
  };
  const Programs& programs() const { return programs_; }

 private:
  void issue(OpId);
  void launch(OpId, StreamId);
  void launch_timed(OpId, StreamId);
  bool wait_for_others(OpId, StreamId);  // whether there was anything to wait for
  void find_runs();

  // Ops order_[first, last) of one compute lane.
  struct Run {
    std::size_t first = 0, last = 0;
    Program program;
    bool refused = false;
  };
  void issue(Run&);
  void capture(Run&, StreamId);
  void finish(std::exception_ptr issue_error);

  const ExecutionGraph& graph_;
  Device& device_;
  OpLauncher launcher_;
  ExecutorOptions options_;
  StageView view_;
  MemoryLedger memory_;
  std::vector<OpId> order_;
  std::vector<StreamId> streams_;  // by LaneId
  std::vector<bool> awaited_;      // by OpId: an op of another lane waits for it
  std::vector<Event> begin_, end_;
  bool recording_ = false;        // this step
  std::vector<Event> lane_ends_;  // by LaneId: of its last op in this step, as far as it is known
  std::vector<Run> runs_;         // in order
  Programs programs_;
  ReplayChoice replay_;
};

// The launcher of a virtual device: an op takes the given time (by WorkId) on its stream's clock. Where ranks
// meet, they agree on the start over communicators: `meeting(op)` gives the one the op uses, or nullptr for
// local work.
using OpMeeting = std::function<Communicator*(OpId)>;
OpLauncher virtual_launcher(const ExecutionGraph&, Device&, std::vector<Seconds> durations,
                            OpMeeting meeting);

}  // namespace sextant

// Issues one rank's ops of a graph: wait for dependencies, launch on the op's lane, record. Decides nothing;
// the graph has the order, the launcher knows what an op is. The host blocks only at the end of the step.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/execution_graph.hpp"
#include "core/timeline.hpp"
#include "runtime/arena.hpp"
#include "runtime/communicator.hpp"
#include "runtime/device.hpp"
#include "runtime/op_timer.hpp"
#include "runtime/stage_view.hpp"
#include "runtime/watchdog.hpp"

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
  // An op failed to launch or to run: frees the other ranks. Called before run_step waits for its lanes.
  std::function<void(const std::string& what)> on_failure;
};

class Executor {
 public:
  // Everything given outlives the executor.
  Executor(const ExecutionGraph&, Device&, OpLauncher, ExecutorOptions);

  // One step, to its end. Throws what went wrong first, with the op's name where it is known.
  void run_step(SpanRecorder* recorder = nullptr);

  const StageView& view() const { return view_; }
  const MemoryLedger& memory() const { return memory_; }  // what was alive, as issued

 private:
  void issue(OpId);
  void launch(OpId, StreamId);
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
};

// The launcher of a virtual device: an op takes the given time (by WorkId) on its stream's clock. Where ranks
// meet, they agree on the start over communicators: `meeting(op)` gives the one the op uses, or nullptr for
// local work.
using OpMeeting = std::function<Communicator*(OpId)>;
OpLauncher virtual_launcher(const ExecutionGraph&, Device&, std::vector<Seconds> durations,
                            OpMeeting meeting);

}  // namespace sextant

// What ends a step on all ranks: an op that throws, a rank that is stuck or does not come. Who is to blame is named.
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "runtime/communicators/make_communicator.hpp"
#include "runtime/devices/make_device.hpp"
#include "runtime/execution/executor.hpp"
#include "tests/runtime/execution/graphs.hpp"

namespace sextant::testing {
namespace {

// Two ranks; op 0 local work on either, op 1 a sum over both, op 2 local.
ExecutionGraph two_rank_graph() {
  GraphBuilder b;
  const OpId first = b.op(LaneKind::compute);
  b.op({GraphBuilder::lane(LaneKind::grad_reduce), kNoLane}, {first}, {}, OpRole::grad_reduce);
  b.op(LaneKind::compute, {1});
  return b.graph;
}

// Runs two_rank_graph under a watchdog; `work(rank, op, aborted)` is done in each local op. The error that
// ends it.
struct Ended {
  std::string error, report;
  double seconds = 0;
};
Ended run_watched(const std::function<void(int, OpId, const std::atomic<bool>&)>& work, bool at_issue = false,
                  double floor = 0.5) {
  const auto graph = two_rank_graph();
  auto world = make_local_world(2);
  Communicator& any = *world[0];
  std::atomic<bool> aborted{false};
  Ended ended;
  WatchdogOptions watch;
  watch.floor = Seconds(floor);
  watch.poll = Seconds(0.005);
  watch.on_late = [&](const std::string& report) {
    ended.report = report;
    aborted = true;
    any.abort(report.substr(0, report.find('\n')));
  };
  const auto began = std::chrono::steady_clock::now();
  Watchdog watchdog(graph, std::vector<Seconds>(graph.works.size(), Seconds(1e-3)), watch);
  try {
    run_ranks(world, [&](Communicator& c) {
      const auto lane = c.group(std::vector<int>{0, 1});
      const auto fail = [&](const std::string& what) {
        aborted = true;
        c.abort(what);
      };
      CpuDeviceOptions device_options;
      device_options.on_error = fail;
      const auto device = make_cpu_device(device_options);
      ExecutorOptions options;
      options.rank = c.rank();
      options.watchdog = &watchdog;
      options.on_failure = fail;
      const auto launcher = [&](OpId op, StreamId stream) {
        if (at_issue && op != 1) work(c.rank(), op, aborted);
        device->launch(stream, [&, op](NativeStream native) {
          if (op == 1)
            lane->barrier(native);
          else if (!at_issue)
            work(c.rank(), op, aborted);
        });
      };
      Executor executor(graph, *device, launcher, options);
      for (int step = 0; step < 3; ++step) executor.run_step();
    });
  } catch (const BackendError& error) {
    ended.error = error.what();
  }
  ended.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return ended;
}

void stuck_until(const std::atomic<bool>& aborted) {
  while (!aborted) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST(Watchdog, IsSilentWhenAllGoesWell) {
  const auto ended = run_watched([](int, OpId, const auto&) {}, false, 30);
  EXPECT_EQ(ended.error, "");
  EXPECT_EQ(ended.report, "");
}

TEST(Watchdog, NamesTheRankThatIsStuckInAnOp) {
  const auto ended = run_watched([](int rank, OpId op, const auto& aborted) {
    if (rank == 1 && op == 0) stuck_until(aborted);
  });
  EXPECT_NE(ended.error.find("aborted: "), std::string::npos) << ended.error;
  EXPECT_NE(ended.report.find("deadline 0.51 s"), std::string::npos) << ended.report;
  const bool itself = ended.report.starts_with("rank 1: block (op 0) is late");
  const bool blamed = ended.report.starts_with("rank 1 stalls the run, still in block (op 0); rank 0: ");
  EXPECT_TRUE(itself || blamed) << ended.report;
  EXPECT_NE(ended.report.find("  rank 0: in grad_reduce (op 1) for"), std::string::npos) << ended.report;
  EXPECT_NE(ended.report.find("  rank 1: in block (op 0) for"), std::string::npos) << ended.report;
  EXPECT_LT(ended.seconds, 5);
}

// The host thread of rank 0 never issues op 2 of a step, so its collective of the next one is what is
// missing.
TEST(Watchdog, NamesTheRankThatDoesNotComeToACollective) {
  std::atomic<int> visits{0};
  const auto ended = run_watched(
      [&](int rank, OpId op, const auto& aborted) {
        if (rank == 0 && op == 0 && ++visits == 2) stuck_until(aborted);
      },
      true);
  EXPECT_TRUE(
      ended.report.starts_with("rank 0 stalls the run: block (op 0) is not started there; "
                               "rank 1: grad_reduce (op 1) is late"))
      << ended.report;
  EXPECT_NE(ended.error.find("aborted: "), std::string::npos);
  EXPECT_LT(ended.seconds, 5);
}

// What a watchdog says of a rank that is in op 0, which has time left, while op 1 of another lane is late.
std::string late_beside(const Work& earlier) {
  GraphBuilder b;
  b.op(LaneKind::send_next);
  b.op(LaneKind::send_prev);
  b.graph.works[0] = earlier;
  std::atomic<bool> aborted{false};
  std::string said;
  WatchdogOptions watch;
  watch.floor = Seconds(0.1);
  watch.poll = Seconds(0.005);
  watch.on_late = [&](const std::string& report) {
    said = report;
    aborted = true;
  };
  Watchdog watchdog(b.graph, {Seconds(100), Seconds(1e-3)}, watch);
  const auto device = make_cpu_device({});
  ExecutorOptions options;
  options.watchdog = &watchdog;
  const auto stuck = [&](OpId, StreamId s) {
    device->launch(s, [&](NativeStream) { stuck_until(aborted); });
  };
  Executor(b.graph, *device, stuck, options).run_step();
  return said;
}

TEST(Watchdog, ARankThatWaitsForItsPeersIsNotToBlame) {
  for (const Work& exchange : {Work(TransferWork()), Work(CollectiveWork())})
    EXPECT_TRUE(late_beside(exchange).starts_with("rank 0: block (op 1) is late")) << late_beside(exchange);
  const auto of_compute = late_beside(BlockWork());
  EXPECT_TRUE(of_compute.starts_with("rank 0 stalls the run, still in attention (op 0); rank 0: "))
      << of_compute;
}

TEST(Executor, AnExceptionOnALaneEndsAllRanksAtOnce) {
  const auto ended = run_watched([](int rank, OpId op, const auto&) {
    if (rank == 1 && op == 0) throw BackendError("kernel failed");
  });
  EXPECT_EQ(ended.error, "kernel failed");
  EXPECT_EQ(ended.report, "");  // without waiting for a deadline
}

TEST(Executor, AnExceptionWhileIssuingNamesTheOp) {
  const auto ended = run_watched(
      [](int rank, OpId op, const auto&) {
        if (rank == 0 && op == 2) throw BackendError("no such kernel");
      },
      true);
  EXPECT_EQ(ended.error, "block: no such kernel");
  EXPECT_EQ(ended.report, "");
}

}  // namespace
}  // namespace sextant::testing

// Lowered layouts on every rank of the plan: the executor on virtual devices must give the simulator's timeline, and
// the arena what the graph says.
#include <cmath>

#include <gtest/gtest.h>

#include "planner/simulation/simulate.hpp"
#include "runtime/communicators/make_communicator.hpp"
#include "runtime/devices/make_device.hpp"
#include "runtime/execution/executor.hpp"
#include "runtime/execution/rank_groups.hpp"
#include "tests/support/specs.hpp"

namespace sextant::testing {
namespace {

constexpr const char* kLayouts[] = {
    "tp1.mbs1",
    "dp4.z0.mbs1.b1K",
    "dp4.z1.mbs1.b1K",
    "tp2.pp2.dp2.z1.mbs1",
    "tp2.pp2.vp2.dp2.z1.mbs1.full",
    "dp4.z3.mbs1",
    "dp8.z3.mbs1.sd4",
    "pp2.dp2.z2.mbs1.oo50",
    "tp2.cp2.dp2.z1.mbs1.ao1",
    "pp2.mbs1.zb",
    "pp4.dp2.mbs1.gpipe",
    "dp2.z3.mbs1.po",
    "tp4.pp2.mbs1.sp.sel",
};

struct Spans : SpanRecorder {
  explicit Spans(std::size_t ops) : spans(ops, {-1, -1}) {}
  void record(int, OpId op, Span span) override { spans[op] = span; }
  std::vector<Span> spans;
};

class Twin : public ::testing::TestWithParam<std::tuple<const char*, bool>> {};

TEST_P(Twin, VirtualRanksEqualTheSimulatorSpanBySpan) {
  const auto [key, tied] = GetParam();
  const auto graph = lower_tiny(key, 8, 16, {}, false, tied);
  const auto costs = price(graph, HashedCost{});
  const auto predicted = simulate(graph, costs);
  std::vector<Seconds> durations;
  for (const auto& cost : costs) durations.push_back(cost.duration);
  run_local_ranks(graph.plan.world(), [&](Communicator& world) {
    const auto device = make_virtual_device();
    const RankGroups groups(graph, world);
    ExecutorOptions options;
    options.rank = world.rank();
    options.stage = groups.stage();
    Executor executor(graph, *device,
                      virtual_launcher(graph, *device, durations, [&](OpId op) { return groups.of(op); }),
                      options);
    Spans got(graph.ops.size());
    executor.run_step(&got);
    int differing = 0;
    for (const OpId op : executor.view().ops()) {
      const Span expected = predicted.spans[op], measured = got.spans[op];
      const bool meets = groups.of(op) != nullptr;  // measured from when this rank is ready for it
      // The simulator keeps ends and derives starts: equal up to one rounding.
      const bool start_differs =
          meets ? measured.start > expected.start + 1e-12 : std::abs(measured.start - expected.start) > 1e-12;
      if (measured.end != expected.end || start_differs)
        if (differing++ < 3)
          ADD_FAILURE() << op_name(graph, op) << " (op " << op << ") on rank " << world.rank() << ": ends at "
                        << measured.end << ", predicted " << expected.end;
    }
    EXPECT_EQ(differing, 0);
  });
}

// What issuing holds is what the graph's own account says, to the byte and by kind; the arena has room for it without
// much waste.
TEST_P(Twin, MemoryOfEveryStageIsThePredictedOne) {
  const auto [key, tied] = GetParam();
  const auto graph = lower_tiny(key, 8, 16, {}, true, tied);
  for (int stage = 0; stage < graph.plan.pp; ++stage) {
    const StageView view(graph, stage);
    const auto predicted = walk(graph, stage);
    MemoryLedger ledger(graph, view);
    for (const OpId op : view.ops()) {
      ledger.begin(op);
      ledger.end(op);
    }
    EXPECT_EQ(ledger.at_peak(Space::device), predicted.peak.held) << key << " stage " << stage;
    EXPECT_EQ(ledger.peak(Space::host), predicted.host_peak.v);
    EXPECT_EQ(ledger.now(), predicted.resident) << "something outlives the step";

    const auto plan = plan_arena(graph, view);
    const double rounding = 64.0 * static_cast<double>(graph.buffers.size());
    for (const Space space : {Space::device, Space::host}) {
      const auto extent = plan.extent[static_cast<std::size_t>(space)];
      EXPECT_GE(extent, ledger.peak(space)) << key << " stage " << stage;
      EXPECT_LE(static_cast<double>(extent), 1.25 * static_cast<double>(ledger.peak(space)) + rounding);
    }
  }
}

// What is on the host takes no place on the device but its ring: there, too, where copies are slower than layers, or else
// the arena could not be as small as the account of memory in order of issue.
TEST(OffloadedActivations, LeaveTheDevice) {
  const auto device_bytes = [](const char* key) {
    const auto graph = lower_tiny(key, 24, 16);
    const StageView view(graph, 0);
    MemoryLedger ledger(graph, view);
    for (const OpId op : view.ops()) {
      ledger.begin(op);
      ledger.end(op);
    }
    const std::int64_t extent = plan_arena(graph, view).extent[0];
    EXPECT_LE(extent - ledger.peak(Space::device), 64 * std::ssize(graph.buffers)) << key;
    return extent;
  };
  const std::int64_t none = device_bytes("dp2.z1.mbs2"), sixteen = device_bytes("dp2.z1.mbs2.ao16"),
                     all = device_bytes("dp2.z1.mbs2.ao24"), ahead = device_bytes("dp2.z1.mbs2.ao24.hz6");
  EXPECT_LT(sixteen, none);
  EXPECT_LT(all, sixteen);
  EXPECT_GT(ahead, all);
  for (const char* key :
       {"pp2.mbs1.ao12", "pp2.vp2.mbs1.ao6", "tp2.dp2.z2.mbs2.full4.ao16", "cp2.z3.mbs1.ao20.hz2"})
    device_bytes(key);
}

// Chunks by turns free what lies between others'. Sizes are those of a 70B model, where what a norm and attention keep fits
// well into the place of what an MLP keeps, and little goes into what is left: the lowest gap alone wasted a sixth.
TEST(Arena, VirtualStagesLeaveFewHoles) {
  ModelSpec model = tiny_model(80);
  model.hidden = 8192;
  model.ffn_hidden = 28672;
  model.vocab_size = 128256;
  model.n_heads = 64;
  model.n_kv_heads = 8;
  model.head_dim = 128;
  TrainingSpec training = tiny_training(64);
  training.seq_len = 4096;
  for (const char* key :
       {"pp2.vp20.dp16.z1.mbs1", "pp2.vp20.dp16.z1.mbs1.ao1", "pp2.vp21.dp16.z1.mbs1.L0-2x40-0",
        "pp4.vp5.dp8.z2.mbs1.full1", "pp2.dp16.z1.mbs1"}) {
    const ParallelPlan plan = parse_plan_key(key);
    const auto graph = lower(model, training, flat_links(plan), plan, {}, {true});
    for (int stage = 0; stage < plan.pp; ++stage) {
      const StageView view(graph, stage);
      MemoryLedger ledger(graph, view);
      for (const OpId op : view.ops()) {
        ledger.begin(op);
        ledger.end(op);
      }
      const auto peak = static_cast<double>(ledger.peak(Space::device)),
                 moving = peak - static_cast<double>(walk(graph, stage).resident.device().v);
      EXPECT_LE(static_cast<double>(plan_arena(graph, view).extent[0]) - peak, 0.03 * moving)
          << key << " stage " << stage;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, Twin, ::testing::Combine(::testing::ValuesIn(kLayouts), ::testing::Bool()));

}  // namespace
}  // namespace sextant::testing

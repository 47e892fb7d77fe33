// Unit: the runtime over an emulated GPU. Expectation: a step does not allocate, and waits for the GPU at its ends only:
// for its tokens on the way in, once a lane, and for what it reports; a GPU on which a kernel went astray ends
// the run as an error, also where a watchdog looks on.
#include <cstdlib>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kernels/cuda/cuda_kernels.hpp"
#include "runtime/training/training_run.hpp"
#include "tests/cuda/emulation/cublaslt.hpp"
#include "tests/cuda/emulation/gpu.hpp"
#include "tests/support/specs.hpp"

namespace sextant::testing {
namespace {

struct Steps {
  StackSpec stack = load_stack("sextant", SEXTANT_SOURCE_DIR "/tools/presets");
  ExecutionGraph graph;
  explicit Steps(const std::string& key, Dtype compute = Dtype::bf16,
                 PositionKind position = PositionKind::rope) {
    TrainingSpec training = tiny_training(8);
    training.compute = compute;
    const ParallelPlan plan = parse_plan_key(key);
    ModelSpec model = tiny_model(4);
    model.position = position;
    graph = lower(model, training, flat_links(plan), plan, stack);
  }

  RunResult run(const std::function<void(const StepReport&)>& on_step, Replay replay = Replay::off) {
    TrainingRun run{.graph = graph,
                    .stack = stack,
                    .kernels = *cuda_kernels(),
                    .sequences = synthetic_sequences(graph.model.vocab_size, graph.training.global_batch, 1),
                    .weights = random_weights(graph.model, 1)};
    run.cuda = CudaDeviceOptions{};
    run.steps = 5;
    run.replay = replay;
    run.expected.assign(graph.works.size(), Seconds(1));
    run.on_step = on_step;
    return train(run);
  }
};

TEST(EmulatedSteps, NothingInAStepWaitsOrAllocates) {
  for (const char* key : {"mbs2", "mbs1.oo50.po", "mbs2.ao3"})
    for (const Replay replay : {Replay::off, Replay::on}) {
      Steps steps(key);
      const auto lanes = static_cast<int>(steps.graph.lanes.size());
      steps.run(
          [&](const StepReport& report) {
            const emulation::Counts counts = emulation::take_counts();
            if (report.step < 2) return;  // the first takes what is kept
            EXPECT_EQ(counts.allocations, 0) << key << ", step " << report.step;
            EXPECT_LE(counts.pageable_copies, 2) << key << ", step " << report.step;
            EXPECT_LE(counts.waits, lanes + 2) << key << ", step " << report.step;
            EXPECT_GT(counts.kernels, 0);
          },
          replay);
    }
}

// What a run of one rank takes of the GPU is what its plan says; a byte more would be seen.
TEST(EmulatedSteps, MemoryIsThePlansToTheByte) {
  for (const char* key : {"mbs2", "mbs1", "mbs4.sel", "mbs1.oo50.po", "mbs2.ao3"})
    for (const bool one_more : {false, true}) {
      Steps steps(key);
      emulation::take_most_bytes();
      void* byte = nullptr;
      const RunResult result = steps.run([&](const StepReport& report) {
        if (one_more && report.step == 1) cudaMalloc(&byte, 1);
      });
      cudaFree(byte);
      EXPECT_EQ(emulation::take_most_bytes(), result.planned_memory.v + one_more) << key;
      EXPECT_EQ(result.allocated_memory, result.planned_memory) << key;
      const std::int64_t buffers = plan_arena(steps.graph, StageView(steps.graph, 0)).extent[0];
      EXPECT_GT(result.planned_memory.v, buffers + (std::int64_t{32} << 20)) << key << ": scratch is in it";
    }
  Steps by_distance("mbs2", Dtype::bf16, PositionKind::alibi);
  emulation::take_most_bytes();
  const Bytes planned = by_distance.run([](const StepReport&) {}).planned_memory;
  EXPECT_EQ(emulation::take_most_bytes(), planned.v) << "slopes in place of angles";
  for (const char* key : {"mbs2", "mbs4.sel", "mbs1.oo50.po"}) {
    Steps narrow(key, Dtype::fp8);
    emulation::take_most_bytes();
    const RunResult result = narrow.run([](const StepReport&) {});
    EXPECT_EQ(emulation::take_most_bytes(), result.planned_memory.v) << key << " in fp8";
    EXPECT_GT(result.planned_memory.v, Steps(key).run([](const StepReport&) {}).planned_memory.v)
        << key << ": codes and what is known of weights are in it";
  }
}

// The rehearsed step times what the library proposes.
TEST(EmulatedSteps, TheFastestGemmIsChosen) {
  std::vector<int> algorithms;
  Steps("mbs2").run([&](const StepReport&) { algorithms.push_back(emulation::last_gemm_algorithm()); });
  EXPECT_EQ(algorithms, std::vector<int>(5, 2));
}

TEST(EmulatedSteps, ABrokenGpuEndsTheRun) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto die = [] {
    try {
      Steps("mbs2").run([](const StepReport& report) {
        if (report.step == 2) emulation::break_down();
      });
    } catch (const BackendError& error) {
      fmt::print(stderr, "said: {}\n", error.what());
      std::_Exit(7);
    }
    std::_Exit(0);
  };
  EXPECT_EXIT(die(), ::testing::ExitedWithCode(7), "said: .*error 700");
}

}  // namespace
}  // namespace sextant::testing

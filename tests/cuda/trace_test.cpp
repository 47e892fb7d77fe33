// Kernels of a training step joined to its operations. System: some steps of a small model on a GPU, every operation
// timed twice, by events around it and by the kernels that CUPTI saw. Expectation: every operation that launches kernels
// has a span by them, which lies within that of its events but for what the two clocks differ.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <mutex>

#include "kernels/cuda/cuda_kernels.hpp"
#include "profiler/traced_steps.hpp"
#include "runtime/training/training_run.hpp"
#include "tests/cuda/twin.hpp"
#include "tests/support/specs.hpp"

namespace sextant::testing {
namespace {

// Beside the source tree, or where a bundle of the tests has them.
std::string presets_folder() {
  const char* elsewhere = std::getenv("SEXTANT_PRESETS");
  return elsewhere ? elsewhere : SEXTANT_SOURCE_DIR "/tools/presets";
}

class CudaTrace : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    if (const std::string missing = kernel_trace_missing(); !missing.empty()) GTEST_SKIP() << missing;
  }
};

TEST_F(CudaTrace, EveryOperationThatLaunchesKernelsIsSeen) {
  const StackSpec stack = load_stack("sextant", presets_folder());
  for (const char* key : {"mbs2", "dp2.z1.mbs1.b4K"}) {
    const ExecutionGraph graph = lower_tiny(key, 4, 8, stack);
    TrainingRun run{.graph = graph,
                    .stack = stack,
                    .kernels = *cuda_kernels(KernelSet::reference),
                    .sequences = synthetic_sequences(graph.model.vocab_size, graph.training.global_batch, 1),
                    .weights = random_weights(graph.model, 1)};
    run.cuda = CudaDeviceOptions{.rehearses = false};
    run.record = true;
    run.steps = 3;
    TracedSteps traced(graph.plan.world());
    // The spans by events are seen between the two ways of timing.
    std::mutex mutex;
    std::map<int, std::vector<Span>> by_events;
    OpTimer timer = traced.timer();
    timer.end_step = [&](int rank, std::vector<Span>& spans) {
      {
        const std::lock_guard lock(mutex);
        by_events[rank] = spans;
      }
      traced.timer().end_step(rank, spans);
    };
    run.timer = &timer;
    int compared = 0, seen = 0;
    // s: from an event to the kernel behind it, at the least. An emulated GPU is a thread of a busy host.
    const double launch = std::getenv("SEXTANT_SHARE") ? 5e-2 : 1e-4;
    run.on_spans = [&](int rank, std::int64_t step, const std::vector<Span>& spans) {
      if (step == 0) return;
      const std::lock_guard lock(mutex);
      // The two clocks have the step's beginning apart by how late the host noticed an event: the same for all.
      double apart = 1;
      std::vector<OpId> blocks;
      for (OpId op = 0; op < graph.ops.size(); ++op)
        if (graph.ops[op].role == OpRole::block) {
          blocks.push_back(op);
          apart = std::min(apart, spans[op].start - by_events[rank][op].start);
        }
      for (const OpId op : blocks) {
        const Span events = by_events[rank][op], kernels = spans[op];
        ++compared;
        seen += kernels.start != events.start || kernels.end != events.end;
        EXPECT_LE(kernels.end - apart, events.end + launch) << key << ", " << op_name(graph, op);
        EXPECT_LE(kernels.end - kernels.start, events.end - events.start + 1e-6) << op_name(graph, op);
      }
      EXPECT_LT(std::abs(apart), 0.1) << key;
    };
    train(run);
    EXPECT_GT(compared, 0);
    EXPECT_GE(seen, compared * 9 / 10) << key << ": operations by kernels";
    EXPECT_EQ(traced.losses().dropped, 0);
    EXPECT_EQ(traced.losses().untimed, 0);
  }
}

}  // namespace
}  // namespace sextant::testing

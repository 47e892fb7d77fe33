// How long does the state of a run take from one layout to another, against what the links allow? Eight CPU ranks whose links
// take as long as those of a node with `GBPS` GB/s each way; the state of a model of 98 million parameters, about 1.2 GB, of
// which each rank lacks seven eighths of its part. Ends with 1 when a change takes more than one and a half times as long as
// the bytes of the rank that receives most need on its link.
//   state_move_bench [GBPS]   (default: 0.05; from about 0.2 on two cores copy no faster than eight links)
#include <chrono>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>

#include "kernels/cpu/cpu_kernels.hpp"
#include "runtime/training/training_run.hpp"
#include "tests/support/runnable.hpp"

namespace sextant::testing {
namespace {

constexpr double kMost = 1.5;  // times what the links allow

ModelSpec model() {
  ModelSpec m = tiny_model(12);
  m.hidden = 768;
  m.n_heads = 12;
  m.n_kv_heads = 12;
  m.head_dim = 64;
  m.ffn_hidden = 2048;
  m.vocab_size = 8192;
  return m;
}

struct Layout {
  explicit Layout(const char* key, double GBps)
      : plan(parse_plan_key(key)),
        graph(lower(spec, training, flat_links(plan), plan, stack)),
        run{.graph = graph, .stack = stack, .kernels = cpu_kernels()} {
    run.optimizer.total_steps = 2;
    run.sequences = synthetic_sequences(spec.vocab_size, training.global_batch, 1);
    run.weights = random_weights(spec, 1);
    run.shape = LinkShape{.ranks_per_node = 8,
                          .node_bandwidth = BytesPerSecond(1e9 * GBps),
                          .node_latency = {},
                          .network_bandwidth = {},
                          .network_latency = {}};
  }

  ModelSpec spec = model();
  TrainingSpec training = runnable_training(8);
  StackSpec stack = load_stack("sextant", SEXTANT_SOURCE_DIR "/tools/presets");
  ParallelPlan plan;
  ExecutionGraph graph;
  TrainingRun run;
};

// Seconds over those that the links allow.
double change(const char* from, const char* to, double GBps) {
  Layout first(from, GBps), second(to, GBps);
  CarriedState carried;
  first.run.carried = second.run.carried = &carried;
  first.run.steps = 2;
  second.run.steps = 2;
  first.run.time_to_change = [] { return true; };
  train(first.run);
  const RunResult result = train(second.run);
  const double allowed = static_cast<double>(result.moved.most_bytes) / (1e9 * GBps);
  fmt::print(
      "{:20} to {:20} {:5.2f} GB, {:4.2f} by one rank, in {:5.2f} s, {:5.2f} s allowed: {:.2f} times\n", from,
      to, static_cast<double>(result.moved.bytes) / 1e9, static_cast<double>(result.moved.most_bytes) / 1e9,
      result.moved.took.v, allowed, result.moved.took.v / allowed);
  return result.moved.took.v / allowed;
}

int run(int argc, char** argv) {
  const double GBps = argc > 1 ? std::atof(argv[1]) : 0.05;
  double worst = 0;
  for (const auto& [from, to] :
       {std::pair{"dp8.z1.mbs1", "tp2.dp4.z1.mbs1"}, {"tp2.pp2.dp2.z1.mbs1", "dp8.z3.mbs1"}})
    worst = std::max(worst, change(from, to, GBps));
  return worst > kMost ? 1 : 0;
}

}  // namespace
}  // namespace sextant::testing

int main(int argc, char** argv) { return sextant::testing::run(argc, argv); }

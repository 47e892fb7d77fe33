// How long does it take to simulate every rank of a large job, and one representative rank a stage? A decoder of 70B
// size (80 layers, hidden 8192) on 4,096 ranks: tp8 pp8 vp5 dp64.
//   build/release/bin/ranks_bench
#include <benchmark/benchmark.h>

#include "core/graph/checks/graph_check.hpp"
#include "planner/simulation/simulate_ranks.hpp"
#include "tests/support/specs.hpp"

namespace sextant {
namespace {

using namespace testing;

ExecutionGraph large(bool operands) {
  ModelSpec m = tiny_model(80);
  m.hidden = 8192;
  m.n_heads = 64;
  m.n_kv_heads = 8;
  m.head_dim = 128;
  m.ffn_hidden = 28672;
  m.vocab_size = 32000;
  TrainingSpec t = tiny_training(64 * 32);
  t.seq_len = 4096;
  const ParallelPlan plan = parse_plan_key("tp8.pp8.vp5.dp64.z1.mbs1.sel");
  return lower(m, t, flat_links(plan), plan, {}, {operands});
}

void representative(benchmark::State& state) {
  const auto g = large(false);
  const auto costs = price(g, HashedCost{});
  for (auto _ : state) benchmark::DoNotOptimize(simulate(g, costs).makespan());
  state.counters["ops"] = static_cast<double>(g.ops.size());
}

void every_rank(benchmark::State& state) {
  const auto g = large(false);
  const auto costs = price(g, HashedCost{});
  std::vector<double> factor(static_cast<std::size_t>(g.plan.world()), 1.0);
  factor[1234] = 1.2;
  for (auto _ : state) benchmark::DoNotOptimize(simulate_ranks(g, costs, factor).makespan);
  state.counters["ranks"] = g.plan.world();
  state.counters["ops"] = static_cast<double>(g.ops.size());
}

void whole_check(benchmark::State& state) {
  const auto g = large(true);
  for (auto _ : state)
    if (!check(g, {}).empty()) state.SkipWithError("the graph is not sound");
}

void lower_it(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(large(state.range(0) != 0).ops.size());
}

BENCHMARK(representative)->Unit(benchmark::kMillisecond);
BENCHMARK(every_rank)->Unit(benchmark::kMillisecond);
BENCHMARK(lower_it)->Arg(0)->Arg(1)->ArgName("operands")->Unit(benchmark::kMillisecond);
BENCHMARK(whole_check)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace sextant

BENCHMARK_MAIN();

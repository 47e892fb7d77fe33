// How fast is planning? Lower bounds and full simulations per second and core, both beside what other planners
// publish (measured on the same kind of machine, 2024: Calculon 124 configurations per second and core,
// SimuMax 12 to 43), and whole questions from names to a proved plan, with the memory they took.
//   build/release/bin/search_bench
#include <algorithm>
#include <filesystem>
#include <vector>

#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include "core/cluster/cluster_files.hpp"
#include "core/graph/parameter_layout.hpp"
#include "core/model/model_files.hpp"
#include "cost_models/analytic.hpp"
#include "planner/explain/explain.hpp"
#include "planner/lowering/lower.hpp"
#include "planner/search/search.hpp"
#include "planner/search/search_tree.hpp"
#include "planner/simulation/stage_memory.hpp"

namespace sextant {
namespace {

constexpr double kCalculon = 124, kSimuMax = 43;  // configurations per second and core

// From names to a Job, as the command does it.
struct Question {
  std::filesystem::path presets = std::filesystem::path(SEXTANT_SOURCE_DIR) / "tools/presets";
  ModelSpec model;
  TrainingSpec training;
  ClusterSpec cluster;
  StackSpec stack;
  Topology topology;
  AnalyticCostModel cost;
  UncertaintyRules uncertainty = load_uncertainty_rules(presets);
  Question(const char* model_name, const char* cluster_name, int global_batch, int seq_len)
      : model(load_model(model_name, presets)),
        cluster(load_cluster(cluster_name, presets)),
        stack(load_stack("megatron-core", presets)),
        topology(cluster),
        cost(cluster, stack, presets) {
    training.global_batch = global_batch;
    training.seq_len = seq_len;
  }
  Job job() const { return {model, training, cluster, topology, stack, cost, 1.0, &uncertainty}; }
  SearchSpace space() const { return default_space(model, training, cluster.device, cluster.gpus()); }
};

double cpu_s() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto s = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return s(used.ru_utime) + s(used.ru_stime);
}

void beside_peers(benchmark::State& state, double count) {
  using benchmark::Counter;
  state.counters["per_core_s"] = Counter(count, Counter::kIsRate);
  state.counters["x_calculon"] = Counter(count / kCalculon, Counter::kIsRate);
  state.counters["x_simumax"] = Counter(count / kSimuMax, Counter::kIsRate);
}

// One layout of a 70B model on 4,096 H100: lowered, priced, simulated with interference.
void simulation(benchmark::State& state, const char* key) {
  const Question q("llama-2-70b", "512x8xh100", 1024, 4096);
  const Job job = q.job();
  const ParallelPlan plan = parse_plan_key(key);
  const PlanLinks links = plan_links(q.topology, plan);
  SimulateScratch scratch;
  FoldedGraph graph;
  std::size_t ops = 0;
  double count = 0;
  for (auto _ : state) {
    lower_folded(q.model, q.training, links, plan, q.stack, graph);
    const double step = simulated_step(graph, price(graph, q.cost), simulate_options(job, plan), scratch).v;
    benchmark::DoNotOptimize(step);
    ops = graph.ops.size();
    ++count;
  }
  beside_peers(state, count);
  state.counters["ops"] = static_cast<double>(ops);
}

// The memory of one layout, as the search filters by it.
void memory(benchmark::State& state, const char* key) {
  const Question q("llama-2-70b", "512x8xh100", 1024, 4096);
  const ParallelPlan plan = parse_plan_key(key);
  double count = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(estimate_memory(q.model, q.training, plan, q.stack));
    ++count;
  }
  beside_peers(state, count);
}

// Every node of the tree above the full layouts, level by level, until that many have been expanded: each child's own
// lower bound, with the floors of memory and the rules that come before it.
void bounds(benchmark::State& state) {
  const Question q("llama-2-70b", "512x8xh100", 1024, 4096);
  const Job job = q.job();
  const SearchSpace space = q.space();
  const SearchTree tree(job, space, q.cluster.device.memory);
  double computed = 0, members = 0;
  for (auto _ : state) {
    SearchCache cache(job, space);
    std::vector<Node> nodes{tree.root()};
    while (!nodes.empty() && nodes.front().level != Level::full) {
      // The best of the level, as a search would go on with.
      const std::size_t most = std::min<std::size_t>(nodes.size(), 400);
      std::partial_sort(nodes.begin(), nodes.begin() + static_cast<std::ptrdiff_t>(most), nodes.end(),
                        [](const Node& a, const Node& b) { return a.bound < b.bound; });
      Expansion out;
      for (std::size_t i = 0; i < most; ++i) tree.expand(nodes[i], cache, out);
      computed += static_cast<double>(out.bounds);
      for (const Node& child : out.children) members += static_cast<double>(child.members);
      nodes = std::move(out.children);
    }
  }
  beside_peers(state, computed);
  state.counters["members_per_core_s"] = benchmark::Counter(members, benchmark::Counter::kIsRate);
}

// A whole question on all cores: presets read, topology built, the best plan found and proved. The peak of resident
// memory is the process's so far.
void plan(benchmark::State& state, const char* model, const char* cluster, int global_batch, int seq_len) {
  SearchReport report;
  double cpu = 0, rounds = 0;
  for (auto _ : state) {
    const double before = cpu_s();
    const Question q(model, cluster, global_batch, seq_len);
    SearchOptions options;
    options.others_share = kTieShare / 2;
    options.thorough_bounds = kThoroughBounds;
    report = search(q.job(), q.space(), options);
    if (!report.exact || report.ranked.empty()) state.SkipWithError("no proved plan");
    cpu += cpu_s() - before;
    ++rounds;
  }
  if (rounds == 0) return;
  cpu /= rounds;
  const auto considered = static_cast<double>(report.space);
  const auto bounded = static_cast<double>(report.outcomes[Outcome::pruned_by_bound]);
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  state.counters["cpu_s"] = cpu;
  state.counters["space"] = considered;
  state.counters["bounded_per_core_s"] = bounded / cpu;
  state.counters["x_calculon"] = bounded / cpu / kCalculon;
  state.counters["bounds"] = static_cast<double>(report.bounds);
  state.counters["simulated"] = static_cast<double>(report.outcomes[Outcome::simulated]);
  state.counters["peak_MiB"] = static_cast<double>(used.ru_maxrss) / 1024;
}

BENCHMARK_CAPTURE(simulation, zero1, "tp8.pp8.vp5.cp1.dp64.z1.mbs1.sel")->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(simulation, zero2, "tp8.pp1.vp1.cp8.dp64.z2.mbs1.sel")->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(simulation, zero3, "tp8.pp1.vp1.cp8.dp64.z3.mbs1.sel")->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(memory, pp8, "tp8.pp8.vp5.cp1.dp64.z1.mbs1.sel")->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(memory, pp1, "tp8.pp1.vp1.cp8.dp64.z3.mbs1.sel")->Unit(benchmark::kMicrosecond);
BENCHMARK(bounds)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(plan, llama_2_13b_64_a100, "llama-2-13b", "8x8xa100-80gb", 1024, 4096)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(plan, llama_3_1_405b_16384_h100, "llama-3.1-405b", "2048x8xh100", 2048, 8192)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(plan, llama_2_70b_16384_h100, "llama-2-70b", "2048x8xh100", 4096, 4096)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
}  // namespace sextant

BENCHMARK_MAIN();

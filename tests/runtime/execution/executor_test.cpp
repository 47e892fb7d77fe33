// The executor against two oracles: a sweep over the graph (time, on the virtual device) and an interpreter
// that runs ops one by one in buffers of their own (data, on CPU threads and in a packed arena).
#include "runtime/execution/executor.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/communicators/make_communicator.hpp"
#include "runtime/devices/make_device.hpp"
#include "tests/runtime/execution/graphs.hpp"

namespace sextant::testing {
namespace {

std::vector<Span> sweep(const ExecutionGraph& g, const std::vector<Seconds>& durations) {
  std::vector<Span> spans;
  std::map<LaneId, double> free;
  for (const Op& op : g.ops) {
    double start = 0;
    for (const OpId dep : g.deps_of(op)) start = std::max(start, spans[dep].end);
    for (const LaneId lane : op.lanes)
      if (lane != kNoLane) start = std::max(start, free[lane]);
    spans.push_back({start, start + durations[op.work].v});
    for (const LaneId lane : op.lanes)
      if (lane != kNoLane) free[lane] = spans.back().end;
  }
  return spans;
}

struct Spans : SpanRecorder {
  explicit Spans(std::size_t ops) : spans(ops, {-1, -1}) {}
  void record(int, OpId op, Span span) override { spans[op] = span; }
  std::vector<Span> spans;
};

// One communicator per direction of transfers between neighbours, made in the same order by both ends.
class Links {
 public:
  Links(const ExecutionGraph& graph, Communicator& world) : graph_(graph) {
    for (int from = 0; from < world.size() && world.size() > 1; ++from) {
      const int to = (from + 1) % world.size();
      if (world.rank() == from || world.rank() == to) links_[from] = world.group(std::vector<int>{from, to});
    }
  }
  Communicator* operator()(OpId op) const {
    if (graph_.ops[op].lanes[1] == kNoLane) return nullptr;
    return links_.at(graph_.ops[op].stage).get();  // rank 0 of it sends
  }

 private:
  const ExecutionGraph& graph_;
  std::map<int, std::unique_ptr<Communicator>> links_;
};

TEST(Executor, OnAVirtualDeviceEqualsTheSweepSpanBySpan) {
  for (std::uint64_t seed = 0; seed < 15; ++seed)
    for (const int stages : {1, 2, 3}) {
      const auto graph = random_graph(seed, stages, 120);
      std::mt19937_64 random(seed);
      std::vector<Seconds> durations;
      for (std::size_t i = 0; i < graph.works.size(); ++i)
        durations.push_back(Seconds(1e-3 * static_cast<double>(random() % 1000)));
      const auto expected = sweep(graph, durations);
      run_local_ranks(stages, [&](Communicator& world) {
        const auto device = make_virtual_device();
        const Links links(graph, world);
        ExecutorOptions options;
        options.rank = options.stage = world.rank();
        Executor executor(graph, *device, virtual_launcher(graph, *device, durations, std::cref(links)),
                          options);
        Spans got(graph.ops.size());
        executor.run_step(&got);
        for (const OpId op : executor.view().ops()) {
          EXPECT_EQ(got.spans[op].end, expected[op].end) << "op " << op;
          // A measured transfer starts when this end is ready, a predicted one when both are.
          if (graph.ops[op].lanes[1] == kNoLane)
            EXPECT_EQ(got.spans[op].start, expected[op].start) << "op " << op;
          else
            EXPECT_LE(got.spans[op].start, expected[op].start);
        }
      });
    }
}

// What an op does in these tests: digest what it reads, fill what it writes with bytes that follow from the
// digest.
std::uint64_t mix(std::uint64_t h, std::uint64_t x) { return (h ^ x) * 1099511628211ULL; }

struct Views {
  std::vector<std::pair<const std::byte*, std::int64_t>> reads;
  std::vector<std::pair<std::byte*, std::int64_t>> writes;
};

template <class At>
Views views_of(const ExecutionGraph& g, OpId op, int stage, At at) {
  Views v;
  for (const auto& o : g.operands_of(g.ops[op])) {
    if (g.buffers[o.buffer].stage != stage) continue;
    if (o.write)
      v.writes.emplace_back(at(o.buffer), o.end);
    else
      v.reads.emplace_back(at(o.buffer), o.end);
  }
  return v;
}

std::uint64_t compute(OpId op, const Views& v) {
  std::uint64_t h = mix(1469598103934665603ULL, op);
  for (const auto& [data, n] : v.reads)
    for (std::int64_t i = 0; i < n; ++i) h = mix(h, static_cast<std::uint64_t>(data[i]));
  std::uint64_t x = h;
  for (const auto& [data, n] : v.writes)
    for (std::int64_t i = 0; i < n; ++i) data[i] = static_cast<std::byte>((x = mix(x, 7)) >> 40);
  return h;
}

// Digest of every op and of every resident buffer at the end.
struct Outcome {
  std::vector<std::uint64_t> ops, residents;
  bool operator==(const Outcome&) const = default;
};

template <class At>
void digest_residents(const ExecutionGraph& g, int stage, At at, Outcome& out) {
  for (BufferId b = 0; b < g.buffers.size(); ++b) {
    if (!g.buffers[b].resident || g.buffers[b].stage != stage) continue;
    Views v;
    v.reads.emplace_back(at(b), g.buffers[b].bytes);
    out.residents[b] = compute(b, v);
  }
}

Outcome interpret(const ExecutionGraph& g, int stages) {
  std::vector<std::vector<std::byte>> storage;
  for (const auto& buffer : g.buffers) storage.emplace_back(static_cast<std::size_t>(buffer.bytes));
  const auto at = [&](BufferId b) { return storage[b].data(); };
  Outcome out{std::vector<std::uint64_t>(g.ops.size()), std::vector<std::uint64_t>(g.buffers.size())};
  for (OpId op = 0; op < g.ops.size(); ++op) {
    if (g.ops[op].lanes[1] == kNoLane) {
      out.ops[op] = compute(op, views_of(g, op, g.ops[op].stage, at));
    } else {
      const auto& from = g.operands_of(g.ops[op])[0];
      storage[g.operands_of(g.ops[op])[1].buffer] = storage[from.buffer];
    }
  }
  for (int s = 0; s < stages; ++s) digest_residents(g, s, at, out);
  return out;
}

Outcome execute(const ExecutionGraph& g, int stages, std::optional<std::uint64_t> adversarial_seed) {
  Outcome out{std::vector<std::uint64_t>(g.ops.size()), std::vector<std::uint64_t>(g.buffers.size())};
  run_local_ranks(stages, [&](Communicator& world) {
    CpuDeviceOptions device_options;
    device_options.on_error = [&](const std::string& what) { world.abort(what); };
    const auto device = make_cpu_device(device_options);
    const Links links(g, world);
    const StageView view(g, world.rank());
    const ArenaPlan plan = plan_arena(g, view);
    const Arena arena(*device, g, plan);
    const auto at = [&](BufferId b) { return arena.at(b); };
    // Poison: memory of an earlier run would hold just the bytes that a read come too early should miss.
    for (const bool resident : {false, true})
      for (BufferId b = 0; b < g.buffers.size(); ++b)
        if (plan.offset[b] != ArenaPlan::kNotHere && g.buffers[b].resident == resident)
          std::memset(at(b), resident ? 0 : 0xa5, static_cast<std::size_t>(g.buffers[b].bytes));
    const auto launcher = [&](OpId op, StreamId stream) {
      device->launch(stream, [&, op](NativeStream native) {
        const auto v = views_of(g, op, world.rank(), at);
        if (Communicator* link = links(op)) {
          if (link->rank() == 0)
            link->send(v.reads[0].first, v.reads[0].second, 1, native);
          else
            link->recv(v.writes[0].first, v.writes[0].second, 0, native);
        } else {
          out.ops[op] = compute(op, v);
        }
      });
    };
    ExecutorOptions options;
    options.rank = options.stage = world.rank();
    options.adversarial_seed = adversarial_seed;
    options.on_failure = device_options.on_error;
    Executor executor(g, *device, launcher, options);
    executor.run_step();
    if (!adversarial_seed) {
      EXPECT_EQ(executor.memory().at_peak(Space::device), walk(g, world.rank()).peak.held);
    }
    digest_residents(g, world.rank(), at, out);
  });
  return out;
}

TEST(Executor, AnyLawfulOrderGivesTheInterpretersBits) {
  for (std::uint64_t seed = 0; seed < 8; ++seed)
    for (const int stages : {1, 2, 3}) {
      const auto graph = random_graph(seed + 100, stages, 100);
      const auto expected = interpret(graph, stages);
      for (int i = 0; i < 3; ++i)
        ASSERT_EQ(execute(graph, stages, std::nullopt), expected) << "seed " << seed;
      for (std::uint64_t order = 0; order < 5; ++order)
        ASSERT_EQ(execute(graph, stages, order), expected) << "seed " << seed << " order " << order;
    }
}

// Mutants: each dependency that is not implied by others is taken away in turn. Some random order must show
// it.
TEST(Executor, AdversarialOrdersKillEveryMissingDependency) {
  int mutants = 0, killed = 0;
  const auto graph = random_graph(7, 1, 30);
  const auto after = reachability(graph);
  const auto expected = interpret(graph, 1);
  for (OpId op = 0; op < graph.ops.size(); ++op)
    for (std::uint32_t d = 0; d < graph.ops[op].dep_count; ++d) {
      ExecutionGraph mutant = graph;
      const OpId dep = graph.deps_of(graph.ops[op])[d];
      std::swap(mutant.deps[graph.ops[op].dep_begin + d],
                mutant.deps[graph.ops[op].dep_begin + graph.ops[op].dep_count - 1U]);
      --mutant.ops[op].dep_count;
      if (reachability(mutant)[op][dep]) continue;  // implied by others: the same graph
      ++mutants;
      bool dead = false;
      for (std::uint64_t seed = 0; seed < 200 && !dead; ++seed) dead = execute(mutant, 1, seed) != expected;
      killed += dead;
      EXPECT_TRUE(dead) << "op " << op << " without its dependency on " << dep;
    }
  EXPECT_GT(mutants, 5);
  EXPECT_EQ(killed, mutants);
}

TEST(Executor, MeasuredSpansRespectDependencies) {
  const auto graph = random_graph(3, 1, 60);
  const auto device = make_cpu_device({});
  Executor executor(graph, *device, [&](OpId, StreamId s) { device->launch(s, [](NativeStream) {}); }, {});
  Spans got(graph.ops.size());
  executor.run_step(&got);
  executor.run_step(&got);  // a second step starts its clock anew
  for (OpId op = 0; op < graph.ops.size(); ++op) {
    EXPECT_GE(got.spans[op].start, 0);
    EXPECT_GE(got.spans[op].end, got.spans[op].start);
    EXPECT_LT(got.spans[op].end, 5);
    for (const OpId dep : graph.deps_of(graph.ops[op])) EXPECT_LE(got.spans[dep].end, got.spans[op].start);
  }
}

}  // namespace
}  // namespace sextant::testing

// System: communicators that keep a list of what passes through them, under layouts of every kind. Expectation: in a step,
// each rank makes exactly the collectives and transfers of the graph, of exactly the predicted bytes. Mutants of what
// passes (a collective dropped, a shard rolled by one element, a word of a transfer lost) must show in the numbers.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "runtime/execution/rank_groups.hpp"
#include "tests/runtime/small_run.hpp"

namespace sextant::testing {
namespace {

using Exchange = std::tuple<std::string, int, std::int64_t>;  // kind, members, bytes
using Traffic = std::map<Exchange, int>;

enum class Mutation { none, drop_all_reduce, drop_reduce_scatter, roll_all_gather, cut_transfer };

struct Tap {
  std::mutex mutex;
  std::map<int, Traffic> by_rank;  // of the world
  Mutation mutation = Mutation::none;
  std::atomic<int> mutated{0};
  void add(int rank, const char* kind, int members, std::int64_t bytes) {
    const std::lock_guard lock(mutex);
    ++by_rank[rank][{kind, members, bytes}];
  }
};

class Tapped final : public Communicator {
 public:
  enum class Use { world, host, step };
  Tapped(std::unique_ptr<Communicator> inner, Tap& tap, int world_rank, Use use = Use::world)
      : inner_(std::move(inner)), tap_(tap), world_rank_(world_rank), use_(use) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }

  void all_reduce(const void* in, void* out, std::int64_t count, Dtype dtype, Reduction reduction,
                  NativeStream stream) override {
    note("all_reduce", count * size_bytes(dtype));
    const auto* from = static_cast<const char*>(in);
    const std::vector<char> mine(from, from + count * size_bytes(dtype));
    inner_->all_reduce(in, out, count, dtype, reduction, stream);
    if (mutates(Mutation::drop_all_reduce)) std::memcpy(out, mine.data(), mine.size());
  }
  void reduce_scatter(const void* in, void* out, std::span<const std::int64_t> counts, Dtype dtype,
                      Reduction reduction, NativeStream stream) override {
    std::int64_t all = 0;
    for (const std::int64_t n : counts) all += n;
    note("reduce_scatter", all * size_bytes(dtype));
    const auto own = counts[static_cast<std::size_t>(rank())] * size_bytes(dtype);
    const std::vector<char> mine(static_cast<const char*>(in) + own * rank(),
                                 static_cast<const char*>(in) + own * (rank() + 1));
    inner_->reduce_scatter(in, out, counts, dtype, reduction, stream);
    if (mutates(Mutation::drop_reduce_scatter)) std::memcpy(out, mine.data(), mine.size());
  }
  void all_gather(const void* in, void* out, std::span<const std::int64_t> bytes,
                  NativeStream stream) override {
    std::int64_t all = 0;
    for (const std::int64_t n : bytes) all += n;
    note("all_gather", all);
    inner_->all_gather(in, out, bytes, stream);
    if (!mutates(Mutation::roll_all_gather)) return;
    // The first slice of another rank, by one element.
    const std::int64_t first = rank() == 0 ? bytes[0] : 0, n = bytes[rank() == 0 ? 1 : 0];
    if (n > 4)
      std::rotate(static_cast<char*>(out) + first, static_cast<char*>(out) + first + 4,
                  static_cast<char*>(out) + first + n);
  }
  void broadcast(void* data, std::int64_t bytes, int root, NativeStream stream) override {
    inner_->broadcast(data, bytes, root, stream);
  }
  void send(const void* data, std::int64_t bytes, int peer, NativeStream stream) override {
    note("send", bytes);
    inner_->send(data, bytes, peer, stream);
  }
  void recv(void* data, std::int64_t bytes, int peer, NativeStream stream) override {
    inner_->recv(data, bytes, peer, stream);
    if (mutates(Mutation::cut_transfer, 1)) std::memset(data, 0, 4);
  }
  void barrier(NativeStream stream) override { inner_->barrier(stream); }
  std::unique_ptr<Communicator> group(std::span<const int> ranks) override {
    // The first group of a rank is its trainer's own, for what the host says between steps.
    return std::make_unique<Tapped>(inner_->group(ranks), tap_, world_rank_,
                                    groups_++ == 0 ? Use::host : Use::step);
  }
  void abort(std::string_view reason) noexcept override { inner_->abort(reason); }

 private:
  void note(const char* kind, std::int64_t bytes) {
    if (use_ == Use::step && size() > 1) tap_.add(world_rank_, kind, size(), bytes);
  }
  bool mutates(Mutation m, int where = 0) {
    if (tap_.mutation != m || use_ != Use::step || size() < 2 || rank() != where) return false;
    return tap_.mutated.fetch_add(1) == 0;  // once in the run
  }

  std::unique_ptr<Communicator> inner_;
  Tap& tap_;
  int world_rank_;
  Use use_;
  int groups_ = 0;
};

SmallResult tapped_run(const std::string& key, SmallRun how, Tap& tap) {
  how.around = [&](std::span<std::unique_ptr<Communicator>> world) {
    for (int rank = 0; auto& c : world) c = std::make_unique<Tapped>(std::move(c), tap, rank++);
  };
  return small_run(parse_plan_key(key), how);
}

Traffic predicted(const ExecutionGraph& graph, const RankCoord& at) {
  Traffic traffic;
  for (const Op& op : graph.ops) {
    const Work& work = graph.works[op.work];
    if (op.role == OpRole::sp_reduce && op.stage == at.pp) {  // one call for the weights of each norm
      for (const Operand& o : graph.operands_of(op))
        if (o.use == OperandUse::gradient && !o.write)
          ++traffic[{"all_reduce", graph.plan.tp, o.end - o.begin}];
      continue;
    }
    if (const auto* c = std::get_if<CollectiveWork>(&work); c && op.stage == at.pp && c->group.size > 1)
      ++traffic[{std::string(name(c->kind)), c->group.size, c->bytes.v}];
    if (const auto* t = std::get_if<TransferWork>(&work); t && op.stage == at.pp)
      ++traffic[{"send", 2, t->bytes.v}];
  }
  return traffic;
}

constexpr const char* kLayouts[] = {
    "dp4.z0.mbs1.b4K",   "dp4.z1.mbs1.b4K",      "dp4.z3.mbs1.sd2.full", "tp2.sp.dp2.z2.mbs1",
    "tp4.mbs2",          "tp2.sp.cp2.mbs2.full", "pp4.mbs1.zb",          "tp2.sp.pp2.vp2.dp2.z1.mbs1.oo50",
    "cp2.dp2.z3.mbs2.po"};

std::string text(const Traffic& traffic) {
  std::string all;
  for (const auto& [e, n] : traffic)
    all += std::get<0>(e) + " of " + std::to_string(std::get<1>(e)) + ", " + std::to_string(std::get<2>(e)) +
           " B: " + std::to_string(n) + "\n";
  return all;
}

TEST(Traffic, EveryRankExchangesWhatWasPredicted) {
  for (const char* key : kLayouts) {
    SmallRun how{.steps = 2};
    Tap one, two;  // the update of a step is made by the next; the second step has all
    const ParallelPlan plan = parse_plan_key(key);
    for (const Problem& p : small_refuses(plan, how)) ADD_FAILURE() << key << ": " << to_string(p);
    if (HasFailure()) return;
    tapped_run(key, how, two);
    how.steps = 1;
    tapped_run(key, how, one);
    const ExecutionGraph graph = small_graph(plan, how);
    const RankGrid grid(plan);
    for (int rank = 0; rank < plan.world(); ++rank) {
      Traffic step = two.by_rank[rank];
      for (const auto& [exchange, n] : one.by_rank[rank]) step[exchange] -= n;
      std::erase_if(step, [](const auto& e) { return e.second == 0; });
      EXPECT_EQ(text(step), text(predicted(graph, grid.coord(rank)))) << key << ", rank " << rank;
      if (HasFailure()) return;
    }
    EXPECT_FALSE(one.by_rank[0].empty()) << key;
  }
}

TEST(Traffic, WhatGoesWrongShowsInTheNumbers) {
  const struct {
    Mutation mutation;
    const char* key;
  } mutants[] = {{Mutation::drop_all_reduce, "tp4.mbs2"},
                 {Mutation::drop_reduce_scatter, "dp4.z1.mbs1.b4K"},
                 {Mutation::drop_reduce_scatter, "tp2.sp.dp2.z2.mbs1"},
                 {Mutation::roll_all_gather, "dp4.z1.mbs1.b4K"},
                 {Mutation::roll_all_gather, "dp4.z3.mbs1.sd2.full"},
                 {Mutation::roll_all_gather, "tp2.sp.cp2.mbs2.full"},
                 {Mutation::cut_transfer, "pp4.mbs1.zb"}};
  for (const auto& [mutation, key] : mutants) {
    const SmallRun how{.dtype = Dtype::fp64, .steps = 2};
    Tap good, bad;
    bad.mutation = mutation;
    const SmallResult right = tapped_run(key, how, good), wrong = tapped_run(key, how, bad);
    EXPECT_GE(bad.mutated, 1) << key << ": the mutant never acted";
    EXPECT_TRUE(right.state != wrong.state) << key;
    EXPECT_TRUE(right.state == tapped_run(key, how, good).state) << key << ": control";
  }
}

}  // namespace
}  // namespace sextant::testing

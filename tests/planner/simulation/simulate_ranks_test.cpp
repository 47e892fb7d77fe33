// Every rank simulated, against one representative rank a stage and against a graph expanded rank by rank.
#include "planner/simulation/simulate_ranks.hpp"

#include <cmath>
#include <map>

#include <gtest/gtest.h>

#include "tests/support/specs.hpp"

namespace sextant {
namespace {

using namespace testing;

const char* const kKeys[] = {
    "pp4.mbs1",
    "tp2.pp2.dp2.z1.mbs1.b20K",
    "tp2.cp2.dp2.z1.mbs1",
    "pp2.vp2.dp2.mbs1.nogr",
    "tp2.pp2.mbs1.zb",
    "dp4.z3.sd2.mbs1",
    "pp2.dp4.z1.sd2.mbs1",
    "dp2.z3.mbs1.po.oo50",
    "pp2.dp2.z1.mbs1.gpipe",
    "tp2.mbs1.ao1.nosp",
    "tp2.cp2.pp2.dp2.z1.mbs1.ax-pp-dp-tp-cp",
};

ExecutionGraph small(const char* key, bool tied = false) { return lower_tiny(key, 4, 8, {}, false, tied); }

TEST(SimulateRanks, EqualRanksAreTheRepresentative) {
  for (const char* key : kKeys)
    for (const bool tied : {false, true}) {
      const auto g = small(key, tied);
      const auto costs = price(g, HashedCost{});
      for (const double comm_slows_compute : {0.0, 0.5}) {
        SimulateOptions options;
        options.comm_slows_compute = comm_slows_compute;
        const Timeline one = simulate(g, costs, options);
        std::vector<int> ranks(static_cast<std::size_t>(g.plan.world()));
        for (std::size_t r = 0; r < ranks.size(); ++r) ranks[r] = static_cast<int>(r);
        const RankTimeline all = simulate_ranks(g, costs, {}, options, ranks);
        EXPECT_EQ(all.makespan, one.makespan()) << key;
        const RankGrid grid(g.plan);
        for (const auto& rank : all.spans)
          for (OpId i = 0; i < g.ops.size(); ++i) {
            if (g.ops[i].stage != grid.coord(rank.rank).pp || g.ops[i].role == OpRole::norm_reduce) continue;
            ASSERT_EQ(rank.spans[i].end, one.spans[i].end)
                << key << " rank " << rank.rank << " " << op_name(g, i);
          }
      }
    }
}

// The ranks that op `id` of `rank` meets, from the axes alone.
std::vector<int> group_of(const ExecutionGraph& g, const Op& op, int rank) {
  const RankGrid grid(g.plan);
  const RankCoord me = grid.coord(rank);
  const int shards = g.plan.shards() > 1 ? g.plan.shards() : g.plan.replicas();
  std::vector<int> out;
  for (int r = 0; r < g.plan.world(); ++r) {
    const RankCoord c = grid.coord(r);
    const int replica = c.cp + g.plan.cp * c.dp, my_replica = me.cp + g.plan.cp * me.dp;
    bool in = r == rank;
    switch (op.role) {
      case OpRole::tp_gather:
      case OpRole::tp_scatter:
      case OpRole::tp_reduce:
      case OpRole::sp_reduce:
        in = c.pp == me.pp && c.cp == me.cp && c.dp == me.dp;
        break;
      case OpRole::cp_gather:
      case OpRole::cp_scatter:
        in = c.pp == me.pp && c.tp == me.tp && c.dp == me.dp;
        break;
      case OpRole::param_gather:
      case OpRole::grad_reduce:
        in = c.pp == me.pp && c.tp == me.tp && replica / shards == my_replica / shards;
        break;
      case OpRole::grad_replica_reduce:
        in = c.pp == me.pp && c.tp == me.tp && replica % shards == my_replica % shards;
        break;
      case OpRole::norm_reduce:
        in = true;
        break;
      case OpRole::send:
      case OpRole::tied_reduce: {
        const int other = g.lanes[op.lanes[1]].stage == me.pp ? op.stage : g.lanes[op.lanes[1]].stage;
        in = in || (c.pp == other && c.tp == me.tp && c.cp == me.cp && c.dp == me.dp);
        break;
      }
      default:
        break;
    }
    if (in) out.push_back(r);
  }
  return out;
}

// Naive expansion: an event loop over (rank, op), each rank with its own lanes; a meeting starts when all its ranks can.
double expanded(const ExecutionGraph& g, std::span<const OpCost> costs, const std::vector<double>& factor) {
  const RankGrid grid(g.plan);
  const auto mine = [&](const Op& op, int stage) {
    return op.stage == stage || (op.lanes[1] != kNoLane && g.lanes[op.lanes[1]].stage == stage);
  };
  std::map<std::pair<int, LaneId>, double> lane_free;
  std::map<std::pair<int, OpId>, double> ready, end;
  double makespan = 0;
  const auto world_sums = [&] {
    std::vector<OpId> out;
    for (OpId i = 0; i < g.ops.size(); ++i)
      if (g.ops[i].role == OpRole::norm_reduce) out.push_back(i);
    return out;
  }();
  for (OpId i = 0; i < g.ops.size(); ++i) {
    const Op& op = g.ops[i];
    const bool world = op.role == OpRole::norm_reduce;
    for (int rank = 0; rank < g.plan.world(); ++rank) {
      const int stage = grid.coord(rank).pp;
      if (!mine(op, stage)) continue;
      double at = 0;
      for (const LaneId lane : op.lanes)
        if (lane != kNoLane && g.lanes[lane].stage == stage) at = std::max(at, lane_free[{rank, lane}]);
      for (const OpId dep : g.deps_of(op))
        if (mine(g.ops[dep], stage)) at = std::max(at, end.at({rank, dep}));
      ready[{rank, i}] = at;
    }
    if (world && i != world_sums.back()) continue;
    for (const OpId now : world ? world_sums : std::vector<OpId>{i})
      for (int rank = 0; rank < g.plan.world(); ++rank) {
        const Op& o = g.ops[now];
        const int stage = grid.coord(rank).pp;
        if (!mine(o, stage)) continue;
        double start = 0;
        for (const int member : group_of(g, o, rank))
          start = std::max(
              start, world ? ready.at({member, world_sums[static_cast<std::size_t>(grid.coord(member).pp)]})
                           : ready.at({member, now}));
        const bool compute = o.role == OpRole::block || o.role == OpRole::update;
        const double finish =
            start + costs[o.work].duration.v * (compute ? factor[static_cast<std::size_t>(rank)] : 1.0);
        end[{rank, now}] = finish;
        for (const LaneId lane : o.lanes)
          if (lane != kNoLane && g.lanes[lane].stage == stage) lane_free[{rank, lane}] = finish;
        makespan = std::max(makespan, finish);
      }
  }
  return makespan;
}

TEST(SimulateRanks, UnequalRanksAreTheExpandedGraph) {
  for (const char* key : kKeys)
    for (const bool tied : {false, true}) {
      const auto g = small(key, tied);
      const auto costs = price(g, HashedCost{});
      std::vector<double> factor(static_cast<std::size_t>(g.plan.world()));
      for (std::size_t r = 0; r < factor.size(); ++r)
        factor[r] = 1.0 + 0.01 * static_cast<double>((r * 7) % 5);
      EXPECT_DOUBLE_EQ(simulate_ranks(g, costs, factor).makespan.v, expanded(g, costs, factor)) << key;
      std::fill(factor.begin(), factor.end(), 1.0);
      factor.back() = 1.5;
      const double slow = simulate_ranks(g, costs, factor).makespan.v;
      EXPECT_DOUBLE_EQ(slow, expanded(g, costs, factor)) << key;
      EXPECT_GT(slow, simulate(g, costs).makespan().v) << key;
    }
}

// Without communication between stages' ranks before the end, a slow replica delays only itself, and the others wait.
TEST(SimulateRanks, TheSlowRankIsTheOneThatDoesNotWait) {
  const auto g = small("dp4.z1.mbs1");
  const std::vector<double> factor = {1.0, 1.0, 1.2, 1.0};
  const RankTimeline t = simulate_ranks(g, price(g, HashedCost{}), factor);
  for (std::size_t r = 0; r < factor.size(); ++r) {
    if (r == 2)
      EXPECT_EQ(t.waited[r].v, 0.0);
    else
      EXPECT_GT(t.waited[r].v, 0.0) << r;
    EXPECT_EQ(t.finish[r], t.makespan);
  }
}

// One of 4 replicas 20 % slower: the whole step is 20 % slower where compute is all there is, and the representative of
// a stage cannot know.
TEST(SimulateRanks, OneSlowRankHoldsAllBack) {
  const auto g = small("pp2.dp4.mbs1");
  const auto costs = price(g, LayerCost(1, 2));
  std::vector<double> factor(8, 1.0);
  factor[0] = factor[4] = 1.2;  // replica 0 of both stages
  EXPECT_NEAR(simulate_ranks(g, costs, factor).makespan / simulate(g, costs).makespan(), 1.2, 1e-12);
}

// A replica half as fast with half as many micro-batches is done with the others.
TEST(SimulateRanks, FewerMicrobatchesMakeUpForASlowReplica) {
  const auto costs_of = [](const ExecutionGraph& g) { return price(g, LayerCost(1, 2)); };
  for (const char* key : {"dp2.z1.mbs1", "pp2.dp2.z1.mbs1", "tp2.dp2.z0.mbs1", "pp2.vp2.dp2.z1.mbs1"}) {
    const auto even = lower_tiny(key, 4, 12);
    const auto uneven = lower_tiny((std::string(key) + ".ga8-4").c_str(), 4, 12);
    std::vector<double> factor;
    const RankGrid grid(even.plan);
    for (int rank = 0; rank < even.plan.world(); ++rank) factor.push_back(grid.coord(rank).dp == 1 ? 2 : 1);
    const double slow = simulate_ranks(even, costs_of(even), factor).makespan.v,
                 sound = simulate(even, costs_of(even)).makespan().v,
                 balanced = simulate_ranks(uneven, costs_of(uneven), factor).makespan.v;
    EXPECT_NEAR(slow / sound, 2, 1e-9) << key << ", control";
    EXPECT_LT(balanced, 0.75 * slow) << key;  // 8 of 12 micro-batches, and a pipeline that fills
    // What the planner simulates, one rank a stage with the most micro-batches: hardly less, and not much more.
    SimulateOptions one;
    one.stage_compute_factor.assign(static_cast<std::size_t>(even.plan.pp),
                                    2 * share_of_most(uneven.plan, uneven.training, 1));
    const double predicted = simulate(uneven, costs_of(uneven), one).makespan().v;
    EXPECT_GT(predicted, 0.98 * balanced) << key;
    EXPECT_LT(predicted, 1.1 * balanced) << key;
  }
}

// A rank half as fast that owns half as much is done with its update with the others.
TEST(SimulateRanks, ASmallerSliceMakesUpForASlowRank) {
  for (const char* key : {"dp4.z1.mbs1", "pp2.dp4.z1.mbs1", "dp4.z2.mbs1", "cp2.dp2.z1.mbs1"}) {
    const auto even = lower_tiny(key, 4, 12);
    const auto uneven = lower_tiny((std::string(key) + ".sw2x3-1").c_str(), 4, 12);
    // Updates alone take time.
    const auto costs = [](const ExecutionGraph& g) {
      std::vector<OpCost> all(g.works.size());
      for (std::size_t w = 0; w < g.works.size(); ++w)
        if (const auto* state = std::get_if<StateWork>(&g.works[w]);
            state && state->kind == StateKind::update)
          all[w].duration = Seconds(static_cast<double>(state->elements));
      return all;
    };
    const RankGrid grid(even.plan);
    std::vector<double> factor;
    for (int rank = 0; rank < even.plan.world(); ++rank)
      factor.push_back(shard_of(even.plan, grid.coord(rank)) == 3 ? 2 : 1);
    const double slow = simulate_ranks(even, costs(even), factor).makespan.v,
                 sound = simulate(even, costs(even)).makespan().v,
                 balanced = simulate_ranks(uneven, costs(uneven), factor).makespan.v;
    EXPECT_NEAR(slow / sound, 2, 1e-9) << key << ", control";
    EXPECT_NEAR(balanced / sound, 8.0 / 7, 0.01) << key;  // two sevenths each in place of a quarter
    EXPECT_NEAR(simulate(uneven, costs(uneven)).makespan().v, balanced, 1e-9 * balanced) << key;
  }
}

TEST(SimulateRanks, WantsAFactorForEachRank) {
  const auto g = small("dp4.z1.mbs1");
  EXPECT_ANY_THROW(simulate_ranks(g, price(g, HashedCost{}), std::vector<double>{1.0, 1.0}));
}

}  // namespace
}  // namespace sextant

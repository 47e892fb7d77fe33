// Plan keys, layer ranges, the grid of ranks, and what makes a plan lawful.
#include <set>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "core/plan/parallel_plan.hpp"
#include "core/plan/plan_key.hpp"
#include "tests/core/plan/refusal.hpp"
#include "tests/support/arbitrary.hpp"
#include "tests/support/specs.hpp"

namespace sextant {
namespace {

std::string message_of(std::string_view key) {
  try {
    parse_plan_key(key);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "accepted";
}

TEST(PlanKey, ReadsAndWritesTheDocumentedExample) {
  const ParallelPlan p = parse_plan_key("tp4.pp8.vp5.cp1.dp2.z1.mbs1.sel");
  EXPECT_EQ(p.tp, 4);
  EXPECT_EQ(p.pp, 8);
  EXPECT_EQ(p.vp, 5);
  EXPECT_EQ(p.dp, 2);
  EXPECT_EQ(p.zero_stage, 1);
  EXPECT_EQ(p.recompute.kind, RecomputeKind::selective);
  EXPECT_TRUE(p.sequence_parallel);                      // on by default with tp > 1
  EXPECT_EQ(p.schedule, PipelineSchedule::interleaved);  // implied by vp > 1
  EXPECT_EQ(plan_key(p), "tp4.pp8.vp5.cp1.dp2.z1.mbs1.sel");
}

TEST(PlanKey, WithoutDpItFillsTheCluster) {
  const StackSpec stack;
  EXPECT_EQ(fill_plan_key("tp2.pp1.z1.mbs1", stack, 64).plan.dp, 32);
  EXPECT_EQ(fill_plan_key("tp2.cp2.pp4", stack, 64).plan.dp, 4);
  EXPECT_TRUE(fill_plan_key("tp2.pp1.z1.mbs1", stack, 64).notes.empty());
  const FilledPlan odd = fill_plan_key("tp3.pp2", stack, 64);
  ASSERT_TRUE(odd.indivisible);
  EXPECT_EQ(
      to_string(*odd.indivisible),
      "plan key tp3.pp2: found no dp, and tp * cp * pp = 6, expected a divisor of the cluster's 64 GPUs; "
      "state dp, at most 10, to leave GPUs idle");
  // A stated dp stays, and says what it leaves idle.
  const FilledPlan two = fill_plan_key("TP2.DP1", stack, 64);
  EXPECT_EQ(two.plan.world(), 2);
  EXPECT_EQ(two.notes, (std::vector<std::string>{"2 of the cluster's 64 GPUs are used; 62 are idle"}));
  EXPECT_EQ(fill_plan_key("tp128", stack, 64).plan.world(), 128) << "too large, not indivisible";
  EXPECT_FALSE(fill_plan_key("tp128", stack, 64).indivisible);
}

TEST(PlanKey, PartsComeInAnyOrderAndCase) {
  EXPECT_EQ(parse_plan_key("SEL.mbs1.Z1.dp2.vp5.PP8.tp4"), parse_plan_key("tp4.pp8.vp5.cp1.dp2.z1.mbs1.sel"));
  EXPECT_EQ(parse_plan_key("tp2").sequence_parallel, true);
  EXPECT_EQ(parse_plan_key("tp2.nosp").sequence_parallel, false);
}

TEST(PlanKey, EveryOptionalPartHasItsSpelling) {
  ParallelPlan p;
  p.tp = 2;
  p.pp = 4;
  p.dp = 4;
  p.schedule = PipelineSchedule::zero_bubble;
  p.zero_stage = 3;
  p.shard_degree = 2;
  p.recompute = {RecomputeKind::full, 12};
  p.optimizer_offload = 0.125;
  p.parameter_offload = true;
  p.activation_offload = 4;
  p.offload_horizon = 2;
  p.bucket_elements = 40'000'000;
  p.last_bucket_split = 4;
  p.overlap_grad_reduce = p.overlap_param_gather = false;
  p.overlap_tp = true;
  p.axis_order = {Axis::tp, Axis::dp, Axis::pp, Axis::cp};
  p.chunks = {{0, 11}, {11, 13}, {24, 13}, {37, 11}};
  const std::string key =
      "tp2.pp4.vp1.cp1.dp4.z3.mbs1.full12.nosp.zb.sd2.oo12p5.po.ao4.hz2.b40M.lb4.nogr.nopg.tpo."
      "ax-tp-dp-pp-cp.L11-13-13-11";
  EXPECT_EQ(plan_key(p), key);
  EXPECT_EQ(parse_plan_key(key), p);
}

TEST(PlanKey, ReplicasMayHaveUnequallyManyMicrobatches) {
  const ParallelPlan p = parse_plan_key("dp8.z1.mbs1.ga9x7-5");
  EXPECT_EQ(p.replica_microbatches, (std::vector<int>{9, 9, 9, 9, 9, 9, 9, 5}));
  EXPECT_EQ(plan_key(p), "tp1.pp1.vp1.cp1.dp8.z1.mbs1.ga9x7-5");
  for (const char* wrong : {"ga", "ga-", "ga3-", "gax2", "ga9x0", "ga9999999x999999"})
    EXPECT_NE(message_of(std::string("dp8.") + wrong), "accepted") << wrong;
}

TEST(PlanKey, ShardsMayBeUnequal) {
  const ParallelPlan p = parse_plan_key("cp2.dp4.z1.sd4.sw2x3-1");
  EXPECT_EQ(p.shard_weights, (std::vector<int>{2, 2, 2, 1}));
  EXPECT_EQ(plan_key(p), "tp1.pp1.vp1.cp2.dp4.z1.mbs1.sd4.sw2x3-1");
  EXPECT_EQ(shard_of(p, {.cp = 1, .dp = 3}), 3);
  EXPECT_EQ(shard_of(p, {.cp = 0, .dp = 2}), 0) << "the second group";
  const auto share = [&](const RankCoord& at) {
    return shares_of_largest(p)[static_cast<std::size_t>(shard_of(p, at))];
  };
  EXPECT_EQ(share({.cp = 1, .dp = 1}), 0.5);
  EXPECT_EQ(share({.cp = 0, .dp = 1}), 1);
  for (const char* wrong : {"sw", "sw-", "sw3-", "swx2", "sw9x0", "sw65-1", "sw2-1.sw2-1"})
    EXPECT_NE(message_of(std::string("dp2.z1.") + wrong), "accepted") << wrong;
}

TEST(PlanRules, ShardWeightsAreOneForEachShardAndDiffer) {
  const auto wrong = [&](const char* key) {
    const auto problems = validate(parse_plan_key(key), testing::tiny_model(4), testing::tiny_training(8));
    return problems.empty() ? std::string("lawful") : to_string(problems.front());
  };
  EXPECT_EQ(wrong("dp4.z1.sw2x3-1"), "lawful");
  EXPECT_EQ(wrong("dp4.z3.sd2.sw2-1"), "lawful");
  for (const auto& [key, reason] : {std::pair{"dp4.z0.sw2x3-1", "none where nothing is sharded"},
                                    {"dp4.z3.sd1.sw2x3-1", "none where nothing is sharded"},
                                    {"dp4.z1.sw2-1", "one number for each of the 4 shards"},
                                    {"dp4.z3.sd2.sw2x3-1", "one number for each of the 2 shards"},
                                    {"dp4.z1.sw1x4", "numbers that differ"},
                                    {"dp4.z1.sw4x3-2", "numbers without the common divisor 2"}})
    EXPECT_NE(wrong(key).find(reason), std::string::npos) << wrong(key);
}

TEST(PlanKey, WhatIsNoPartOfALayoutIsToldWhereToSay) {
  for (const auto& [key, hint] : {std::pair{"tp2.ep4", "no experts"},
                                  {"tp2.gas8", "--global-batch"},
                                  {"tp2.gbs512", "--global-batch N"},
                                  {"tp2.seq8192", "--seq-len"},
                                  {"tp2.fp8", "--precision fp8"},
                                  {"tp2.recompute", "sel is selective"},
                                  {"tp2.offload", "oo100"},
                                  {"hsdp8", "sd8"},
                                  {"tp2.ppp4", "did you mean pp4?"}})
    EXPECT_NE(message_of(key).find(hint), std::string::npos) << message_of(key);
  EXPECT_EQ(message_of("tp2.ep4").find("did you mean"), std::string::npos);
}

TEST(PlanKey, NoCharacterIsReadOver) {
  for (const char* wrong :
       {"L8-", "L8x", "L8x4-", "ax5tp-cp-dp-pp", "ax/tp-cp-dp-pp", "ax-tp-cp-dp-pp-", "oo50p", "oo50%",
        "full12-", "tp4-", "tp+4", "z1a", "b40Mb", "mbs2.", "nogr1", "sel2"})
    EXPECT_NE(message_of(wrong), "accepted") << wrong;
  for (const char* right : {"L8x4", "ax-tp-cp-dp-pp", "oo50", "oo50p5", "full12", "b40M"})
    EXPECT_EQ(message_of(right), "accepted") << right;
}

TEST(PlanKey, ABatchThatReplicasDoNotDivideMayBeDealtUnequally) {
  const auto hint = [](const char* stack, const char* key) {
    std::vector<Problem> problems = {{"", "micro_batch * dp", "5", "a divisor of the global batch 128", ""}};
    hint_unequal_replicas(problems,
                          load_stack(stack, std::filesystem::path(SEXTANT_SOURCE_DIR) / "tools/presets"),
                          parse_plan_key(key), 128);
    return problems[0].hint;
  };
  EXPECT_NE(hint("sextant", "dp5.z1.mbs1").find("add ga26x3-25-25 to the key"), std::string::npos)
      << hint("sextant", "dp5.z1.mbs1");
  EXPECT_NE(hint("sextant", "dp5.z3.mbs1").find("with z1"), std::string::npos);
  EXPECT_EQ(hint("megatron-core", "dp5.z1.mbs1"), "") << "no framework has them";
  EXPECT_EQ(hint("sextant", "dp5.z1.mbs3"), "") << "micro-batches do not divide it";
  EXPECT_EQ(hint("sextant", "dp200.z1.mbs1"), "") << "some would have none";
}

TEST(PlanKey, RunsOfEqualChunksAreJoined) {
  ParallelPlan p;
  for (int c = 0, first = 0; c < 8; ++c) {
    p.chunks.push_back({first, c == 0 ? 7 : 8});
    first += p.chunks.back().count;
  }
  EXPECT_TRUE(plan_key(p).ends_with(".L7-8x7")) << plan_key(p);
  EXPECT_EQ(parse_plan_key(plan_key(p)), p);
}

RC_GTEST_PROP(PlanKey, RoundTripsExactly, ()) {
  const ParallelPlan p = arbitrary::plan();
  const std::string key = plan_key(p);
  RC_LOG() << key;
  RC_ASSERT(parse_plan_key(key) == p);
}

// Negative control of the property: a key that loses a field would be seen.
TEST(PlanKey, DifferentPlansHaveDifferentKeys) {
  ParallelPlan a, b;
  b.overlap_param_gather = false;
  EXPECT_NE(plan_key(a), plan_key(b));
  EXPECT_NE(parse_plan_key(plan_key(a)), b);
}

TEST(PlanKey, ErrorsNameTheWrongPart) {
  EXPECT_EQ(message_of("tp4.pq8"),
            "plan key tp4.pq8: found the unknown part 'pq8', expected parts such as "
            "tp4.pp8.vp5.cp1.dp2.z1.mbs1.sel; "
            "did you mean pp8?");
  EXPECT_EQ(message_of("tp4.selx"),
            "plan key tp4.selx: found the unknown part 'selx', expected parts such as "
            "tp4.pp8.vp5.cp1.dp2.z1.mbs1.sel; "
            "did you mean sel?");
  EXPECT_EQ(message_of("tp0"), "plan key tp0: found 'tp0', expected tp and a whole number from 1 to 1048576");
  EXPECT_EQ(message_of("tp4.z5"), "plan key tp4.z5: found 'z5', expected z and a whole number from 0 to 3");
  EXPECT_EQ(message_of("tp4.tp2"), "plan key tp4.tp2: found 'tp2', expected tp only once");
  EXPECT_EQ(message_of("sp.nosp"), "plan key sp.nosp: found 'nosp', expected sp only once");
  EXPECT_NE(message_of("tp4..pp2"), "accepted");
  EXPECT_NE(message_of(""), "accepted");
  EXPECT_NE(message_of("oo101"), "accepted");
  EXPECT_NE(message_of("b0"), "accepted");
  EXPECT_NE(message_of("b99999999999999G"), "accepted");
  EXPECT_NE(message_of("ax-tp-tp-dp-pp"), "accepted");
  EXPECT_NE(message_of("L3-"), "accepted");
  EXPECT_NE(message_of("L1x99999999"), "accepted");
  EXPECT_NE(message_of("tp1000000.pp1000000"), "accepted");
  EXPECT_NE(message_of("pp1000000.vp1000000"), "accepted");
}

TEST(PlanKey, AllWrongPartsAreReportedTogether) {
  try {
    parse_plan_key("tpx.pp8.zz.dp0");
    FAIL() << "accepted";
  } catch (const ConfigError& e) {
    EXPECT_EQ(e.problems().size(), 3U) << e.what();
  }
}

TEST(LayerRanges, FirstChunksTakeTheRemainder) {
  ParallelPlan p;
  p.pp = 4;
  p.vp = 2;
  p.schedule = PipelineSchedule::interleaved;
  const auto ranges = layer_ranges(p, 126);  // Llama-3.1-405B: 126 = 8 * 15 + 6
  ASSERT_EQ(ranges.size(), 8U);
  EXPECT_EQ(ranges[0], (LayerRange{0, 16}));
  EXPECT_EQ(ranges[5], (LayerRange{80, 16}));
  EXPECT_EQ(ranges[6], (LayerRange{96, 15}));
  EXPECT_EQ(ranges[7], (LayerRange{111, 15}));
}

TEST(LayerRanges, ThePlansOwnChunksWin) {
  ParallelPlan p = parse_plan_key("pp4.L11-13-13-11");
  EXPECT_EQ(layer_ranges(p, 48), p.chunks);
  EXPECT_EQ(p.chunks[3], (LayerRange{37, 11}));
}

TEST(Microbatches, AreZeroWhenTheBatchDoesNotDivide) {
  TrainingSpec t;
  t.global_batch = 96;
  ParallelPlan p;
  p.dp = 4;
  p.micro_batch = 2;
  EXPECT_EQ(microbatches(p, t), 12);
  p.dp = 5;
  EXPECT_EQ(microbatches(p, t), 0);
}

TEST(RankGrid, OrdersAxesInnermostFirst) {
  const RankGrid grid(parse_plan_key("tp2.cp3.dp4.pp5"));
  EXPECT_EQ(grid.stride(Axis::tp), 1);
  EXPECT_EQ(grid.stride(Axis::cp), 2);
  EXPECT_EQ(grid.stride(Axis::dp), 6);
  EXPECT_EQ(grid.stride(Axis::pp), 24);
  EXPECT_EQ(grid.coord(1 + 2 * 2 + 6 * 3 + 24 * 4), (RankCoord{1, 2, 3, 4}));
  EXPECT_EQ(grid.group({1, 0, 2, 1}, {Axis::cp, Axis::dp}),
            (std::vector<int>{25, 27, 29, 31, 33, 35, 37, 39, 41, 43, 45, 47}));
}

TEST(RankGrid, AxesOfOneRankDoNotChangeAnOrder) {
  const AxisOrder usual = RankDegrees{}.order, stages_inside = {Axis::tp, Axis::cp, Axis::pp, Axis::dp};
  EXPECT_TRUE(same_order(parse_plan_key("tp2.cp2.pp2.dp2.ax-tp-cp-pp-dp"), stages_inside));
  EXPECT_FALSE(same_order(parse_plan_key("tp2.cp2.pp2.dp2.ax-tp-cp-pp-dp"), usual));
  EXPECT_TRUE(same_order(parse_plan_key("tp2.cp1.pp2.dp2.ax-cp-tp-pp-dp"), stages_inside));
  EXPECT_TRUE(same_order(parse_plan_key("tp2.cp1.pp2.dp1.ax-dp-tp-cp-pp"), usual));
  EXPECT_FALSE(same_order(parse_plan_key("tp2.cp1.pp2.dp1.ax-pp-tp-cp-dp"), usual));
  EXPECT_TRUE(same_order(RankDegrees{}, stages_inside));
  EXPECT_EQ(order_text(stages_inside), "tp-cp-pp-dp");
}

RC_GTEST_PROP(RankGrid, RanksAndCoordinatesAreABijection, ()) {
  ParallelPlan p = arbitrary::plan();
  p.dp = arbitrary::upto(1, 8);
  const RankGrid grid(p);
  std::set<int> seen;
  for (int pp = 0; pp < p.pp; ++pp)
    for (int dp = 0; dp < p.dp; ++dp)
      for (int cp = 0; cp < p.cp; ++cp)
        for (int tp = 0; tp < p.tp; ++tp) {
          const RankCoord c{tp, cp, dp, pp};
          const int rank = grid.rank(c);
          RC_ASSERT(rank >= 0 && rank < p.world());
          RC_ASSERT(seen.insert(rank).second);
          RC_ASSERT(grid.coord(rank) == c);
        }
  // The groups along two axes partition the world.
  std::multiset<int> members;
  for (int rank = 0; rank < p.world(); ++rank) {
    const RankCoord c = grid.coord(rank);
    if (c.cp == 0 && c.dp == 0)
      for (const int r : grid.group(c, {Axis::cp, Axis::dp})) members.insert(r);
  }
  RC_ASSERT(members.size() == seen.size());
  RC_ASSERT(std::set<int>(members.begin(), members.end()) == seen);
}

TEST(ValidatePlan, AcceptsALawfulPlan) {
  EXPECT_TRUE(validate(parse_plan_key("tp4.pp8.vp5.cp1.dp2.z1.mbs1.sel"), llama13b(), {}).empty());
}

// Each row breaks one rule; the key of a reported problem is named beside it.
TEST(ValidatePlan, NamesEveryBrokenRule) {
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"tp3.dp2", "tp"},                    // 40 heads
      {"tp16.dp2", "tp"},                   // 40 heads
      {"dp3", "micro_batch * dp"},          // batch 1024
      {"pp41", "pp * vp"},                  // 40 layers
      {"pp4.L10-10-10", "chunk_layers"},    // three chunks for four stages
      {"pp4.L10-10-10-9", "chunk_layers"},  // one layer missing
      {"pp4.L10-0-20-10", "chunk_layers[1]"},
      {"pp4.vp2.zb", "vp"},
      {"pp4.int", "schedule"},
      {"vp2", "vp"},
      {"zb", "schedule"},
      {"sp", "sequence_parallel"},
      {"tpo", "overlap_tp"},
      {"dp8.z1.sd3", "shard_degree"},
      {"dp8.sd4", "shard_degree"},
      {"full41", "recompute_layers"},
      {"ao41", "activation_offload"},
      {"cp3", "cp"},            // sequence 2048
      {"pp8.vp2.dp256", "pp"},  // 4 micro-batches
  };
  for (const auto& [key, expected] : rows) {
    const auto problems = validate(parse_plan_key(key), llama13b(), {});
    const bool named =
        std::any_of(problems.begin(), problems.end(), [&](const Problem& p) { return p.key == expected; });
    EXPECT_TRUE(named) << key << ": " << (problems.empty() ? "accepted" : to_string(problems.front()));
  }
}

TEST(ValidatePlan, SurvivesAbsurdFields) {
  ParallelPlan p;
  p.tp = 0;
  EXPECT_FALSE(validate(p, llama13b(), {}).empty());
  p.tp = p.pp = p.dp = p.cp = p.vp = 1 << 20;
  EXPECT_FALSE(validate(p, llama13b(), {}).empty());
  p = {};
  p.axis_order = {Axis::tp, Axis::tp, Axis::dp, Axis::pp};
  EXPECT_FALSE(validate(p, llama13b(), {}).empty());
  p = {};
  p.optimizer_offload = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(validate(p, llama13b(), {}).empty());
  EXPECT_TRUE(validate(ParallelPlan{}, ModelSpec{}, {}).empty());  // the model has its own validate
}

}  // namespace
}  // namespace sextant

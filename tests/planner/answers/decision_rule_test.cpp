// The rule of recommendations on layouts whose order is known, and what counts as unusual.
#include "planner/answers/decision_rule.hpp"

#include <gtest/gtest.h>

#include "core/cluster/cluster_files.hpp"
#include "core/runs/evidence.hpp"

namespace sextant {
namespace {

const std::filesystem::path kPresets = SEXTANT_SOURCE_DIR "/tools/presets";

DecisionRule rule() {
  return {.most_oom_chance = 0.05,
          .optimism = 0.5,
          .extrapolation = 1.8,
          .extrapolation_per_doubling = 1.15,
          .told_apart = 0.01,
          .feature_pays = 0.04,
          .most_given_up = 0.05,
          .host_room_pays = 0.1};
}
Judged layout(double step, double oom = 0, int unusual = 0, int kinds = 0, double half_width = 0.1) {
  return {.step = step, .half_width = half_width, .oom_chance = oom, .unusual = unusual, .kinds = kinds};
}
std::size_t chosen(std::vector<Judged> layouts) { return recommended(layouts, rule()); }

TEST(DecisionRule, TheFastestThatSurelyFits) {
  EXPECT_EQ(chosen({layout(10, 0.3), layout(10.4, 0.01), layout(10.45, 0.01, 0, 1)}), 1U);
  EXPECT_EQ(chosen({layout(10, 0.3), layout(10.4, 0.2)}), 1U) << "none is safe: the least risky";
  EXPECT_EQ(chosen({layout(10, 0.0499), layout(10.4, 0.01)}), 0U);
}

TEST(DecisionRule, FeaturesMustPay) {
  EXPECT_EQ(chosen({layout(10, 0, 1), layout(10.3)}), 1U);
  EXPECT_EQ(chosen({layout(10, 0, 1), layout(10.45)}), 0U) << "4.5 % is more than the pairwise error";
  EXPECT_EQ(chosen({layout(10, 0, 1), layout(12)}), 0U) << "no more than 5 % is given up";
  EXPECT_EQ(chosen({layout(10, 0, 2), layout(10, 0, 1), layout(12)}), 1U);
  EXPECT_EQ(chosen({layout(10, 0, 2), layout(10.3, 0, 1), layout(12)}), 1U) << "the second one as well";
  EXPECT_EQ(chosen({layout(10, 0, 2), layout(10.45, 0, 1), layout(12)}), 0U);
  EXPECT_EQ(chosen({layout(10, 0, 2), layout(10.05, 0, 1), layout(10.42)}), 1U) << "it pays with one as well";
  EXPECT_EQ(chosen({layout(10, 0, 2), layout(10.2, 0, 1), layout(10.42)}), 0U);
  EXPECT_EQ(chosen({layout(10, 0, 3), layout(10.3, 0, 1)}), 1U) << "also where nothing is usual";
  EXPECT_EQ(chosen({layout(10, 0, 3), layout(10.45, 0, 1)}), 0U);
}

TEST(DecisionRule, DegreesThatNobodyRanCostTheirUncertainty) {
  Judged far = layout(10, 0, 0, 2), farther = layout(9.9, 0, 0, 2);
  far.doublings = 1;
  farther.doublings = 4;
  EXPECT_EQ(chosen({layout(10.1), far}), 0U);
  EXPECT_EQ(chosen({layout(10.3, 0, 0, 2), far}), 1U) << "3 % are more than what one doubling adds";
  EXPECT_EQ(chosen({layout(10.2, 0, 0, 2), farther}), 0U) << "3 % are less than what four add";
  farther.doublings = 0;
  EXPECT_EQ(chosen({layout(10.2, 0, 0, 2), farther}), 1U);
}

TEST(DecisionRule, OfTiesAsSimpleTheOneThatPeopleRun) {
  Judged rare = layout(10);
  rare.well_known = false;
  EXPECT_EQ(chosen({rare, layout(10.05)}), 1U);
  EXPECT_EQ(chosen({rare, layout(10.05, 0, 0, 1)}), 0U) << "the other is less simple";
  EXPECT_EQ(chosen({rare, layout(10.3)}), 0U) << "no tie";
}

TEST(DecisionRule, AnOptimizerInTwoPlacesIsLessSimple) {
  const ClusterSpec cluster = load_cluster("8x8xh100", kPresets);
  const auto kinds = [&](const char* key) { return judged(parse_plan_key(key), 32, cluster, {}).kinds; };
  EXPECT_EQ(kinds("tp4.pp4.dp1.mbs1.oo100"), 2);
  EXPECT_EQ(kinds("tp4.pp4.dp1.mbs1.oo97"), 3);
}

TEST(DecisionRule, WhatNobodyMeasuredMustGainMoreThanBothIntervals) {
  Judged unmeasured = layout(10, 0, 1, 0, 0.2);
  unmeasured.like_runs = LikeRuns::of_others;
  EXPECT_EQ(chosen({unmeasured, layout(12)}), 1U) << "the root of 0.2^2 + 0.1^2 is 0.22";
  EXPECT_EQ(chosen({unmeasured, layout(12.5)}), 0U);
  EXPECT_EQ(chosen({unmeasured}), 0U) << "there is nothing else";
}

TEST(DecisionRule, TheSimplestOfWhatCannotBeToldApart) {
  EXPECT_EQ(chosen({layout(10, 0, 0, 3), layout(10.05, 0, 0, 1)}), 1U);
  EXPECT_EQ(chosen({layout(10, 0, 0, 3), layout(10.2, 0, 0, 1)}), 0U);
}

TEST(DecisionRule, WhatIsKnownBetterAndWhatWasMeasuredWins) {
  EXPECT_EQ(chosen({layout(10, 0, 0, 0, 0.2), layout(10.3, 0, 0, 0, 0.1)}), 1U);
  EXPECT_EQ(chosen({layout(10, 0, 0, 0, 0.2), layout(10.3, 0, 0, 0, 0.2)}), 0U);
  Judged unmeasured = layout(10);
  unmeasured.like_runs = LikeRuns::of_others;
  EXPECT_EQ(chosen({unmeasured, layout(10.3)}), 1U);
  Judged of_nobody = layout(10);
  of_nobody.like_runs = LikeRuns::none;
  EXPECT_EQ(chosen({of_nobody, unmeasured}), 1U);
}

TEST(DecisionRule, WhatIsPossibleOnPaperAloneIsNotOffered) {
  Judged paper = layout(8);
  paper.offered = false;
  EXPECT_EQ(chosen({paper, layout(10)}), 1U);
  EXPECT_EQ(chosen({paper}), 0U);
}

TEST(DecisionRule, RoomOnTheHostMayCostALittle) {
  Judged full = layout(10, 0, 1), risky = layout(9, 0.2, 1);
  full.room_on_host = risky.room_on_host = false;
  EXPECT_EQ(chosen({full, layout(10.9, 0, 1)}), 1U);
  EXPECT_EQ(chosen({full, layout(11.1, 0, 1)}), 0U);
  EXPECT_EQ(chosen({full, layout(10.9, 0.2, 1)}), 0U) << "the device's memory counts for more";
  EXPECT_EQ(chosen({full}), 0U) << "there is nothing else";
  EXPECT_EQ(chosen({risky, layout(9.5, 0.3, 1)}), 0U);
}

TEST(DecisionRule, UnusualFeatures) {
  const ClusterSpec cluster = load_cluster("8x8xh100", kPresets);
  StackCapabilities can;
  const auto of = [&](const char* key, int layers) {
    return unusual_features(parse_plan_key(key), layers, cluster, can);
  };
  EXPECT_TRUE(of("tp8.pp4.vp2.dp2.z1.mbs1.sel", 32).empty());
  EXPECT_TRUE(of("tp4.pp32.vp2.cp4.dp2.z1.mbs1.L1-2x62-1", 126).empty()) << "embedding and head are counted";
  EXPECT_EQ(of("pp16.vp8.dp2.mbs1.L0-1x126-0", 126),
            std::vector<std::string>{"embedding and head alone in a chunk"});
  can.usual_end_layers = 1;
  EXPECT_TRUE(of("pp16.vp8.dp2.mbs1.L0-1x126-0", 126).empty()) << "what the framework makes by itself";
  can.usual_end_layers = 0;
  EXPECT_EQ(of("tp2.pp4.dp8.mbs1.ax-tp-cp-pp-dp", 32), std::vector<std::string>{"its own order of axes"});
  EXPECT_TRUE(of("pp8.dp8.mbs1.ax-tp-dp-cp-pp", 32).empty()) << "of one rank";
  can.axis_orders = {{Axis::tp, Axis::cp, Axis::pp, Axis::dp}};
  EXPECT_TRUE(of("tp2.pp4.dp8.mbs1.ax-tp-cp-pp-dp", 32).empty()) << "the framework's own";
  can.axis_orders.clear();
  can.uneven_stages = UnevenStages::block_compute_costs;
  EXPECT_TRUE(of("pp2.dp32.mbs1.L17-15", 32).empty()) << "by the framework's own rule";
  can.uneven_stages = UnevenStages::any;
  EXPECT_EQ(of("pp2.dp32.mbs1.L17-15", 32), std::vector<std::string>{"uneven stages"});
  EXPECT_EQ(of("pp4.dp16.mbs1", 126), std::vector<std::string>{"uneven stages"});
  EXPECT_EQ(of("pp2.dp32.mbs1.L3-5", 8), std::vector<std::string>{"uneven stages"});
  EXPECT_EQ(of("tp16.dp4.mbs1", 32), std::vector<std::string>{"TP across nodes"});
  EXPECT_EQ(of("dp64.z3.mbs1.oo50.ao2.b100M", 32),
            (std::vector<std::string>{"optimizer offload", "activation offload", "its own bucket size"}));
  EXPECT_EQ(of("dp64.z3.mbs1.oo100.po", 32),
            (std::vector<std::string>{"optimizer offload", "parameter offload"}));
  can.optimizer_offload_needs_parameters = can.parameter_offload_needs_optimizer = true;
  EXPECT_EQ(of("dp64.z3.mbs1.oo100.po", 32), std::vector<std::string>{"CPU offload"}) << "one switch";
  can.optimizer_offload_needs_parameters = can.parameter_offload_needs_optimizer = false;
  EXPECT_TRUE(of("tp2.dp32.z3.mbs1", 32).empty());
  can.advised_zero_with_tp = 1;
  EXPECT_EQ(of("tp2.dp32.z3.mbs1", 32),
            std::vector<std::string>{"ZeRO-3 beside TP (the framework advises against it)"});
  EXPECT_TRUE(of("dp64.z3.mbs1", 32).empty() && of("tp2.dp32.z1.mbs1", 32).empty());
  EXPECT_TRUE(empty_chunk(parse_plan_key("pp2.vp2.dp1.mbs1.L2-3-3-0")));
  EXPECT_FALSE(empty_chunk(parse_plan_key("pp2.vp2.dp1.mbs1")));
  // Embedding and LM head alone, as equal as the others.
  const auto offered = [&](const char* key, int n_layers) {
    return judged(parse_plan_key(key), n_layers, cluster, can).offered;
  };
  EXPECT_TRUE(offered("pp4.vp2.dp1.mbs1.L0-1x6-0", 6));
  EXPECT_FALSE(offered("pp4.vp2.dp1.mbs1.L0-1x5-2-0", 7));
}

TEST(DecisionRule, ThePresetIsRead) {
  const DecisionRule preset = load_decision_rule(kPresets);
  EXPECT_EQ(preset.most_oom_chance, 0.05);
  EXPECT_LE(preset.most_given_up, 0.05);
  EXPECT_GE(preset.feature_pays, 0.03);
}

TEST(Evidence, CountsRunsOfTheFamilyAndNamesWhatIsBeyond) {
  EvidenceTable table;
  table.families = {{"a", "b"}};
  const ParallelPlan run = parse_plan_key("tp4.pp4.dp2.z1.mbs1");
  for (const char* stack : {"a", "b", "c"}) add_run(table.cells, evidence_cell(stack, "hopper", run, 4096));
  add_run(table.cells, evidence_cell("a", "hopper", parse_plan_key("tp2.pp8.dp2.z1.mbs1"), 4096));
  EXPECT_EQ(table.cells.size(), 3U);
  const Evidence e = table.of("b", "hopper", parse_plan_key("tp8.pp2.dp1.z1.mbs1.ao2"), 4096);
  EXPECT_EQ(e.near, 0) << "none offloads";
  EXPECT_EQ(e.extrapolates, (std::vector<std::string>{"TP8 (measured to 4)", "offload (not measured)"}));
  const Evidence plain = table.of("b", "hopper", parse_plan_key("tp4.pp2.dp2.z1.mbs1"), 4096);
  EXPECT_EQ(plain.near, 4);
  EXPECT_EQ(plain.near_of_stack, 3);
  EXPECT_TRUE(plain.extrapolates.empty());
  EXPECT_EQ(table.of("b", "hopper", run, 4096).like_runs(), LikeRuns::of_family);
  EXPECT_EQ(table.of("d", "hopper", run, 4096).like_runs(), LikeRuns::of_others);
  EXPECT_EQ(table.of("b", "ampere", run, 4096).like_runs(), LikeRuns::none);
  // What is left out of a measured combination is nothing new; what is added is.
  const auto like = [&](const char* key) { return table.of("b", "hopper", parse_plan_key(key), 4096); };
  EXPECT_EQ(like("tp4.dp4.z1.mbs1").like_runs(), LikeRuns::of_family);
  EXPECT_EQ(like("tp4.dp4.z1.mbs1").near, 0) << "the count is of runs of the same kinds";
  for (const char* more : {"tp4.pp2.cp2.dp1.z1.mbs1", "tp4.dp4.z3.mbs1", "dp16.z1.mbs1.oo100"})
    EXPECT_EQ(like(more).like_runs(), LikeRuns::none) << more;
  EXPECT_FALSE(load_evidence(kPresets).cells.empty());
}

TEST(Evidence, ADegreeThatTheFamilyNeverHadIsFarBeyondWhatAnyHad) {
  EvidenceTable table;
  for (int i = 0; i < 20; ++i)
    add_run(table.cells, evidence_cell("a", "hopper", parse_plan_key("tp4.pp2.dp2.z1.mbs1"), 4096));
  add_run(table.cells, evidence_cell("b", "hopper", parse_plan_key("pp4.vp6.dp2.z1.mbs1"), 4096));
  const auto far = [&](const char* key) { return table.of("a", "hopper", parse_plan_key(key), 4096).far; };
  EXPECT_TRUE(far("pp8.dp2.z1.mbs1").empty()) << "four times its own";
  EXPECT_EQ(far("pp16.dp2.z1.mbs1"), std::vector<std::string>{"PP16 (measured to 2)"});
  EXPECT_TRUE(far("pp4.vp6.dp2.z1.mbs1").empty()) << "another's";
  EXPECT_EQ(far("pp4.vp8.dp2.z1.mbs1"), std::vector<std::string>{"VP8 (not measured)"});
  EXPECT_TRUE(far("cp4.dp2.z1.mbs1").empty()) << "nobody's, four at most";
  EXPECT_EQ(far("cp8.dp2.z1.mbs1"), std::vector<std::string>{"CP8 (not measured)"});
  EXPECT_DOUBLE_EQ(table.of("a", "hopper", parse_plan_key("tp8.pp8.vp2.dp1.z0.mbs1"), 4096).doublings,
                   1 + 2 + 1);
}

TEST(Evidence, ShortSlicesOfSequencesAreBeyondWhatWasMeasured) {
  EvidenceTable table;
  const ParallelPlan two = parse_plan_key("cp2.dp4.z1.mbs1"), four = parse_plan_key("cp4.dp2.z1.mbs1");
  const auto of = [&](const ParallelPlan& p, int tokens) { return table.of("b", "hopper", p, tokens); };
  EXPECT_EQ(table.fewest_cp_tokens(), 0);
  EXPECT_EQ(of(two, 512).far.size(), 0U) << "CP2 alone, beside nothing measured";
  add_run(table.cells, evidence_cell("a", "hopper", parse_plan_key("dp8.z1.mbs1"), 256));
  EXPECT_EQ(table.fewest_cp_tokens(), 0) << "no slice";
  add_run(table.cells, evidence_cell("a", "hopper", four, 32768));
  add_run(table.cells, evidence_cell("a", "hopper", two, 8192));
  EXPECT_EQ(table.fewest_cp_tokens(), 4096) << "of any stack";
  EXPECT_TRUE(of(two, 8192).extrapolates.empty());
  EXPECT_EQ(of(four, 8192).extrapolates,
            (std::vector<std::string>{"CP4 on 2048 tokens each (measured from 4096)"}));
  EXPECT_TRUE(of(four, 8192).far.empty());
  EXPECT_EQ(of(two, 2048).far, (std::vector<std::string>{"CP2 on 1024 tokens each (measured from 4096)"}));
}

}  // namespace
}  // namespace sextant

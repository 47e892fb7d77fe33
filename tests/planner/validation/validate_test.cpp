// The scores against hand-made rows with known answers; the mapping from rows to stacks; single rows of the tables.
#include "planner/validation/validate.hpp"

#include <array>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/planner/validation/llama_row.hpp"
#include "tests/support/measured.hpp"

namespace sextant {
namespace {

RunRow measured(const std::string& group, double step_s, bool oom = false) {
  RunRow r;
  r.run_id = r.source = "s";
  r.group_id = group;
  r.training.global_batch = 1;
  if (!oom) r.step_time = Seconds(step_s);
  r.out_of_memory = oom;
  return r;
}

RunPrediction predicted(double step_s, std::optional<bool> fits = std::nullopt) {
  RunPrediction p;
  p.step_s = step_s;
  p.step_lower_s = 0.9 * step_s;
  p.step_upper_s = 1.1 * step_s;
  p.fits = fits;
  return p;
}

TEST(Score, KendallTau) {
  const std::vector<double> up = {1, 2, 3, 4}, down = {4, 3, 2, 1}, swapped = {2, 1, 3, 4};
  EXPECT_DOUBLE_EQ(kendall_tau(up, up), 1);
  EXPECT_DOUBLE_EQ(kendall_tau(up, down), -1);
  EXPECT_DOUBLE_EQ(kendall_tau(up, swapped), 4.0 / 6);
}

// Measured 10, 11, 12, 13 s; predicted 12, 11, 14, 13: errors +20, 0, +16.7, 0 %. The predicted best is the measured
// second (regret 10 %), the best two hold the measured best.
TEST(Score, ErrorsAndRegret) {
  const std::vector<RunRow> rows = {measured("g", 10), measured("g", 11), measured("g", 12),
                                    measured("g", 13)};
  const std::vector<RunPrediction> p = {predicted(12), predicted(11), predicted(14), predicted(13)};
  const auto scores = score_runs(rows, p);
  ASSERT_EQ(scores.size(), 1u);
  const SourceScore& s = scores[0];
  EXPECT_EQ(s.rows, 4);
  EXPECT_NEAR(s.mape, (20 + 0 + 100.0 / 6 + 0) / 4, 1e-9);
  EXPECT_NEAR(s.bias, s.mape, 1e-9);
  EXPECT_NEAR(s.regret_1, 10, 1e-9);
  EXPECT_NEAR(s.regret_2, 0, 1e-9);
  EXPECT_EQ(s.groups, 1);
  EXPECT_EQ(s.covered, 2);
}

// The planner offers only what it predicts to fit: a false alarm about the measured best costs what it costs. Where no
// layout is predicted to fit, the group is ranked as it stands.
TEST(Score, RegretIsOfLayoutsThatTheModelSaysFit) {
  const std::vector<RunRow> rows = {measured("g", 10), measured("g", 11), measured("g", 12),
                                    measured("g", 13)};
  const auto regret = [&](bool first_fits, bool others_fit) {
    const std::vector<RunPrediction> p = {predicted(10, first_fits), predicted(13, others_fit),
                                          predicted(11, others_fit), predicted(12, others_fit)};
    const SourceScore s = score_runs(rows, p).at(0);
    return std::pair(s.regret_1, s.regret_3);
  };
  EXPECT_EQ(regret(true, true), std::pair(0.0, 0.0));
  EXPECT_EQ(regret(false, false), std::pair(0.0, 0.0));
  const auto [first, third] = regret(false, true);
  EXPECT_NEAR(first, 20, 1e-9);
  EXPECT_NEAR(third, 10, 1e-9);
}

// What may have been recomputed is no false alarm; what ran out all the same is found, or missed.
TEST(Score, OutOfMemoryOfRunsThatDoNotSayWhatTheyRecompute) {
  std::vector<RunRow> rows = {measured("", 1), measured("", 1), measured("", 0, true), measured("", 0, true)};
  const std::vector<RunPrediction> p = {predicted(1, false), predicted(1, true), predicted(1, false),
                                        predicted(1, true)};
  const auto counts = [&](const std::string& assumed) {
    for (RunRow& r : rows) r.assumed = {assumed};
    const SourceScore s = score_runs(rows, p).at(0);
    return std::array{s.oom_true, s.oom_false, s.oom_unknown, s.oom_missed};
  };
  EXPECT_EQ(counts("recompute"), (std::array{1, 0, 1, 1}));
  EXPECT_EQ(counts("attention"), (std::array{1, 1, 0, 1})) << "control";
}

TEST(Score, OutOfMemory) {
  const std::vector<RunRow> rows = {measured("", 1), measured("", 1), measured("", 0, true),
                                    measured("", 0, true)};
  const std::vector<RunPrediction> p = {predicted(1, true), predicted(1, false), predicted(1, false),
                                        predicted(1, true)};
  const auto s = score_runs(rows, p).at(0);
  EXPECT_DOUBLE_EQ(s.oom_precision(), 0.5);
  EXPECT_DOUBLE_EQ(s.oom_recall(), 0.5);
}

TEST(Score, ThreeLayoutsAreNoGroup) {
  const std::vector<RunRow> rows = {measured("g", 1), measured("g", 2), measured("g", 3)};
  const std::vector<RunPrediction> p = {predicted(3), predicted(2), predicted(1)};
  EXPECT_EQ(score_runs(rows, p).at(0).groups, 0);
}

TEST(SplitLayers, EmbeddingAndHeadCountWhereOnlyThenTheWholeDivides) {
  ModelSpec m;
  m.n_layers = 70;
  m.hidden = 14336;
  m.ffn_hidden = 57344;
  m.vocab_size = 250880;  // BLOOM over 12 stages of 6
  const auto ranges = split_layers(m, 12, LayerSplit::even);
  ASSERT_EQ(ranges.size(), 12u);
  EXPECT_EQ(ranges.front().count, 5);
  EXPECT_EQ(ranges.back().count, 5);
  EXPECT_EQ(ranges[5].count, 6);
  m.n_layers = 72;
  EXPECT_TRUE(split_layers(m, 12, LayerSplit::even).empty());
}

TEST(SplitLayers, ByCostCoversEveryLayerOnce) {
  ModelSpec m;
  m.n_layers = 28;
  m.hidden = 3072;
  m.ffn_hidden = 8192;
  m.vocab_size = 128256;
  for (const int chunks : {2, 4, 8, 16}) {
    const auto ranges = split_layers(m, chunks, LayerSplit::by_cost);
    ASSERT_EQ(static_cast<int>(ranges.size()), chunks);
    int next = 0;
    for (const auto& r : ranges) {
      EXPECT_EQ(r.first, next);
      EXPECT_GE(r.count, 1);
      next += r.count;
    }
    EXPECT_EQ(next, 28);
    EXPECT_LE(ranges.back().count, ranges.front().count);  // the head weighs on the last
  }
}

TEST(FrameworkMap, SelectsStackByFactsAndFallsBackToAClass) {
  const FrameworkMap map = load_framework_map(test::preset_dir());
  RunRow r = llama_row();
  const ResolvedRun overlapped = resolve(r, map, test::preset_dir());
  EXPECT_EQ(overlapped.stack.name, "megatron-llama-2023");
  EXPECT_EQ(overlapped.plan.zero_stage, 2);
  EXPECT_EQ(overlapped.cluster.fabric.name, "roce-4x200");
  EXPECT_FALSE(overlapped.by_class);
  r.plan.overlap_param_gather = false;
  EXPECT_EQ(resolve(r, map, test::preset_dir()).stack.name, "megatron-llama-2023-plain");
  r.framework = "somebody's own trainer";
  const ResolvedRun unknown = resolve(r, map, test::preset_dir());
  EXPECT_TRUE(unknown.by_class);
  EXPECT_GT(unknown.interval, overlapped.interval);
  EXPECT_NE(unknown.note.find("somebody's own trainer"), std::string::npos);
  r.plan.zero_stage = 3;
  r.plan.tp = 1;
  r.plan.dp = 32;
  EXPECT_EQ(resolve(r, map, test::preset_dir()).stack.name, "fsdp1-eager");
}

// Nobody's framework is taken for its kin by the kernels, fusion and overlap that the row states; what was assumed by whoever
// made the table says nothing, and the note says what decided.
TEST(FrameworkMap, AnUnknownFrameworkIsTakenForWhatItStates) {
  const FrameworkMap map = load_framework_map(test::preset_dir());
  RunRow plain = llama_row();
  plain.framework = "somebody's own trainer";
  const auto taken = [&](const RunRow& row) { return resolve(row, map, test::preset_dir()); };
  EXPECT_EQ(taken(plain).stack.name, "megatron-lm-2024");
  EXPECT_EQ(taken(plain).note.find("for what it states"), std::string::npos) << taken(plain).note;

  RunRow eager = plain;
  eager.norm_fused = false;
  EXPECT_EQ(taken(eager).stack.name, "aleph-alpha");
  EXPECT_NE(taken(eager).note.find("aleph-alpha for what it states (norm unfused)"), std::string::npos)
      << taken(eager).note;
  eager.assumed = {"norm_kernel"};
  EXPECT_EQ(taken(eager).stack.name, "megatron-lm-2024");
  eager.assumed.clear();
  eager.norm_fused = true;
  EXPECT_EQ(taken(eager).stack.name, "megatron-lm-2024");

  RunRow megatron = plain;
  megatron.plan.zero_stage = 3;
  megatron.plan.tp = 1;
  megatron.plan.dp = 32;
  EXPECT_EQ(taken(megatron).stack.name, "fsdp1-eager");
  megatron.attention = AttentionKernel::fused_softmax;
  EXPECT_EQ(taken(megatron).stack.name, "megatron-deepspeed-zero3");

  RunRow hidden = plain;
  hidden.plan.overlap_tp = true;
  EXPECT_EQ(taken(hidden).stack.name, "nanotron");
  EXPECT_NE(taken(hidden).note.find("TP communication overlapped"), std::string::npos) << taken(hidden).note;
  EXPECT_GT(taken(hidden).stack.kernels.tp_hidden_share, 0);  // a share of it is hidden
  hidden.plan.tp = 1;
  hidden.plan.dp = 32;
  EXPECT_EQ(taken(hidden).stack.name, "megatron-lm-2024");
  hidden = plain;
  hidden.plan.overlap_tp = true;
  hidden.assumed = {"overlap"};
  EXPECT_EQ(taken(hidden).stack.name, "megatron-lm-2024");
}

// Names are whole words in any case: another framework whose name holds one is another framework.
TEST(FrameworkMap, NamesAreWholeWordsInAnyCase) {
  const FrameworkMap map = load_framework_map(test::preset_dir());
  RunRow r = llama_row();
  r.plan.zero_stage = 0;
  const auto taken = [&](const char* framework) {
    r.framework = framework;
    r.date = "2024-01";
    const ResolvedRun run = resolve(r, map, test::preset_dir());
    return run.by_class ? "by class" : run.stack.name;
  };
  EXPECT_EQ(taken("Alpaca-Trainer"), "by class");
  EXPECT_EQ(taken("Nemotron"), "by class");
  EXPECT_EQ(taken("alpa 0.2"), "alpa");
  EXPECT_EQ(taken("megatron_lm"), "megatron-core");
  EXPECT_EQ(taken("MEGATRON-LM 2021"), "megatron-lm-2021");
  EXPECT_EQ(taken("Torchtitan (main)"), "torchtitan-eager");  // its default
  r.notes = "graph compiler on";
  EXPECT_EQ(taken("Torchtitan (main)"), "torchtitan");
  r.notes = "";
  EXPECT_EQ(taken("PyTorch FSDP2"), "torchtitan");
  EXPECT_EQ(taken("PyTorch FSDP1"), "fsdp1-eager");
  r.fabric = "nvlink3; roce-v2";
  EXPECT_EQ(resolve(r, map, test::preset_dir()).cluster.fabric.name, "roce-8x200");
  r.fabric = "nvlink3 nvswitch; ndr 8x400 Gb/s";
  EXPECT_EQ(resolve(r, map, test::preset_dir()).cluster.fabric.name, "ndr-8x400");
}

// What a rule or the nearest kin decides instead of the row stands in the note; a row that states all has none.
TEST(FrameworkMap, SaysWhatItDecidedItself) {
  const FrameworkMap map = load_framework_map(test::preset_dir());
  RunRow r = llama_row();
  const auto note = [&] { return resolve(r, map, test::preset_dir()).note; };
  EXPECT_NE(note().find("ZeRO 2 instead of the stated 1"), std::string::npos) << note();
  r.plan.zero_stage = 2;
  r.precision = "bf16";
  EXPECT_EQ(note(), "");
  r.framework = "Alpa";
  r.memory_kind = "unknown";
  r.peak_memory_GiB = 30;
  EXPECT_NE(note().find("ZeRO 1 instead of the stated 2"), std::string::npos) << note();
  EXPECT_NE(note().find("its peak is taken as torch_allocated"), std::string::npos) << note();
  r = llama_row();
  r.plan.zero_stage = 2;
  r.precision = "mxfp8";
  r.training.compute = Dtype::fp8;
  EXPECT_NE(note().find("mxfp8 is taken as fp8"), std::string::npos) << note();
  r.precision = "fp8";
  r.fabric = "NVLink3; Slingshot 11";
  r.node_network = BytesPerSecond(25e9);
  EXPECT_NE(note().find("fabric 'NVLink3; Slingshot 11' is not known"), std::string::npos) << note();
}

// A network that no rule names runs at the rate that the row states.
TEST(FrameworkMap, StatedNetworkRateOfAnUnknownFabricCounts) {
  const FrameworkMap map = load_framework_map(test::preset_dir());
  RunRow r = llama_row();
  r.fabric = "NVLink3; Slingshot 11";
  r.node_network = BytesPerSecond(25e9);
  const ResolvedRun slow = resolve(r, map, test::preset_dir());
  EXPECT_DOUBLE_EQ(slow.cluster.fabric.bandwidth.v, 25e9);
  const PredictOptions options{test::preset_dir(), nullptr, {}};
  const double at_25 = *predict_run(r, map, options).step_s;
  r.node_network = BytesPerSecond(200e9);
  EXPECT_LT(*predict_run(r, map, options).step_s, at_25);
}

TEST(FrameworkMap, AMachineThatNobodyKnowsIsTheRowsOwnFault) {
  const FrameworkMap map = load_framework_map(test::preset_dir());
  RunRow r = llama_row();
  r.file = "runs.csv";
  r.line = 7;
  r.run_id = "one";
  r.gpu = "A10x-SXM4-80GB";
  try {
    resolve(r, map, test::preset_dir());
    ADD_FAILURE() << "was taken";
  } catch (const ConfigError& e) {
    EXPECT_EQ(e.problems().front().file, "runs.csv:7: one") << e.what();
    EXPECT_EQ(e.problems().front().key, "gpu") << e.what();
  }
}

TEST(FrameworkMap, AssumedColumnsDoNotReplaceThePreset) {
  const FrameworkMap map = load_framework_map(test::preset_dir());
  RunRow r = llama_row();
  r.attention = AttentionKernel::unfused;
  EXPECT_EQ(resolve(r, map, test::preset_dir()).stack.kernels.attention, AttentionKernel::unfused);
  r.assumed = {"attention"};
  EXPECT_EQ(resolve(r, map, test::preset_dir()).stack.kernels.attention, AttentionKernel::flash2);
}

TEST(Predict, OverlapAndMoreTokensAct) {
  const FrameworkMap map = load_framework_map(test::preset_dir());
  const PredictOptions options{test::preset_dir(), nullptr};
  RunRow r = llama_row();
  const double overlapped = *predict_run(r, map, options).step_s;
  r.plan.overlap_grad_reduce = r.plan.overlap_param_gather = false;
  EXPECT_GT(*predict_run(r, map, options).step_s, overlapped);
  r.training.global_batch *= 2;
  EXPECT_GT(*predict_run(r, map, options).step_s, 1.9 * overlapped);
}

TEST(Predict, WhatStackOrDeviceCannotDoIsSaid) {
  const FrameworkMap map = load_framework_map(test::preset_dir());
  const PredictOptions options{test::preset_dir(), nullptr, {}};
  RunRow r = llama_row();
  EXPECT_EQ(predict_run(r, map, options).note.find("though"), std::string::npos);
  r.plan.cp = 2;
  r.plan.dp /= 2;
  const RunPrediction p = predict_run(r, map, options);
  EXPECT_TRUE(p.step_s);
  EXPECT_NE(p.note.find("priced as the row states it, though"), std::string::npos) << p.note;
  EXPECT_NE(p.note.find("has no context parallelism"), std::string::npos) << p.note;
  r = llama_row();
  r.training.compute = Dtype::fp8;
  const RunPrediction none = predict_run(r, map, options);
  EXPECT_FALSE(none.step_s);
  EXPECT_NE(none.note.find("precision: found fp8, expected what A100"), std::string::npos) << none.note;
}

TEST(Predict, UnknownDeviceIsANoteNotACrash) {
  RunRow r = llama_row();
  r.gpu = "H900";
  const RunPrediction p =
      predict_run(r, load_framework_map(test::preset_dir()), {test::preset_dir(), nullptr});
  EXPECT_FALSE(p.step_s);
  EXPECT_NE(p.note.find("H900"), std::string::npos);
}

}  // namespace
}  // namespace sextant

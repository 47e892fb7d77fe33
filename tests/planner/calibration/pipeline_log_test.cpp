// Pipeline stages as logs state them: torchtitan's schedule, micro-batches and modules, Megatron-LM's uneven stages, and whose memory a
// line shows. The texts are made up; their form is that of pytorch/torchtitan b5bcd76 and 9810191bb^ (pipeline_parallel.py, trainer.py,
// metrics.py), 069bae2 (pipeline.py) and NVIDIA/Megatron-LM d98e8a6 (arguments.py).
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "planner/calibration/log_stages.hpp"
#include "planner/calibration/run_log.hpp"
#include "tests/planner/calibration/said.hpp"

namespace sextant {
namespace {

constexpr const char* kTitan = "[rank0]:[titan] 2025-11-03 10:12:01,101 - root - INFO - ";

struct Titan {
  std::string schedule = "Using pipeline schedule Interleaved1F1B with 8 microbatches and 8 stages.";
  std::string batch =
      "Trainer is initialized with local batch size 16, global batch size 64, gradient accumulation steps 2, "
      "sequence length 8192, total steps 1000 (warmup 200)";
  std::vector<std::string> modules = {};
  std::string loss = "-1.00000";
  std::string pp = "4";
};

std::string titan(const Titan& t) {
  std::string text =
      kTitan + fmt::format(
                   "Building device mesh with parallelism: pp={}, dp_replicate=1, dp_shard=2, cp=1, tp=1, "
                   "ep=1, etp=1\n",
                   t.pp);
  for (const std::string& line : t.modules) text += kTitan + line + "\n";
  if (!t.schedule.empty()) text += kTitan + t.schedule + "\n";
  text += kTitan + t.batch + "\n";
  for (const int n : {1, 10, 20})
    text += kTitan + fmt::format(
                         "step: {:2}  loss: {}  grad_norm:  1.2  memory: 30.5{}GiB(38.4%)  tps: 1,{}00  "
                         "tflops: 80.1  mfu: 8.1%\n",
                         n, t.loss, n / 10, n == 1 ? 1 : 7);
  return text;
}

TEST(PipelineLog, MicroBatchesAndStagesOfTorchtitan) {
  const Said s = filled(titan({}));
  EXPECT_EQ(s.problems, "");
  // 16 sequences in 8 micro-batches, twice a step.
  EXPECT_EQ(plan_key(s.plan), "tp1.pp4.vp2.cp1.dp2.z3.mbs2.L5-6-5x5-4");
  EXPECT_EQ(s.training.global_batch, 64);
  // One stage a rank.
  EXPECT_EQ(
      plan_key(filled(titan({.schedule = "Using pipeline schedule 1F1B with 16 microbatches and 4 stages."}))
                   .plan),
      "tp1.pp4.vp1.cp1.dp2.z3.mbs1.L10-11-10-9");
  EXPECT_EQ(
      plan_key(filled(titan({.schedule = "Using pipeline schedule GPipe with 4 microbatches and 4 stages."}))
                   .plan),
      "tp1.pp4.vp1.cp1.dp2.z3.mbs4.gpipe.L10-11-10-9");
  // Without stages its local batch goes at once.
  EXPECT_EQ(plan_key(filled(titan({.schedule = "", .pp = "1"})).plan), "tp1.pp1.vp1.cp1.dp2.z3.mbs16");
}

TEST(PipelineLog, InTokensSince2026) {
  const std::string tokens =
      "Trainer is initialized with 131072 tokens per DP rank, 524288 tokens per train step, gradient "
      "accumulation "
      "steps 2, maximum context length 8192, total steps 1000 (warmup 200)";
  const Said s = filled(titan({.batch = tokens}));
  EXPECT_EQ(plan_key(s.plan), "tp1.pp4.vp2.cp1.dp2.z3.mbs2.L5-6-5x5-4");
  EXPECT_EQ(s.training.global_batch, 64);
  EXPECT_EQ(s.training.seq_len, 8192);
  // Printed to the token: 63 is another batch.
  TrainingSpec stated;
  stated.global_batch = 63;
  EXPECT_TRUE(said(titan({.batch = tokens}), "pp4.vp2.dp2.z3.mbs2", {.global_batch = true}, stated)
                  .names("global_batch: found 64, expected 63"));
}

TEST(PipelineLog, ContradictsTheStatedLayout) {
  EXPECT_EQ(said(titan({}), "pp4.vp2.dp2.z3.mbs2").problems, "");
  EXPECT_TRUE(said(titan({}), "pp4.vp2.dp2.z3.mbs16").names("micro_batch: found 2, expected 16"));
  EXPECT_TRUE(
      said(titan({}), "pp4.vp1.dp2.z3.mbs2").names("x.log:2: stages: found 2 chunks a stage, expected vp 1"));
  EXPECT_TRUE(said(titan({.schedule = "Using pipeline schedule 1F1B with 8 microbatches and 4 stages."}),
                   "pp4.gpipe.dp2.z3.mbs2")
                  .names("schedule: found 1F1B, expected gpipe"));
  EXPECT_TRUE(
      filled(titan({.schedule = "Using pipeline schedule Interleaved1F1B with 8 microbatches and 6 stages."}))
          .names("stages: found 6, expected a multiple of pp 4"));
}

// Until January 2025, and where the line was cut away: nothing says how a local batch was cut.
TEST(PipelineLog, WithoutNumbersItIsSaid) {
  const std::string of_2024 = titan({.schedule = "Using pipeline schedule 1F1B"}),
                    cut = titan({.schedule = ""});
  EXPECT_EQ(filled(of_2024).plan.micro_batch, 4);  // as many as there are stages
  EXPECT_TRUE(filled(of_2024).notes_that("micro-batches of 4"));
  EXPECT_EQ(filled(cut).plan.micro_batch, 1);
  EXPECT_TRUE(filled(cut).notes_that("micro-batches of 1"));
  for (const std::string& text : {of_2024, cut}) {
    EXPECT_EQ(filled(text).training.global_batch, 64);
    EXPECT_EQ(said(text, "pp4.dp2.z3.mbs8").problems, "");
    EXPECT_FALSE(said(text, "pp4.dp2.z3.mbs8").notes_that("micro-batches"));
  }
  const std::string interleaved = titan({.schedule = "Using pipeline schedule Interleaved1F1B"});
  EXPECT_TRUE(filled(interleaved).notes_that("write vp in the key"));
  EXPECT_FALSE(filled(titan({})).notes_that("micro-batches of"));
  EXPECT_FALSE(filled(titan({})).notes_that("vp"));
}

TEST(PipelineLog, OtherSchedulesAreSaid) {
  const std::string bubbles =
      titan({.schedule = "Using pipeline schedule InterleavedZeroBubble with 8 microbatches and 8 stages."});
  EXPECT_TRUE(filled(bubbles).notes_that("InterleavedZeroBubble: priced as Interleaved1F1B"));
  EXPECT_EQ(filled(bubbles).plan.vp, 2);
  EXPECT_FALSE(filled(titan({})).notes_that("priced as"));
}

// All chunks are printed where several ranks are: 40 layers in 4 stages of unequal length.
TEST(PipelineLog, ModulesOfEachStage) {
  Titan t{.schedule = "Using pipeline schedule 1F1B with 8 microbatches and 4 stages."};
  int layer = 0;
  for (int stage = 0; stage < 4; ++stage) {
    std::string modules = stage == 0 ? "'tok_embeddings', " : "";
    for (const int end = layer + (stage == 0 || stage == 3 ? 9 : 11); layer < end; ++layer)
      modules += fmt::format("'layers.{}'{}", layer, layer + 1 < end ? ", " : "");
    if (stage == 3) modules += ", 'norm', 'output'";
    t.modules.push_back(
        fmt::format("PP rank {0} is building stage_idx {0} with modules [{1}]", stage, modules));
  }
  const Said s = filled(titan(t));
  EXPECT_EQ(s.problems, "");
  EXPECT_EQ(plan_key(s.plan), "tp1.pp4.vp1.cp1.dp2.z3.mbs2.L9-11-11-9");
  EXPECT_TRUE(stages_of_peak(parse_run_log(titan(t), "x.log"), s.plan).empty());
  // Of another model.
  t.modules.back() = "PP rank 3 is building stage_idx 3 with modules ['layers.31', 'norm', 'output']";
  EXPECT_TRUE(filled(titan(t)).names("chunks of 9, 11, 11, 1 layers, expected the 40 layers"));
  // Of one rank alone that is no cut of its own: the others are dealt evenly.
  t.modules.resize(1);
  EXPECT_EQ(plan_key(filled(titan(t)).plan), "tp1.pp4.vp1.cp1.dp2.z3.mbs2.L9-11-10-10");
  EXPECT_TRUE(filled(titan(t)).notes_that("those that are printed, and the rest dealt evenly"));
}

std::string stage_of_rank_0(int layers) {
  std::string modules = "'tok_embeddings'";
  for (int layer = 0; layer < layers; ++layer) modules += fmt::format(", 'layers.{}'", layer);
  return fmt::format("PP rank 0 is building stage_idx 0 with modules [{}]", modules);
}

// pytorch/torchtitan b5bcd76, pipeline_parallel.py, _generate_llm_fqn_per_model_part: embedding and LM head count as a layer each.
TEST(PipelineLog, WhatIsNotPrintedIsTorchtitansOwnCut) {
  ModelSpec model = llama_13b();
  model.n_layers = 32;
  Titan t{.schedule = "Using pipeline schedule 1F1B with 8 microbatches and 4 stages."};
  const auto cut = [&] {
    const Said s = filled(titan(t), model);
    EXPECT_EQ(s.problems, "");
    return plan_key(s.plan).substr(std::string("tp1.pp4.vp1.cp1.dp2.z3.mbs2").size());
  };
  EXPECT_EQ(cut(), ".L8-9-8-7");
  EXPECT_TRUE(
      filled(titan(t), model).notes_that("stages of L8-9-8-7 layers, as torchtitan cuts 32 by itself"));
  // Rank 0 alone: it agrees with both, its own and, of seven layers, with neither.
  t.modules = {stage_of_rank_0(8)};
  EXPECT_EQ(cut(), ".L8-9-8-7");
  t.modules = {stage_of_rank_0(7)};
  EXPECT_EQ(cut(), ".L7-9-8-8");
  // 40 layers with ends that count as none.
  model.n_layers = 40;
  t.modules = {stage_of_rank_0(10)};
  EXPECT_EQ(cut(), ".L10-11-10-9");
  model.n_layers = 34;
  t.modules = {stage_of_rank_0(9)};
  EXPECT_EQ(cut(), ".L9-9-8-8") << "36 by 4 would begin with 8";
  EXPECT_TRUE(filled(titan(t), model).notes_that("where the ends count as no layer"));
  // What the key states counts, and is not contradicted by what is only usual.
  EXPECT_EQ(said(titan(t), "pp4.dp2.z3.mbs2.L10-10-10-10").problems, "");
  EXPECT_EQ(
      plan_key(
          said(titan({.schedule = t.schedule}), "pp4.dp2.z3.mbs2", {}, {}, {{"pp", "dp", "z", "mbs"}}).plan),
      "tp1.pp4.vp1.cp1.dp2.z3.mbs2.L10-11-10-9");
}

// Until July 2025 the split is printed; before April of that year what does not divide went behind the first stage.
TEST(PipelineLog, SplitsOfOlderTorchtitan) {
  ModelSpec model = llama_13b();
  model.n_layers = 41;
  Titan t{.schedule = "Using pipeline schedule 1F1B"};
  const auto key = [&] { return plan_key(filled(titan(t), model).plan); };
  EXPECT_TRUE(key().ends_with(".L10-11-10-10")) << key();
  EXPECT_TRUE(filled(titan(t), model).notes_that("as torchtitan of 2024 cuts 41"));
  t.modules = {
      "No 'pipeline_parallel_split_points' provided so the generated splits are: ['layers.9', 'layers.20', "
      "'layers.31'] This may be sub-optimal as the number of layers per stage may be unbalanced."};
  EXPECT_TRUE(key().ends_with(".L9-11-11-10")) << key();
  EXPECT_FALSE(filled(titan(t), model).notes_that("does not print all of them"));
  t.modules = {
      "No 'pipeline_parallel_split_points' provided. Here is the auto-generated split, which may be "
      "sub-optimal: "
      "['layers.10', 'layers.21', 'layers.32']."};
  EXPECT_TRUE(key().ends_with(".L10-11-11-9")) << key();
  // As many chunks as it lists.
  t.schedule = "Using pipeline schedule Interleaved1F1B";
  t.modules = {
      "No 'pipeline_parallel_split_points' provided. Here is the auto-generated split, which may be "
      "sub-optimal: "
      "['layers.5', 'layers.10', 'layers.15', 'layers.20', 'layers.25', 'layers.30', 'layers.35']."};
  EXPECT_EQ(filled(titan(t), model).plan.vp, 2);
  EXPECT_TRUE(key().ends_with(".L5x7-6")) << key();
}

TEST(PipelineLog, LayersOfEachStageUntil2025) {
  Titan t{.schedule = "Using pipeline schedule 1F1B with 8 microbatches and 4 stages."};
  const char* const bounds[] = {"None", "layers.9", "layers.20", "layers.31", "None"};
  for (int stage = 0; stage < 4; ++stage)
    t.modules.push_back(
        fmt::format("PP rank {0} is building stage_idx {0} with start_layer {1}, stop_layer {2}: model chunk",
                    stage, bounds[stage], bounds[stage + 1]));
  EXPECT_EQ(plan_key(filled(titan(t)).plan), "tp1.pp4.vp1.cp1.dp2.z3.mbs2.L9-11-11-9");
  t.modules[3] = "PP rank 3 is building stage_idx 3 with start_layer layers.32, stop_layer None: model chunk";
  EXPECT_TRUE(filled(titan(t)).names("chunks of 9, 11, 11, 8 layers, expected the 40 layers")) << "control";
}

TEST(PipelineLog, WhoseMemoryItIs) {
  const auto stages = [](const Titan& t) {
    const std::string text = titan(t);
    return stages_of_peak(parse_run_log(text, "x.log"), filled(text).plan);
  };
  using Stages = std::vector<int>;
  EXPECT_EQ(stages({}), Stages{0});                    // no loss is computed there
  EXPECT_EQ(stages({.loss = " 7.12345"}), Stages{3});  // the last stage computes it
  EXPECT_EQ(stages({.modules = {"PP rank 2 is building stage_idx 2 with modules ['layers.2']"}}), Stages{2});
  EXPECT_EQ(stages({.schedule = "", .loss = " 7.12345", .pp = "1"}), Stages{});
  // Megatron-LM prints a rank of each stage; a part of the log may have one.
  const RunLog megatron = parse_run_log(kMegatron, "x.log");
  ParallelPlan plan;
  plan.tp = plan.pp = 2;
  plan.dp = 16;
  EXPECT_EQ(stages_of_peak(megatron, plan), Stages{0});
  std::string both = kMegatron;
  const std::size_t at = both.find("[Rank 0]");
  both.insert(at,
              "[Rank 32] (after 1 iterations) memory (MB) | allocated: 1.0 | max allocated: 40000.0 | "
              "reserved: 1.0\n");
  EXPECT_TRUE(stages_of_peak(parse_run_log(both, "x.log"), plan).empty());
  const std::string nanotron =
      "[INFO|DP=0|PP=1|TP=0]: iteration: 2 / 9 | elapsed_time_per_iteration_ms: 11.5K | "
      "cuda_max_memory_reserved: "
      "53.7G\n";
  EXPECT_EQ(stages_of_peak(parse_run_log(nanotron, "x.log"), plan), Stages{1});
}

// 4 stages of 2 replicas: ranks 2 and 3 are the second stage.
TEST(PipelineLog, TagsOfLaunchersSayWhoseMemoryItIs) {
  const auto stages = [](const std::string& tag, int node_gpus = 8, const Titan& t = {}) {
    std::string text = titan(t);
    for (std::size_t at = text.find("[rank0]:"); at != text.npos; at = text.find("[rank0]:", at + tag.size()))
      text.replace(at, std::string("[rank0]:").size(), tag);
    return stages_of_peak(parse_run_log(text, "x.log"), filled(text).plan, node_gpus);
  };
  using Stages = std::vector<int>;
  EXPECT_EQ(stages("[rank0]:"), Stages{0});
  EXPECT_EQ(stages("[rank3]:"), Stages{1});
  EXPECT_EQ(stages("[default5]:"), Stages{2});
  EXPECT_EQ(stages("[1,5]<stdout>:"), Stages{2});
  EXPECT_EQ(stages("3: "), Stages{1});
  EXPECT_EQ(stages(""), Stages{0}) << "control: nothing says whose it is";
  // torchrun counts on each node anew; a number alone may be that of a node.
  EXPECT_EQ(stages("1: [rank1]:", 4), Stages{2});
  EXPECT_EQ(stages("0: [rank1]:", 4), Stages{0});
  EXPECT_EQ(stages("1: ", 4), Stages{2}) << "of its two stages the last would have a loss";
  EXPECT_EQ(stages("0: ", 4), (Stages{0, 1}));
  EXPECT_EQ(stages("5: ", 4), Stages{2});
  // What a line says itself counts.
  EXPECT_EQ(stages("[rank0]:", 4, {.loss = " 7.1"}), Stages{3}) << "of the last node";
  EXPECT_EQ(
      stages("[rank0]:", 8, {.modules = {"PP rank 2 is building stage_idx 2 with modules ['layers.2']"}}),
      Stages{2});
}

TEST(PipelineLog, UnevenStagesOfMegatron) {
  const std::string one = with_arguments(argument("decoder_first_pipeline_num_layers", "18"));
  std::string text = one;
  const std::string virtual_stages = argument("num_layers_per_virtual_pipeline_stage", "10");
  text.erase(text.find("  num_layers_per_virtual"), std::string(virtual_stages).size());
  EXPECT_EQ(plan_key(filled(text).plan), "tp2.pp2.vp1.cp1.dp16.z1.mbs1.sel.L18-22");
  const auto layout = [&](const char* value) {
    std::string with = with_arguments(argument("pipeline_model_parallel_layout", value));
    return with.erase(with.find("  num_layers_per_virtual"), virtual_stages.size());
  };
  EXPECT_EQ(plan_key(filled(layout("Ett|t*18|t*10|t*10L")).plan),
            "tp2.pp2.vp2.cp1.dp16.z1.mbs1.sel.L2-18-10-10");
  EXPECT_EQ(plan_key(filled(layout("None")).plan), "tp2.pp2.vp1.cp1.dp16.z1.mbs1.sel");
  EXPECT_TRUE(filled(layout("Ett|t*18|t*10|tL"))
                  .names("pipeline_model_parallel_layout: found chunks of 2, 18, 10, 1"));
  EXPECT_EQ(plan_key(filled(one).plan), "tp2.pp2.vp2.cp1.dp16.z1.mbs1.sel.L9-11-9-11")
      << "in both chunks of a stage";
  EXPECT_TRUE(filled(with_arguments(argument("decoder_first_pipeline_num_layers", "17")))
                  .names("first_stage_layers: found a split that cannot be read"))
      << "17 layers are no two chunks";
  // With the embedding and the head as layers: 42 in 2 chunks.
  std::string counted = with_arguments(argument("account_for_embedding_in_pipeline_split", "True") +
                                       argument("account_for_loss_in_pipeline_split", "True"));
  counted.erase(counted.find("  num_layers_per_virtual"), virtual_stages.size());
  EXPECT_EQ(plan_key(filled(counted).plan), "tp2.pp2.vp1.cp1.dp16.z1.mbs1.sel");  // 20 and 20
  // A key that cuts otherwise.
  EXPECT_TRUE(
      said(text, "tp2.pp2.vp1.dp16.z1.mbs1.sel.L20-20").names("layers: found chunks of 18, 22 layers"));
  EXPECT_EQ(said(text, "tp2.pp2.vp1.dp16.z1.mbs1.sel.L18-22").problems, "");
  EXPECT_EQ(filled(with_arguments(argument("use_tp_pp_dp_mapping", "True"))).plan.axis_order[2], Axis::pp);
}

TEST(PipelineLog, ActivationsOnTheHost) {
  const std::string text = with_arguments(argument("cpu_offloading_num_layers", "4"));
  EXPECT_EQ(filled(text).plan.activation_offload, 4);
  EXPECT_TRUE(
      said(text, "tp2.pp2.vp2.dp16.z1.mbs1.sel").names("activation_offload: found 4 layers, expected 0"));
  EXPECT_EQ(said(text, "tp2.pp2.vp2.dp16.z1.mbs1.sel.ao4").problems, "");
  EXPECT_EQ(filled(with_arguments(argument("cpu_offloading_num_layers", "0"))).plan.activation_offload, 0);
  EXPECT_TRUE(filled(with_arguments(argument("cpu_offloading_num_layers", "4") +
                                    argument("cpu_offloading_weights", "True")))
                  .notes_that("cpu_offloading_weights"));
}

}  // namespace
}  // namespace sextant

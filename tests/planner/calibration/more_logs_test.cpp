// Logs of DeepSpeed and Megatron-Bridge, and the JSON of nccl-tests. The texts are made up; their form is that of the programs
// (deepspeedai/DeepSpeed edaa722 timer.py, config.py and pipe/engine.py; NVIDIA-NeMo/Megatron-Bridge 067f987 train_utils.py;
// NVIDIA/nccl-tests a0b82b2 util.cu).
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.hpp"
#include "planner/calibration/nccl_table.hpp"
#include "planner/calibration/run_log.hpp"

namespace sextant {
namespace {

std::string deepspeed_log() {
  std::string text =
      "[2026-02-03 04:05:06,001] [INFO] [config.py:1009:print] DeepSpeedEngine configuration:\n"
      "[2026-02-03 04:05:06,001] [INFO] [config.py:1013:print]   bfloat16_enabled ............. True\n"
      "[2026-02-03 04:05:06,001] [INFO] [config.py:1013:print]   gradient_accumulation_steps .. 4\n"
      "[2026-02-03 04:05:06,001] [INFO] [config.py:1013:print]   train_batch_size ............. 64\n"
      "[2026-02-03 04:05:06,001] [INFO] [config.py:1013:print]   train_micro_batch_size_per_gpu  2\n"
      "[2026-02-03 04:05:06,001] [INFO] [config.py:1013:print]   world_size ................... 8\n"
      "[2026-02-03 04:05:06,001] [INFO] [config.py:1013:print]   zero_optimization_stage ...... 3\n";
  const double rates[] = {4.0, 15.9, 16.0, 16.1, 16.0, 16.2};
  for (int i = 0; i < 6; ++i)
    text += fmt::format(
        "[2026-02-03 04:0{0}:06,001] [INFO] [timer.py:265:stop] epoch=0/micro_step={1}/global_step={2}, "
        "RunningAvgSamplesPerSec={3}, "
        "CurrSamplesPerSec={3}, MemAllocated=12.5GB, MaxMemAllocated=31.{0}GB\n",
        i, 4 * (i + 1), i + 1, rates[i]);
  return text;
}

TEST(DeepSpeedLog, StatesItsBatchAndRates) {
  const RunLog log = parse_run_log(deepspeed_log(), "ds.log");
  EXPECT_EQ(log.format, LogFormat::deepspeed);
  EXPECT_EQ(log.value, StepValue::sequences_per_s);
  EXPECT_EQ(log.says.at("global_batch"), 64);
  EXPECT_EQ(log.says.at("micro_batch"), 2);
  EXPECT_EQ(log.says.at("dp"), 8);
  EXPECT_EQ(log.says.at("zero_stage"), 3);
  EXPECT_EQ(log.compute, Dtype::bf16);
  EXPECT_EQ(log.steps.size(), 6U);
  EXPECT_NEAR(log.peak_memory_GiB.value(), 31.5, 1e-9);
  EXPECT_EQ(log.memory_kind, "torch_allocated");
  ModelSpec model;
  TrainingSpec training;
  ParallelPlan plan;
  apply_log(log, model, training, plan, {.gpus = 8});
  EXPECT_EQ(plan.zero_stage, 3);
  EXPECT_EQ(plan.dp, 8);
  EXPECT_EQ(training.global_batch, 64);
  EXPECT_NEAR(steady_step(log, training, plan).v, 64 / 16.0, 0.03);  // the rate is of the whole job
}

// Until the end of 2022, the mean rate alone: lines as in deepspeedai/DeepSpeed#1825; #2629 (0.7.7) has both.
TEST(DeepSpeedLog, MeanRatesOfOldVersions) {
  std::string text;
  for (int i = 1; i < 7; ++i)
    text += fmt::format(
        "[2022-03-11 02:0{0}:58,985] [INFO] [timer.py:189:stop] 0/{0}0, SamplesPerSec=16.{0}, "
        "MemAllocated=0.26GB, MaxMemAllocated=9.02GB\n",
        i);
  const RunLog log = parse_run_log(text, "old.log");
  EXPECT_EQ(log.format, LogFormat::deepspeed);
  EXPECT_EQ(log.value, StepValue::sequences_per_s);
  ASSERT_EQ(log.steps.size(), 6U);
  EXPECT_NEAR(log.steps.back().value, 16.6, 1e-9);
  EXPECT_NEAR(log.peak_memory_GiB.value(), 9.02, 1e-9);
  // Where both stand, the rate of the step counts.
  EXPECT_NEAR(parse_run_log("0/17, RunningAvgSamplesPerSec=158.3, CurrSamplesPerSec=12.5, x\n", "x.log")
                  .steps.at(0)
                  .value,
              12.5, 1e-9);
}

TEST(DeepSpeedLog, PipelineEnginePrintsTimes) {
  std::string text;
  for (int i = 1; i < 5; ++i)
    text += fmt::format("steps: {} loss: 9.1{} iter time (s): {} samples/sec: 31.9\n", 10 * i, i,
                        i == 1 ? "9.500" : "2.004");
  const RunLog log = parse_run_log(text, "pipe.log");
  EXPECT_EQ(log.value, StepValue::seconds);
  EXPECT_NEAR(steady_step(log, TrainingSpec(), ParallelPlan()).v, 2.004, 1e-9);
}

TEST(DeepSpeedLog, BadSteps) {
  EXPECT_THROW(parse_run_log("epoch=0/micro_step=1/global_step=1, CurrSamplesPerSec=0, x\n", "ds.log"),
               ConfigError);
  EXPECT_THROW(parse_run_log("epoch=0/micro_step=1/global_step=1, CurrSamplesPerSec=nan, x\n", "ds.log"),
               ConfigError);
  try {
    parse_run_log("loss 3.1\n", "x.log");
    ADD_FAILURE();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("DeepSpeed ('CurrSamplesPerSec=')"), std::string::npos)
        << error.what();
  }
}

TEST(BridgeLog, StatesItsLayoutInItsPrintedConfiguration) {
  std::string text =
      "------- Task Configuration -------\nmodel:\n  hidden_size: 4096\n  num_layers: 32\n  "
      "num_attention_heads: 32\n  ffn_hidden_size: 14336\n"
      "  tensor_model_parallel_size: 2\n  pipeline_model_parallel_size: 4\n  "
      "virtual_pipeline_model_parallel_size: 2\n"
      "  context_parallel_size: 1\n  sequence_parallel: true\n  recompute_granularity: "
      "selective\nmixed_precision:\n  bf16: true\n"
      "ddp:\n  grad_reduce_in_fp32: true\n  overlap_grad_reduce: true\n  use_distributed_optimizer: true\n"
      "train:\n  global_batch_size: 128\n  micro_batch_size: 1\n----------------------------------\n";
  for (int i = 1; i < 5; ++i)
    text += fmt::format(
        "Step Time : {0:.2f}s GPU utilization: 420.1MODEL_TFLOP/s/GPU\n"
        " [2026-02-03 04:06:06] iteration {1:8d}/     100 | consumed samples: {2:12d} | elapsed time per "
        "iteration (ms): {3:.1f} | learning "
        "rate: 3.0E-06 | global batch size:   128 | lm loss: 1.01E+01 |\n",
        i == 1 ? 60.0 : 5.0, i, 128 * i, i == 1 ? 60000.0 : 5000.0);
  const RunLog log = parse_run_log(text, "bridge.log");
  EXPECT_EQ(log.format, LogFormat::megatron_bridge);
  ModelSpec model;
  model.n_layers = 32;
  model.hidden = 4096;
  model.n_heads = 32;
  model.ffn_hidden = 14336;
  TrainingSpec training;
  ParallelPlan plan;
  apply_log(log, model, training, plan, {.gpus = 64});
  EXPECT_EQ(plan_key(plan), "tp2.pp4.vp2.cp1.dp8.z1.mbs1.sel");
  EXPECT_EQ(training.global_batch, 128);
  EXPECT_EQ(training.gradient, Dtype::fp32);
  EXPECT_NEAR(steady_step(log, training, plan).v, 5.0, 1e-9);
}

nlohmann::json nccl_json(const std::string& program, int ranks_of_a_node, const std::string& redop) {
  nlohmann::json j = {{"version", 3},
                      {"args", {"/opt/" + program, "-b", "16M"}},
                      {"env", {"X=alltoall_perf"}},
                      {"devices", nlohmann::json::array()},
                      {"results", nlohmann::json::array()}};
  for (int r = 0; r < 2 * ranks_of_a_node; ++r)
    j["devices"].push_back({{"rank", r},
                            {"hostname", r < ranks_of_a_node ? "a" : "b"},
                            {"device", r % ranks_of_a_node},
                            {"device_info", "NVIDIA H100 80GB HBM3"}});
  for (const double mb : {16.0, 256.0, 1024.0}) {
    const double us = mb * 1048576 / 150e9 * 1e6;
    j["results"].push_back(
        {{"size", mb * 1048576},
         {"count", 1024},
         {"type", "float"},
         {"redop", redop},
         {"root", "-1"},
         {"out_of_place", {{"time", us}, {"alg_bw", 150.0}, {"bus_bw", 281.25}, {"nwrong", "0"}}},
         {"in_place", {{"time", us}, {"alg_bw", 150.0}, {"bus_bw", 281.25}}}});
  }
  return j;
}

TEST(NcclJson, IsReadAsItsTable) {
  const NcclTable t = parse_nccl_table(nccl_json("all_reduce_perf", 8, "sum").dump(), "t.json");
  EXPECT_EQ(t.kind, CollectiveKind::all_reduce);
  EXPECT_EQ(t.ranks, 16);
  EXPECT_EQ(t.nodes, 2);
  EXPECT_EQ(t.node_of[7], 0);
  EXPECT_EQ(t.node_of[8], 1);
  EXPECT_EQ(t.device, "NVIDIA H100 80GB HBM3");
  ASSERT_EQ(t.samples.size(), 3U);
  EXPECT_EQ(t.samples[0].bytes, 16777216);
  EXPECT_NEAR(t.samples[0].time_s, 16777216 / 150e9, 1e-9);
  // The variables of the environment name no program.
  EXPECT_EQ(parse_nccl_table(nccl_json("all_gather_perf", 4, "none").dump(), "t.json").kind,
            CollectiveKind::all_gather);
  EXPECT_THROW(parse_nccl_table(nccl_json("alltoall_perf", 4, "none").dump(), "t.json"), ConfigError);
}

TEST(NcclJson, WrongResultsAreRefused) {
  nlohmann::json j = nccl_json("all_reduce_perf", 8, "sum");
  for (const auto& [place, wrong] :
       {std::pair{"out_of_place", nlohmann::json("7")}, {"in_place", nlohmann::json(7.0)}}) {
    nlohmann::json one = j;
    one["results"][1][place]["nwrong"] = wrong;
    try {
      parse_nccl_table(one.dump(), "t.json");
      ADD_FAILURE() << place;
    } catch (const ConfigError& e) {
      EXPECT_NE(std::string(e.what()).find(std::string("results[1].") + place), std::string::npos)
          << e.what();
      EXPECT_NE(std::string(e.what()).find("found 7 elements"), std::string::npos) << e.what();
    }
  }
  j["results"][1]["out_of_place"]["nwrong"] = nullptr;  // not checked
  EXPECT_EQ(parse_nccl_table(j.dump(), "t.json").samples.size(), 3U);
}

TEST(NcclJson, WhatIsNotMeasuredIsLeftOutAndWhatIsCutIsRefused) {
  nlohmann::json j = nccl_json("all_reduce_perf", 8, "sum");
  j["results"][0]["out_of_place"]["time"] = "nan";
  j["results"][1]["out_of_place"] = nullptr;
  EXPECT_EQ(parse_nccl_table(j.dump(), "t.json").samples.size(), 1U);
  for (const char* key : {"devices", "results"}) {
    nlohmann::json without = j;
    without.erase(key);
    EXPECT_THROW(parse_nccl_table(without.dump(), "t.json"), ConfigError) << key;
  }
  const std::string text = j.dump();
  try {
    parse_nccl_table(text.substr(0, text.size() / 2), "t.json");
    ADD_FAILURE();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("JSON that ends early"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace sextant

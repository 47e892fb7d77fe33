// Logs in the formats that Megatron-LM, torchtitan, nanotron and nccl-tests print. The texts are made up; their form is
// that of the programs (NVIDIA/Megatron-LM training.py and arguments.py, pytorch/torchtitan metrics.py,
// huggingface/nanotron logging, NVIDIA/nccl-tests common.cu).
#include "planner/calibration/run_log.hpp"

#include <numeric>
#include <sstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "core/cluster/cluster_files.hpp"
#include "core/cluster/topology.hpp"
#include "core/model/model_files.hpp"
#include "cost_models/collective.hpp"
#include "planner/calibration/calibrate_network.hpp"
#include "planner/calibration/nccl_table.hpp"
#include "tests/support/measured.hpp"

namespace sextant {
namespace {

constexpr const char* kMegatron =
    R"(using world size: 64, data-parallel size: 16, tensor-model-parallel size: 2
------------------------ arguments ------------------------
  context_parallel_size ........................... 1
  data_parallel_size .............................. 16
  ffn_hidden_size ................................. 13824
  global_batch_size ............................... 1024
  hidden_size ..................................... 5120
  lr .............................................. 0.0003
  micro_batch_size ................................ 1
  num_attention_heads ............................. 40
  num_layers ...................................... 40
  num_layers_per_virtual_pipeline_stage ........... 10
  pipeline_model_parallel_size .................... 2
  recompute_granularity ........................... selective
  seq_length ...................................... 4096
  sequence_parallel ............................... True
  tensor_model_parallel_size ...................... 2
  use_distributed_optimizer ....................... True
-------------------- end of arguments ---------------------
[rank0]: [2026-02-03 04:05:06] iteration        1/     100 | consumed samples:         1024 | elapsed time per iteration (ms): 91234.5 | throughput per GPU (TFLOP/s/GPU): 60.1 | learning rate: 3.000000E-06 | global batch size:  1024 | lm loss: 1.035E+01 | loss scale: 1.0 | grad norm: 9.1 |
[Rank 0] (after 1 iterations) memory (MB) | allocated: 10240.0 | max allocated: 51200.5 | reserved: 60000.0 | max reserved: 60000.0
 [2026-02-03 04:05:36] iteration        2/     100 | consumed samples:         2048 | elapsed time per iteration (ms): 30100.0 | learning rate: 3.000000E-06 | global batch size:  1024 | lm loss: 1.02E+01 |
 [2026-02-03 04:06:06] iteration        3/     100 | consumed samples:         3072 | elapsed time per iteration (ms): 30000.0 | learning rate: 3.000000E-06 | global batch size:  1024 | lm loss: 1.01E+01 |
 [2026-02-03 04:06:36] iteration        4/     100 | consumed samples:         4096 | elapsed time per iteration (ms): 29900.0 | learning rate: 3.000000E-06 | global batch size:  1024 | lm loss: 1.01E+01 |
 [2026-02-03 04:07:06] iteration        5/     100 | consumed samples:         5120 | elapsed time per iteration (ms): 29950.0 | learning rate: 3.000000E-06 | global batch size:  1024 | lm loss: 1.00E+01 |
)";

ModelSpec llama_13b() {
  ModelSpec m;
  m.n_layers = 40, m.hidden = 5120, m.n_heads = m.n_kv_heads = 40, m.head_dim = 128, m.ffn_hidden = 13824;
  return m;
}

TEST(RunLog, MegatronStatesItsLayoutAndItsSteps) {
  const RunLog log = parse_run_log(kMegatron, "train.log");
  EXPECT_EQ(log.format, LogFormat::megatron_lm);
  ASSERT_EQ(log.steps.size(), 5U);
  EXPECT_DOUBLE_EQ(log.steps[0].value, 91.2345);
  EXPECT_DOUBLE_EQ(log.peak_memory_GiB.value(), 51200.5 / 1024);
  EXPECT_EQ(log.memory_kind, "torch_allocated");
  ModelSpec model = llama_13b();
  TrainingSpec training;
  ParallelPlan plan;
  apply_log(log, model, training, plan, {});
  EXPECT_EQ(training.seq_len, 4096);
  EXPECT_EQ(training.global_batch, 1024);
  EXPECT_EQ(plan_key(plan), "tp2.pp2.vp2.cp1.dp16.z1.mbs1.sel");
  EXPECT_TRUE(plan.sequence_parallel);
  // The first steps warm up: the median of the last three is what counts.
  EXPECT_DOUBLE_EQ(steady_step(log, training, plan).v, 29.95);
}

TEST(RunLog, ContradictionsAreNamed) {
  const RunLog log = parse_run_log(kMegatron, "train.log");
  ModelSpec model = llama_13b();
  model.hidden = 4096;
  TrainingSpec training;
  ParallelPlan plan;
  try {
    apply_log(log, model, training, plan, {});
    FAIL() << "accepted";
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("hidden"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("5120"), std::string::npos) << e.what();
  }
  model = llama_13b();
  plan.tp = 4;  // stated by the user, and the log says 2
  EXPECT_THROW(apply_log(log, model, training, plan, {.plan = true}), ConfigError);
}

TEST(RunLog, TorchtitanGivesTokensPerSecond) {
  const RunLog log = parse_run_log(
      "[rank0]:[titan] 2026-06-26 18:12:46,592 - root - INFO - Building 2-D device mesh with ['dp_shard', "
      "'tp'], [4, 2]\n"
      "[rank0]:[titan] 2026-06-26 18:12:49,592 - root - INFO - Trainer is initialized with local batch size "
      "2, global "
      "batch size 8, gradient accumulation steps 1, sequence length 8192, total steps 1000 (warmup 200)\n"
      "[rank0]:[titan] 2026-06-26 18:23:14,389 - root - INFO - step:  1  loss:  8.1996  grad_norm:  2.4  "
      "memory: "
      "42.65GiB(53.79%)  tps: 1,772  tflops: 90.13  mfu: 9.01%\n"
      "[rank0]:[titan] 2026-06-26 18:23:24,486 - root - INFO - step: 10  loss:  8.1709  memory: "
      "47.66GiB(60.80%)  "
      "tps: 6,094  tflops: 312.14  mfu: 31.23%\n",
      "titan.log");
  EXPECT_EQ(log.format, LogFormat::torchtitan);
  EXPECT_DOUBLE_EQ(log.peak_memory_GiB.value(), 47.66);
  ModelSpec model;
  TrainingSpec training;
  ParallelPlan plan;
  apply_log(log, model, training, plan, {});
  EXPECT_EQ(plan.dp, 4);
  EXPECT_EQ(plan.tp, 2);
  EXPECT_EQ(plan.zero_stage, 3);
  EXPECT_EQ(plan.micro_batch, 2);
  EXPECT_EQ(training.seq_len, 8192);
  EXPECT_DOUBLE_EQ(steady_step(log, training, plan).v, 8.0 * 8192 / 8 / 6094);
  const RunLog newer = parse_run_log(
      "INFO - Building device mesh with parallelism: pp=2, dp_replicate=2, dp_shard=8, cp=1, tp=4, ep=1\n"
      "step: 1 loss: 1 memory: 1.00GiB(1%) tps: 10\n",
      "new.log");
  EXPECT_EQ(newer.says.at("dp"), 16);
  EXPECT_EQ(newer.says.at("shard_degree"), 8);
  EXPECT_EQ(newer.says.at("pp"), 2);
}

// pytorch/torchtitan b5bcd76: trainer.py, distributed/activation_checkpoint.py, distributed/fsdp.py.
TEST(RunLog, TorchtitanOfToday) {
  const RunLog log = parse_run_log(
      "Building device mesh with parallelism: pp=1, dp_replicate=2, dp_shard=4, cp=1, tp=1, ep=1\n"
      "Applied FullAC activation checkpointing to the model\n"
      "Applied HSDP to the model\n"
      "Applied CPU Offloading to the model\n"
      "Trainer is initialized with 16384 tokens per DP rank, 262144 tokens per train step, gradient "
      "accumulation steps 2, "
      "maximum context length 8192, total steps 1000 (warmup 200)\n"
      "step: 1 loss: 1 memory: 1.00GiB(1%) tps: 10\n",
      "titan.log");
  ModelSpec model;
  TrainingSpec training;
  ParallelPlan plan;
  apply_log(log, model, training, plan, {});
  EXPECT_EQ(training.seq_len, 8192);
  EXPECT_EQ(training.global_batch, 32);
  EXPECT_EQ(plan_key(plan), "tp1.pp1.vp1.cp1.dp8.z3.mbs2.full.sd4.oo100.po");
  EXPECT_EQ(log.kernels.blocks(), Blocks::eager);
  EXPECT_EQ(parse_run_log("step: 1 loss: 1 memory: 1.00GiB(1%) tps: 10\n", "short.log").kernels.blocks(),
            std::nullopt);
}

TEST(RunLog, MegatronSaysItsKernelsAndGpus) {
  const auto with = [](const char* more) {
    std::string text = kMegatron;
    return parse_run_log(text.insert(text.find("  lr ..."), more), "train.log");
  };
  EXPECT_EQ(with("").kernels.attention, std::nullopt);
  for (const auto& [arguments, kernel] :
       {std::pair{"  attention_backend ............................... AttnBackend.flash\n",
                  AttentionKernel::flash2},
        {"  attention_backend ............................... AttnBackend.fused\n", AttentionKernel::cudnn},
        {"  transformer_impl ................................ local\n  use_flash_attn "
         "......................... True\n",
         AttentionKernel::flash2},
        {"  masked_softmax_fusion ........................... True\n  transformer_impl "
         "....................... local\n",
         AttentionKernel::fused_softmax},
        {"  masked_softmax_fusion ........................... False\n  transformer_impl "
         "...................... local\n",
         AttentionKernel::unfused}})
    EXPECT_EQ(with(arguments).kernels.attention, kernel) << arguments;
  StackSpec stack;
  TrainingSpec training;
  training.parameter = Dtype::bf16, training.gradient = Dtype::fp32;
  apply_kernels(with("  gradient_accumulation_fusion .................... False\n").kernels, training, stack);
  EXPECT_DOUBLE_EQ(stack.kernels.accumulate_bytes, 2 + 4 + 4);
  apply_kernels(with("  gradient_accumulation_fusion .................... True\n").kernels, training, stack);
  EXPECT_DOUBLE_EQ(stack.kernels.accumulate_bytes, 0);
  const auto notes = apply_kernels(
      with("  bias_swiglu_fusion .............................. False\n").kernels, training, stack);
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_NE(notes[0].find("bias_swiglu_fusion off"), std::string::npos);
  // 64 GPUs, as the log says: a layout of 32 is another run's.
  ModelSpec model = llama_13b();
  ParallelPlan plan;
  plan.tp = plan.pp = 2, plan.dp = 8, plan.vp = 2, plan.zero_stage = 1;
  EXPECT_THROW(
      apply_log(parse_run_log("using world size: 64, data-parallel size\n iteration        2/     100 | "
                              "elapsed time per iteration (ms): 30100.0 |\n",
                              "short.log"),
                model, training, plan, {.plan = true, .gpus = 64}),
      ConfigError);
}

// huggingface/nanotron 2411b02: config.py, print_config_details.
TEST(RunLog, NanotronPrintsItsConfiguration) {
  const RunLog log = parse_run_log(
      "num_layers: 16\n"
      "seq_len: 4096 | mbs: 2 | batch_accum: 4 | gbs: 524K | train_steps: 100 | total_tokens: 52.4M\n"
      "tp: 4 | pp: 1 | dp: 16 | cp: 1 | ep: 1\n"
      "zero_stage: 1 | full_checkpointing: True\n"
      "iteration: 5 / 20 | consumed_tokens: 5.24M | time_per_iteration_ms: 4.2K | tokens_per_sec: 91.2K | "
      "global_batch_size: 524K | lm_loss: 9.63\n",
      "nt.log");
  ModelSpec model = llama_13b();
  model.n_layers = 16;
  TrainingSpec training;
  ParallelPlan plan;
  apply_log(log, model, training, plan, {});
  EXPECT_EQ(plan_key(plan), "tp4.pp1.vp1.cp1.dp16.z1.mbs2.full.nosp");
  EXPECT_EQ(training.seq_len, 4096);
  EXPECT_EQ(training.global_batch, 2 * 4 * 16);
}

TEST(RunLog, NanotronShortensItsNumbers) {
  const RunLog log = parse_run_log(
      "01/17/2026 14:02:10 [INFO|DP=0|PP=0|TP=0|ip-26-0-160-225]: ParallelismArgs(dp=4, pp=1, "
      "pp_engine=None, tp=2, "
      "tp_linear_async_communication=True)\n"
      "01/17/2026 14:02:16 [INFO|DP=0|PP=0|TP=0|ip-26-0-160-225]: iteration: 5 / 20 | consumed_tokens: 5.24M "
      "| "
      "elapsed_time_per_iteration_ms: 11.5K | tokens_per_sec: 91.2K | tokens_per_sec_per_gpu: 11.4K | "
      "global_batch_size: 256 | lm_loss: 9.63 | lr: 1e-05 | model_tflops_per_gpu: 338 | "
      "hardware_tflops_per_gpu: 338 | "
      "grad_norm: 1.11 | cuda_memory_allocated: 9.09G | cuda_max_memory_reserved: 53.7G | "
      "hd_total_memory_tb: 312G\n",
      "nt.log");
  EXPECT_EQ(log.format, LogFormat::nanotron);
  ASSERT_EQ(log.steps.size(), 1U);
  EXPECT_DOUBLE_EQ(log.steps[0].value, 11.5);
  EXPECT_NEAR(log.peak_memory_GiB.value(), 53.7e9 / 1073741824.0, 1e-9);
  EXPECT_EQ(log.says.at("global_batch"), 256);
  EXPECT_EQ(log.says.at("dp"), 4);
  EXPECT_EQ(log.says.at("tp"), 2);
  EXPECT_EQ(log.says.at("overlap_tp"), 1);
}

// What nanotron 2024-12 prints of itself; batch and accumulation as in a run of 1,024 sequences.
std::string nanotron(const char* accumulation, const char* printed_batch, const char* more = "") {
  return fmt::format(
      "[INFO|DP=0|PP=0|TP=0]: Config(general=GeneralArgs(project='bench'),\n"
      "       parallelism=ParallelismArgs(dp=64, pp=1, tp=2, "
      "tp_mode=<TensorParallelLinearMode.REDUCE_SCATTER: "
      "2>, {}\n"
      "       tokens=TokensArgs(sequence_length=4096, train_steps=20, micro_batch_size=2, {}))\n"
      "[INFO|DP=0|PP=0|TP=0]: iteration: 5 / 20 | consumed_tokens: 20.9M | elapsed_time_per_iteration_ms: "
      "11.5K "
      "| global_batch_size: {} | cuda_max_memory_reserved: 53.7G\n",
      more, accumulation, printed_batch);
}

struct Filled {
  ModelSpec model = llama_13b();
  TrainingSpec training;
  ParallelPlan plan;
  std::vector<std::string> notes;
  Filled(const std::string& text, const LogContext& context, int batch = 0) {
    if (batch > 0) training.global_batch = batch;
    notes = apply_log(parse_run_log(text, "x.log"), model, training, plan, context);
  }
};

TEST(RunLog, NanotronBatchIsTakenExactly) {
  const auto batch = [](const std::string& text, const LogContext& context, int stated = 0) {
    return Filled(text, context, stated).training.global_batch;
  };
  const std::string counted = nanotron("batch_accumulation_per_replica=8", "1.02K");
  EXPECT_EQ(batch(counted, {}), 1024);
  EXPECT_EQ(batch(counted, {.global_batch = true}, 1024), 1024);
  EXPECT_THROW(batch(counted, {.global_batch = true}, 1020), ConfigError);
  EXPECT_THROW(batch(nanotron("batch_accumulation_per_replica=9", "1.02K"), {}), ConfigError);
  // Without the configuration: what the ranks can make and is printed so; only where that is one number.
  const std::string rounded = nanotron("", "1.02K");
  EXPECT_EQ(batch(rounded, {}), 1024);  // 128 at once: 896, 1024, 1152
  EXPECT_EQ(batch(rounded, {.global_batch = true}, 1024), 1024);
  EXPECT_THROW(batch(rounded, {.global_batch = true}, 1152), ConfigError);
  EXPECT_THROW(batch(nanotron("", "102K"), {}), ConfigError);  // 101,500 to 102,500 holds eight multiples
  EXPECT_EQ(batch(nanotron("", "256"), {}), 256);              // below a thousand nothing is rounded
}

TEST(RunLog, RecomputeIsReadFromEveryFormat) {
  const auto recompute = [](const std::string& text) {
    const Filled f(text, {});
    return plan_key(f.plan).substr(plan_key(f.plan).find("mbs"));
  };
  EXPECT_EQ(recompute(nanotron("", "256", "recompute_layer=True,")), "mbs2.full");
  EXPECT_EQ(recompute(nanotron("", "256", "recompute_layer=False,")), "mbs2");
  const std::string
      mesh = "Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=8, cp=1, tp=1\n",
      step = "step: 1 loss: 1 memory: 1.00GiB(1%) tps: 10\n";
  EXPECT_EQ(recompute(mesh + step), "mbs1");
  EXPECT_EQ(recompute(mesh + "Applied full activation checkpointing to the model\n" + step), "mbs1.full");
  const std::string selective = "Applied selective activation checkpointing to the model\n";
  EXPECT_EQ(recompute(mesh + selective + step), "mbs1.sel");  // by operation, and says so
  EXPECT_EQ(Filled(mesh + selective + step, {}).notes.size(), 1U);
  EXPECT_EQ(recompute("\"selective_ac_option\": \"op\"\n" + mesh + selective + step), "mbs1.sel");
  const Filled without(mesh + selective + step, {.selective_by_operation = false});
  EXPECT_EQ(without.plan.recompute.kind, RecomputeKind::none);  // cheap operations only
  EXPECT_EQ(without.notes.size(), 1U);
  EXPECT_EQ(recompute("\"selective_ac_option\": \"2\"\n" + mesh + selective + step), "mbs1.full20");
  std::string megatron = kMegatron;
  megatron.replace(megatron.find("selective"), 9, "full");
  EXPECT_EQ(recompute(megatron), "mbs1.full");
  const std::string block =
      "  recompute_method ................................ block\n"
      "  recompute_num_layers ............................ 4\n";
  EXPECT_EQ(recompute(block + megatron), "mbs1.full4");
  EXPECT_EQ(recompute(block + kMegatron), "mbs1.sel");  // the method is of full recompute
}

TEST(RunLog, MegatronStatesOverlapAndNumberFormats) {
  const Filled usual(kMegatron, {});
  EXPECT_TRUE(usual.plan.overlap_grad_reduce && usual.plan.overlap_param_gather);
  const Filled f(
      "  accumulate_allreduce_grads_in_fp32 .............. True\n"
      "  bf16 ............................................ True\n"
      "  fp8 ............................................. hybrid\n"
      "  grad_reduce_in_bf16 ............................. True\n"
      "  overlap_grad_reduce ............................. False\n"
      "  overlap_param_gather ............................ False\n"
      "  tp_comm_overlap ................................. True\n" +
          std::string(kMegatron),
      {});
  EXPECT_FALSE(f.plan.overlap_grad_reduce || f.plan.overlap_param_gather);
  EXPECT_TRUE(f.plan.overlap_tp);
  EXPECT_EQ(f.training.compute, Dtype::fp8);
  EXPECT_EQ(f.training.gradient, Dtype::fp32);
  EXPECT_EQ(f.training.reduction, Dtype::bf16);
  EXPECT_EQ(usual.training.compute, Dtype::bf16);
}

std::string refusal(const std::string& text) {
  try {
    parse_run_log(text, "x.log");
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

TEST(RunLog, StepsOfNoTimeAndSecondRunsAreRefusedByLine) {
  std::string zero = kMegatron;
  zero.replace(zero.find("30000.0"), 7, "0.0");
  EXPECT_NE(refusal(zero).find("x.log:23"), std::string::npos) << refusal(zero);
  EXPECT_NE(refusal("step: 1 loss: 1 tps: 0\n").find("x.log:1"), std::string::npos);
  // Another layout behind the first run's steps; the same one again is a run that went on.
  std::string other = kMegatron;
  const std::string tp = "tensor_model_parallel_size ...................... ";
  other.replace(other.find(tp), tp.size() + 1, tp + "4");
  const std::string mixed = refusal(kMegatron + other);
  EXPECT_NE(mixed.find("x.log:42"), std::string::npos) << mixed;
  EXPECT_NE(mixed.find("tp"), std::string::npos) << mixed;
  EXPECT_EQ(refusal(std::string(kMegatron) + kMegatron), "");
  std::string growing = kMegatron;
  growing.replace(growing.rfind("global batch size:  1024"), 24, "global batch size:  2048");
  EXPECT_NE(refusal(growing).find("global_batch"), std::string::npos) << refusal(growing);
}

// A Megatron-LM log of these step times in ms, as printed; the first warms up.
std::string steps_of(const std::vector<std::string>& ms, int first = 1) {
  std::string text = "------------------------ arguments ------------------------\n";
  for (const std::string& one : ms)
    text += fmt::format(
        " iteration {:8}/     100 | elapsed time per iteration (ms): {} | global batch size: 64 |\n", first++,
        one);
  return text;
}

double steady(const std::string& text) {
  return steady_step(parse_run_log(text, "x.log"), TrainingSpec{}, ParallelPlan{}).v;
}

std::string steady_refusal(const std::string& text) {
  try {
    steady(text);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

TEST(RunLog, TheFirstStepOfARunIsNeverTheMeasurement) {
  EXPECT_DOUBLE_EQ(steady(steps_of({"60000", "30000"})), 30);
  EXPECT_DOUBLE_EQ(steady(steps_of({"60000", "30000", "31000"})), 31);
  EXPECT_DOUBLE_EQ(steady(steps_of({"nan", "30000"})), 30);  // the first is the first, read or not
  // A run that goes on behind it warms up again, with its arguments or without; so do all ranks of one step.
  EXPECT_DOUBLE_EQ(steady(steps_of({"60000", "30000"}) + steps_of({"90000"}, 3)), 30);
  const std::string again = steps_of({"90000"}, 1);
  EXPECT_DOUBLE_EQ(steady(steps_of({"60000", "30000"}) + again.substr(again.find('\n') + 1)), 30);
  const std::string rank = "step: 1 loss: 9 memory: 1.00GiB(1%) tps: 10 mfu: 1%\n";
  const RunLog ranks = parse_run_log(rank + rank + rank +
                                         "step: 10 loss: 8 memory: 1.00GiB(1%) tps: 40 mfu: 1%\n"
                                         "validate step: 10 loss: 8 memory: 1.00GiB(1%) tps: 9000\n",
                                     "titan.log");
  TrainingSpec training;
  training.global_batch = 1, training.seq_len = 400;
  EXPECT_DOUBLE_EQ(steady_step(ranks, training, ParallelPlan{}).v, 10);
  for (const std::string& none :
       {steps_of({"60000"}), steps_of({"60000", "nan"}), steps_of({"60000"}) + again})
    for (const char* said : {"x.log:2", "warms up", "at least one step behind it", "log more steps"})
      EXPECT_NE(steady_refusal(none).find(said), std::string::npos) << none << steady_refusal(none);
}

TEST(RunLog, WhatCannotBeReadIsNamedByItsLineAndLeftOut) {
  const auto unread = [](const std::string& text) {
    std::string said;
    for (const Problem& p : parse_run_log(text, "x.log").unread) said += to_string(p) + '\n';
    return said;
  };
  const std::string sound = steps_of({"60000", "30000", "31000"});
  EXPECT_EQ(unread(sound), "");
  const std::string nan = steps_of({"60000", "nan", "31000"});
  for (const char* said : {"x.log:3", "found nan", "milliseconds above 0", "left out"})
    EXPECT_NE(unread(nan).find(said), std::string::npos) << unread(nan);
  EXPECT_DOUBLE_EQ(steady(nan), 31);
  // A log that ends inside a line, in a number that would be a time as well: 31000 ms cut to 31.
  const std::string cut = sound.substr(0, sound.find("31000") + 2);
  EXPECT_NE(unread(cut).find("x.log:4"), std::string::npos) << unread(cut);
  EXPECT_DOUBLE_EQ(steady(cut), 30);
  EXPECT_NE(
      unread(sound.substr(0, sound.find("/     100 | elapsed", sound.find("30000")) + 12)).find("x.log:4"),
      std::string::npos);
  EXPECT_DOUBLE_EQ(steady(sound.substr(0, sound.size() - 1)), 31);  // cut behind the number: it counts
  const std::string none = refusal(steps_of({"nan", "inf"}));
  for (const char* said : {"x.log:2", "found nan", "log more of them"})
    EXPECT_NE(none.find(said), std::string::npos) << none;
}

// What is said when a log of this line is applied to a preset's model; nothing where they agree.
std::string of_model(const char* preset, const std::string& line, const std::string& steps, int tp = 1,
                     int pp = 1) {
  ModelSpec model = load_model(preset, test::preset_dir());
  TrainingSpec training;
  ParallelPlan plan;
  plan.tp = tp, plan.pp = pp;
  try {
    apply_log(parse_run_log(line + "\n" + steps, "x.log"), model, training, plan, {.plan = true});
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

TEST(RunLog, ALogOfAnotherModelIsRefused) {
  const std::string titan = "step: 1 loss: 9 tps: 10 mfu: 1%\n",
                    nanotron_steps = "iteration: 5 / 20 | elapsed_time_per_iteration_ms: 11.5K | \n",
                    megatron = steps_of({"60000"});
  const auto refused = [](const std::string& said) {
    for (const char* part : {"x.log:1: parameters", "--model names"})
      EXPECT_NE(said.find(part), std::string::npos) << said;
    return !said.empty();
  };
  const std::string size = "Model llama3 8B size: 8,030,261,248 total parameters";
  EXPECT_EQ(of_model("llama-3-8b", size, titan), "");
  EXPECT_TRUE(refused(of_model("llama-2-13b", size, titan)));
  EXPECT_TRUE(refused(of_model("llama-2-7b", size, titan)));
  const std::string said = of_model("llama-2-13b", size, titan);
  for (const char* part : {"8.03 billion", "13.02 billion, which llama-2-13b has"})
    EXPECT_NE(said.find(part), std::string::npos) << said;
  // Tied or not, and rows that make a vocabulary a multiple of something, are the same model.
  const std::int64_t matrix = 128256LL * 2048, tied = 1'235'814'400;
  const auto total = [](std::int64_t n) { return fmt::format("size: {} total parameters", n); };
  for (const std::int64_t n : {tied, tied + matrix, tied + 100 * 2048})
    EXPECT_EQ(of_model("llama-3.2-1b", total(n), titan), "") << n;
  for (const std::int64_t n : {tied + matrix / 2, tied - matrix, tied + 2 * matrix})
    EXPECT_TRUE(refused(of_model("llama-3.2-1b", total(n), titan))) << n;
  // Printed with three digits, or in billions with two decimals.
  EXPECT_EQ(of_model("llama-2-13b", "Total number of parameters: 13G (24826.17MiB)", nanotron_steps), "");
  EXPECT_TRUE(refused(of_model("llama-2-7b", "Total number of parameters: 13G (1MiB)", nanotron_steps)));
  EXPECT_EQ(of_model("llama-3-8b", "Total number of parameters: 8.03B (15316.5MiB)", nanotron_steps), "");
  EXPECT_TRUE(refused(of_model("llama-2-13b", "Total number of parameters: 8.03B", nanotron_steps)));
  EXPECT_EQ(of_model("llama-2-13b", "Total number of parameters in billions: 13.02", megatron), "");
  EXPECT_TRUE(refused(of_model("llama-3-8b", "Total number of parameters in billions: 13.02", megatron)));
}

TEST(RunLog, ParametersOfEachRankAreAddedUp) {
  const ParameterCounts c = parameter_counts(load_model("llama-2-13b", test::preset_dir()));
  const auto ranks = [](std::int64_t each, int tp, int pp) {
    std::string text;
    for (int t = 0; t < tp; ++t)
      for (int p = 0; p < pp; ++p)
        text += fmt::format(
            " > number of parameters on (tensor, pipeline) model parallel rank ({}, {}): {}\n", t, p, each);
    return text;
  };
  const std::int64_t norms = 40 * c.norms + c.final_norm;
  const std::string steps = steps_of({"60000"}), four = ranks((c.total + norms) / 4, 2, 2);
  EXPECT_EQ(of_model("llama-2-13b", four, steps, 2, 2), "");
  EXPECT_NE(of_model("llama-3-8b", four, steps, 2, 2).find("parameters"), std::string::npos);
  EXPECT_EQ(of_model("llama-3-8b", four, steps, 4, 2), "");  // some ranks do not say
  // A vocabulary that the program padded to a number that it prints.
  const std::string padded = "  padded_vocab_size ............................... 40000\n" +
                             ranks((c.total + norms + 2 * 8000 * 5120LL) / 2, 2, 1);
  EXPECT_EQ(of_model("llama-2-13b", padded, steps, 2, 1), "");
  EXPECT_NE(of_model("llama-2-13b", padded.substr(padded.find('\n') + 1), steps, 2, 1), "");
}

TEST(RunLog, OtherTextIsRefused) {
  EXPECT_THROW(parse_run_log("epoch 1 loss 2.3\n", "x.log"), ConfigError);
  EXPECT_THROW(parse_run_log("", "x.log"), ConfigError);
  EXPECT_THROW(parse_run_log("elapsed time per iteration (ms): nan |", "x.log"), ConfigError);
}

// A table as all_reduce_perf prints it for `nodes` nodes of eight, with times of a network of our own making.
std::string nccl_text(int nodes, double bus_GBps, double latency_us, const char* redop, double factor) {
  std::string text =
      "# nThread 1 nGpus 1 minBytes 33554432 maxBytes 8589934592 step: 2(factor)\n#\n# Using devices\n";
  const int ranks = 8 * nodes;
  for (int r = 0; r < ranks; ++r)
    text +=
        fmt::format("#  Rank {:2} Group  0 Pid {:6} on   node{:03} device  {} [0x07] NVIDIA A100-SXM4-80GB\n",
                    r, 1000 + r, r / 8, r % 8);
  text +=
      "#\n#                                                              out-of-place                       "
      "in-place\n"
      "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw "
      "  busbw "
      "#wrong\n";
  for (std::int64_t bytes = 1 << 25; bytes <= (1LL << 33); bytes *= 2) {
    const double moved = factor * (ranks - 1) / ranks * static_cast<double>(bytes);
    const double us = latency_us + moved / (bus_GBps * 1e3);
    const double algorithm = static_cast<double>(bytes) / us / 1e3;
    text += fmt::format(
        "{:12} {:13} {:>9} {:>7} {:>7} {:8.1f} {:7.2f} {:7.2f} {:>6} {:8.1f} {:7.2f} {:7.2f} {:>6}\n", bytes,
        bytes / 4, "float", redop, -1, us, algorithm, algorithm * factor * (ranks - 1) / ranks, 0, us,
        algorithm, algorithm, 0);
  }
  return text + "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 150\n";
}

TEST(NcclTable, IsReadWithItsKindFromTheFactors) {
  const NcclTable reduce = parse_nccl_table(nccl_text(2, 150, 100, "sum", 2), "ar.txt");
  EXPECT_EQ(reduce.kind, CollectiveKind::all_reduce);
  EXPECT_EQ(reduce.ranks, 16);
  EXPECT_EQ(reduce.nodes, 2);
  ASSERT_EQ(reduce.samples.size(), 9U);
  EXPECT_EQ(reduce.samples.front().bytes, 1 << 25);
  EXPECT_EQ(parse_nccl_table(nccl_text(2, 150, 100, "sum", 1), "rs.txt").kind,
            CollectiveKind::reduce_scatter);
  // Tables of all_gather and alltoall look the same: the program, the file or the caller has to say.
  const std::string none = nccl_text(2, 150, 100, "none", 1);
  EXPECT_THROW(parse_nccl_table(none, "table.txt"), ConfigError);
  EXPECT_EQ(parse_nccl_table(none, "all_gather.txt").kind, CollectiveKind::all_gather);
  EXPECT_EQ(parse_nccl_table("# Collective test starting: all_gather_perf\n" + none, "t.txt").kind,
            CollectiveKind::all_gather);
  EXPECT_EQ(parse_nccl_table(none, "t.txt", CollectiveKind::all_gather).kind, CollectiveKind::all_gather);
  EXPECT_THROW(parse_nccl_table("# Collective test starting: alltoall_perf\n" + none, "t.txt"), ConfigError);
  EXPECT_THROW(parse_nccl_table("algbw busbw\n", "empty.txt"), ConfigError);
}

// A network slower than its preset is found: the fabric's share of its nominal rate is bus over nominal.
TEST(NcclTable, TimesThatAreNoneAreRefused) {
  std::string text = nccl_text(2, 150, 100, "sum", 2);
  text += "    33554432       8388608     float     sum      -1      0.0    0.00    0.00      0\n";
  try {
    parse_nccl_table(text, "ar.txt");
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("ar.txt:"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("above 0"), std::string::npos) << e.what();
  }
}

TEST(NcclTable, CalibratesTheFabric) {
  const auto presets = test::preset_dir();
  const ClusterSpec cluster = load_cluster("4x8xa100-80gb", presets);
  const auto constants = load_cost_preset("ampere", presets / "cost").constants;
  const double nominal = cluster.fabric.bandwidth.v / 1e9;
  const NetworkFit fit =
      calibrate_network(parse_nccl_table(nccl_text(4, 0.6 * nominal, 300, "sum", 2), "ar.txt"), cluster,
                        constants, load_calibration_rules(presets), nullptr);
  ASSERT_EQ(fit.constants.size(), 2U);
  EXPECT_NEAR(fit.constants[0].value, 0.6, 0.03);
  EXPECT_LT(fit.mape_after, 5);
  EXPECT_LT(fit.mape_after, fit.mape_before);
  const ClusterSpec small = load_cluster("2x8xa100-80gb", presets);
  EXPECT_THROW(calibrate_network(parse_nccl_table(nccl_text(4, 100, 2000, "sum", 2), "ar.txt"), small,
                                 constants, load_calibration_rules(presets), nullptr),
               ConfigError);
}

// A table that lies as far from published ones of the idle fabric moves the constants of steps by that factor: one that
// equals them moves nothing, however far steps are from an idle network.
// Ranks sit where the table says: one on each of two nodes shares no NIC and touches no NVLink.
TEST(NcclTable, RanksSitOnTheNodesThatItNames) {
  const auto presets = test::preset_dir();
  const ClusterSpec cluster = load_cluster("4x8xa100-80gb", presets);
  const auto constants = load_cost_preset("ampere", presets / "cost").constants;
  const auto rules = load_calibration_rules(presets);
  NcclTable table = parse_nccl_table(nccl_text(2, 150, 100, "sum", 2), "ar.txt");
  EXPECT_EQ(table.node_of, (std::vector<int>{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1}));
  const auto fitted = [&](std::vector<int> node_of) {
    NcclTable t = table;
    t.nodes = 1 + *std::max_element(node_of.begin(), node_of.end());
    t.ranks = static_cast<int>(node_of.size()), t.node_of = std::move(node_of);
    std::vector<int> seats, taken(4, 0);
    for (const int n : t.node_of) seats.push_back(8 * n + taken[static_cast<std::size_t>(n)]++);
    ClusterSpec slow = cluster;
    slow.fabric.efficiency *= 0.7;
    const GroupShape group = Topology(slow).group_of(seats);
    for (NcclSample& s : t.samples)
      s.time_s = price_collective({t.kind, Bytes(s.bytes), group, false},
                                  Machine(slow.device, slow.node, alone(constants)))
                     .duration.v;
    return calibrate_network(t, cluster, constants, rules, nullptr).constants.at(0).value;
  };
  const double truth = 0.7 * cluster.fabric.efficiency;
  EXPECT_NEAR(fitted({0, 1}), truth, 0.03 * truth);
  EXPECT_NEAR(fitted({0, 0, 1, 1, 2, 2, 3, 3}), truth, 0.03 * truth);
  EXPECT_THROW(fitted(std::vector<int>(9, 0)), ConfigError);
}

// Times in another unit, or of another machine, are no measurement of these links.
TEST(NcclTable, TimesThatNoRateComesNearAreRefused) {
  const auto presets = test::preset_dir();
  const ClusterSpec cluster = load_cluster("4x8xa100-80gb", presets);
  const auto constants = load_cost_preset("ampere", presets / "cost").constants;
  for (const double factor : {1e-3, 1e3}) {
    NcclTable table = parse_nccl_table(nccl_text(2, 150, 100, "sum", 2), "ar.txt");
    for (NcclSample& s : table.samples) s.time_s *= factor;
    EXPECT_THROW(calibrate_network(table, cluster, constants, load_calibration_rules(presets), nullptr),
                 ConfigError)
        << factor;
  }
}

TEST(NcclTable, MovesStepsByTheFactorToPublishedTables) {
  const auto presets = test::preset_dir();
  const ClusterSpec cluster = load_cluster("2x8xh100@efa-p5", presets);
  const auto constants = load_cost_preset("hopper", presets / "cost").constants;
  const auto networks = load_nccl_baselines(presets);
  const NcclBaseline* idle = nccl_baseline_of("efa-p5", networks);
  ASSERT_NE(idle, nullptr);
  EXPECT_EQ(nccl_baseline_of("hdr-8x200", networks), nullptr);
  ClusterSpec quiet = cluster;
  use_network(*idle, quiet.fabric);
  const auto fitted = [&](double slower, const NcclBaseline* known) {
    NcclTable table = parse_nccl_table(nccl_text(2, 150, 100, "sum", 2), "ar.txt");
    std::vector<int> ranks(16);
    std::iota(ranks.begin(), ranks.end(), 0);
    const GroupShape group = Topology(quiet).group_of(ranks);
    for (NcclSample& s : table.samples)
      s.time_s = slower * price_collective({table.kind, Bytes(s.bytes), group, false},
                                           Machine(quiet.device, quiet.node, alone(constants)))
                              .duration.v;
    return calibrate_network(table, cluster, constants, load_calibration_rules(presets), known).constants;
  };
  EXPECT_NEAR(fitted(1, idle)[0].value, cluster.fabric.efficiency, 1e-9);
  EXPECT_NEAR(fitted(1, idle)[1].value, 1e6 * cluster.fabric.latency.v, 1e-6);
  EXPECT_NEAR(fitted(1.2, idle)[0].value, cluster.fabric.efficiency / 1.2, 0.02 * cluster.fabric.efficiency);
  EXPECT_GT(fitted(1, nullptr)[0].value, 1.2 * cluster.fabric.efficiency);  // negative control
}

NetworkFit fit_of_table(const char* where, double bus_GBps, double latency_us) {
  const auto presets = test::preset_dir();
  const ClusterSpec cluster = load_cluster(where, presets);
  const auto constants = load_cost_preset(cluster.device.generation, presets / "cost").constants;
  const auto networks = load_nccl_baselines(presets);
  return calibrate_network(
      parse_nccl_table(nccl_text(cluster.nodes, bus_GBps, latency_us, "sum", 2), "all_reduce.txt"), cluster,
      constants, load_calibration_rules(presets), nccl_baseline_of(cluster.fabric.name, networks));
}

// The bus rate of an all-reduce in the switch may be above the link's rate, and is in the preset.
TEST(NcclTable, TheRateInTheSwitchIsNotHeldBelowTheLinks) {
  for (const double bus_GBps : {405.0, 495.0, 540.0}) {
    const NetworkFit fit = fit_of_table("1x8xh100", bus_GBps, 65);
    ASSERT_EQ(fit.constants.size(), 1U) << bus_GBps;
    EXPECT_EQ(fit.constants[0].constant.key, "link_efficiency_in_switch");
    EXPECT_NEAR(fit.constants[0].value, bus_GBps / 450, 0.05) << bus_GBps;
    EXPECT_LT(fit.mape_after, 5) << bus_GBps;
  }
}

// A network whose rate lies below that of the links inside the node, while the published one lies above: no slope leads
// from the one to the other.
TEST(NcclTable, FindsASlowNetworkBehindFastNodes) {
  for (const char* where : {"2x8xh100@ndr-8x400", "2x8xh100@roce-8x400", "2x8xh100@efa-p5"})
    for (const double bus_GBps : {100.0, 150.0, 200.0, 230.0}) {
      const NetworkFit fit = fit_of_table(where, bus_GBps, 60);
      ASSERT_TRUE(fit.taken) << where << ' ' << bus_GBps;
      EXPECT_GT(fit.mape_before, 12) << where << ' ' << bus_GBps;
      EXPECT_LT(fit.mape_after, 10) << where << ' ' << bus_GBps;
      EXPECT_EQ(fit.constants[0].constant.key, "efficiency");
      EXPECT_LT(fit.constants[0].value, 0.8 * fit.constants[0].constant.prior) << where << ' ' << bus_GBps;
    }
  // Where the links inside the node are the slower, the table says nothing of the network's rate.
  const NetworkFit hidden = fit_of_table("2x8xh100@roce-8x400", 480, 400);
  for (const ConstantFit& k : hidden.constants)
    EXPECT_TRUE(k.constant.key != "efficiency" || k.value == k.constant.prior);
}

// Whatever a table says, a fit does not make it worse; where each would, nothing moves.
TEST(NcclTable, AFitThatMakesTheTableWorseIsNotTaken) {
  int refused = 0;
  using Links = std::pair<const char*, double>;  // GB/s
  for (const auto& [where, nominal] :
       {Links{"1x8xh100", 450}, Links{"2x8xh100@efa-p5", 400}, Links{"2x8xa100-80gb", 200}})
    for (const double share : {0.3, 0.5, 0.7, 1.03})
      for (const double latency_us : {10.0, 40.0, 300.0}) {
        const NetworkFit fit = fit_of_table(where, share * nominal, latency_us);
        EXPECT_LE(fit.mape_after, fit.mape_before) << where << ' ' << share << ' ' << latency_us;
        EXPECT_EQ(fit.taken, !fit.constants.empty());
        if (fit.taken) continue;
        ++refused;
        EXPECT_TRUE(fit.costs_largest || fit.mape_fit > fit.mape_before);
      }
  EXPECT_GT(refused, 0);
}

// The same two steps as each launcher writes them, and of several ranks between each other.
TEST(RunLog, LaunchersAndTerminalsDoNotMatter) {
  const std::string steps =
      "iteration: 1 / 9 | time_per_iteration_ms: 9K | tokens_per_sec: 1K |\n"
      "iteration: 2 / 9 | time_per_iteration_ms: 4.72K | tokens_per_sec: 1K |\n"
      "iteration: 3 / 9 | time_per_iteration_ms: 4.68K | tokens_per_sec: 1K |\n";
  const auto tagged = [&](const std::vector<std::string>& tags) {
    std::string out, line;
    std::istringstream in(steps);
    while (std::getline(in, line))
      for (const std::string& tag : tags) out += tag + line + "\n";
    return out;
  };
  const RunLog plain = parse_run_log(steps, "x.log");
  EXPECT_EQ(plain.format, LogFormat::nanotron);
  ASSERT_EQ(plain.steps.size(), 3u);
  for (const auto& tags : std::vector<std::vector<std::string>>{{"[1,0]<stdout>: "},
                                                                {"0: "},
                                                                {"[rank0]:"},
                                                                {"\x1b[32m"},
                                                                {"[1,0]<stdout>:", "[1,1]<stdout>:"},
                                                                {" 0: ", " 1: ", "10: "},
                                                                {"[rank1]:", "[rank0]:"}}) {
    const RunLog log = parse_run_log(tagged(tags), "x.log");
    ASSERT_EQ(log.steps.size(), 3u) << tags.front();
    EXPECT_DOUBLE_EQ(log.steps[2].value, plain.steps[2].value);
    EXPECT_EQ(log.steps[1].line, static_cast<int>(tags.size() + 1 + (tags.front() == "[rank1]:" ? 1 : 0)))
        << tags.front();
  }
  // Times of day are no ranks.
  EXPECT_EQ(parse_run_log("12: a note\n" + steps, "x.log").steps.size(), 3u);
}

TEST(RunLog, FormerAndPresentKeys) {
  EXPECT_EQ(parse_run_log("step: 1 loss: 9 wps: 1,000\nstep: 2 loss: 8 wps: 1,710\n", "x.log").format,
            LogFormat::torchtitan);
  EXPECT_DOUBLE_EQ(
      parse_run_log("step: 1 loss: 9 wps: 1,000\nstep: 2 loss: 8 wps: 1,710\n", "x.log").steps[1].value,
      1710);
  const RunLog tokens = parse_run_log(
      "iteration: 2 / 9 | time_per_iteration_ms: 4.72K | global_batch_size: 1.57M |\n", "x.log");
  EXPECT_DOUBLE_EQ(tokens.batch_tokens.value_or(0), 1.57e6);
  EXPECT_FALSE(tokens.says.contains("global_batch"));
}

}  // namespace
}  // namespace sextant

// Logs in the formats that Megatron-LM, torchtitan and nanotron print. The texts are made up; their form is
// that of the programs (NVIDIA/Megatron-LM training.py and arguments.py, pytorch/torchtitan metrics.py,
// huggingface/nanotron logging, NVIDIA/nccl-tests common.cu).
#include "planner/calibration/run_log.hpp"

#include <sstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "core/model/model_files.hpp"
#include "planner/calibration/nccl_table.hpp"
#include "tests/planner/calibration/megatron_log.hpp"

namespace sextant {
namespace {

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

TEST(RunLog, InconsistenciesAreNamed) {
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
  training.parameter = Dtype::bf16;
  training.gradient = Dtype::fp32;
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
  plan.tp = plan.pp = 2;
  plan.dp = 8;
  plan.vp = 2;
  plan.zero_stage = 1;
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

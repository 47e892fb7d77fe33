// Questions and files of people who do this job, answered wrongly once: each with a neighbour or two of its kind.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/temp_dir.hpp"
#include "tests/tools/verbs/call.hpp"
#include "tests/tools/verbs/public_question.hpp"

namespace sextant {
namespace {

using public_question::kLlama7bOn8;

// GH200 is no GB200, A10G no A100: a suggestion of another product is worse than none.
TEST(PublicCases, AnUnknownDeviceIsDescribedNotSwapped) {
  for (const char* cluster : {"16x4xgh200", "1x8xa10g", "1x8xrtx4090", "2x8xl40s", "1x8xmi300x", "1x8xa10",
                              "1x8xh20-141gb", "1x8xa100-120gb", "1x8xgb200-nvl4", "1x8xb200-nvl72"}) {
    const Called c = call({"simulate", "--model", "llama-3-8b", "--cluster", cluster, "--plan", "z3.mbs1"},
                          kUnlimitedColumns);
    EXPECT_EQ(c.code, ExitCode::usage) << cluster;
    EXPECT_FALSE(says(c, "did you mean")) << c.err;
    EXPECT_TRUE(says(c, "--set device.memory_GiB=")) << c.err;
  }
  // By a preset of its generation, or a word that there is none.
  for (const auto& [typed, by] :
       {std::pair{"16x4xgh200", "one of its generation, Hopper: --cluster 16x4xh100 "},
        {"1x8xa10g", "one of its generation, Ampere: --cluster 1x8xa100-80gb "},
        {"1x8xa6000", "one of its generation, Ampere: --cluster 1x8xa100-80gb "},
        {"1x8xa10", "one of its generation, Ampere: --cluster 1x8xa100-80gb "},
        {"1x8xh20-141gb", "one of its generation, Hopper: --cluster 1x8xh20 "},
        {"1x8xb100", "one of its generation, Blackwell: --cluster 1x8xb200 "},
        {"1x8xrtx4090", "None is of its generation, Ada Lovelace"},
        {"1x8xl40s", "None is of its generation, Ada Lovelace"},
        {"1x8xt4", "None is of its generation, Turing"},
        {"1x8xmi300x", "None is of its maker"}})
    EXPECT_TRUE(says(call({"simulate", "--model", "llama-3-8b", "--cluster", typed, "--plan", "z3.mbs1"},
                          kUnlimitedColumns),
                     by))
        << typed;
  for (const auto& [typed, meant] : {std::pair{"1x8xh10", "1x8xh100"},
                                     {"1x8xa100-80g", "1x8xa100-80gb"},
                                     {"1x8xh200-sxm", "1x8xh200"},
                                     {"1x8xh100-80gb-pcie", "1x8xh100-pcie"},
                                     {"1x8xa100-sxm-40gb", "1x8xA100-SXM4-40GB"}})
    EXPECT_TRUE(says(call({"simulate", "--model", "llama-3-8b", "--cluster", typed, "--plan", "z3.mbs1"},
                          kUnlimitedColumns),
                     std::string("did you mean ") + meant))
        << typed;
}

TEST(PublicCases, HowLongAndHowMuch) {
  const Words question = {"--model",   "llama-2-7b", "--cluster",      "8x8xa100-80gb",
                          "--seq-len", "4096",       "--global-batch", "1024",
                          "--tokens",  "2T",         "--json"};
  const Called one = call(Words{"simulate", "--plan", "dp64.z2.mbs2"} + question);
  ASSERT_EQ(one.code, ExitCode::ok) << one.err;
  const auto j = nlohmann::json::parse(one.out);
  const double tokens_per_s = j.at("prediction").at("tokens_per_s_per_gpu").get<double>() * 64;
  const auto& t = j.at("training");
  EXPECT_NEAR(t.at("days").get<double>(), 2e12 / tokens_per_s / 86400, 0.01);
  EXPECT_NEAR(t.at("gpu_hours").get<double>(), t.at("days").get<double>() * 24 * 64, 1e-6);
  EXPECT_LT(t.at("days_lower").get<double>(), t.at("days").get<double>());
  EXPECT_GT(t.at("days_upper").get<double>(), t.at("days").get<double>());
  EXPECT_GT(t.at("usd").get<double>(), 0);
  const Called plan = call(Words{"plan"} + question);
  ASSERT_EQ(plan.code, ExitCode::ok) << plan.err;
  EXPECT_LE(nlohmann::json::parse(plan.out).at("ranked").at(0).at("training").at("days").get<double>(),
            t.at("days").get<double>() * 1.05);
  Words shown = question;
  shown.pop_back();  // --json
  const Called text = call(Words{"plan"} + shown, kUnlimitedColumns);
  EXPECT_TRUE(says(text, "2T tokens: ")) << text.out;
  EXPECT_TRUE(says(text, "GPU-hours")) << text.out;
  EXPECT_EQ(call(Words{"simulate", "--plan", "dp8.z1.mbs1", "--tokens", "many"} + kLlama7bOn8).code,
            ExitCode::usage);
}

// A bubble is there because of few micro-batches, not of stages alone.
TEST(PublicCases, ABubblesReasonNamesTheMicroBatches) {
  const Called c = call(
      Words{"explain", "--seq-len", "2048", "--global-batch", "16", "--why", "pp4.dp2.z1.mbs2"} + kLlama7bOn8,
      kUnlimitedColumns);
  EXPECT_EQ(c.code, ExitCode::ok) << c.err;
  EXPECT_TRUE(says(c, "4 micro-batches for 4 stages")) << c.out;
}

// The nearest name is meant, by whatever part of it was typed.
TEST(PublicCases, APartOfAStacksNameIsUnderstood) {
  for (const auto& [typed, meant] : {std::pair{"deepspeed", "deepspeed-zero"},
                                     {"fsdp", "fsdp1-eager"},
                                     {"megatron", "megatron-core"},
                                     {"titan", "torchtitan"}}) {
    const Called c =
        call(Words{"simulate", "--plan", "dp8.z1.mbs1", "--stack", typed} + kLlama7bOn8, kUnlimitedColumns);
    EXPECT_EQ(c.code, ExitCode::usage) << typed;
    EXPECT_TRUE(says(c, "did you mean ")) << c.err;
    EXPECT_TRUE(says(c, meant)) << c.err;
  }
}

TEST(PublicCases, ConfigurationsOfOthersAreRecognised) {
  const TempDir folder;
  const auto ds = folder.write("ds_config.json",
                               R"({"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3,
      "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}})");
  const Called c = call(Words{"simulate", "--plan", ds.string()} + kLlama7bOn8, kUnlimitedColumns);
  EXPECT_EQ(c.code, ExitCode::bad_input);
  EXPECT_TRUE(says(c, "found a DeepSpeed configuration")) << c.err;
  EXPECT_TRUE(says(c, "as a key its layout is tp1.pp1.vp1.cp1.dp8.z3.mbs2.oo100.po (--stack deepspeed-zero)"))
      << c.err;
  for (const auto& [name, text, what] :
       {std::tuple{"train.toml", "[training]\nseq_len = 4096\n[parallelism]\ntensor_parallel_degree = 2\n",
                   "torchtitan"},
        {"run.yaml", "parallelism:\n  dp: 8\n  tp_linear_async_communication: true\n", "nanotron"},
        {"pretrain.sh", "torchrun pretrain_gpt.py --tensor-model-parallel-size 4\n", "Megatron-LM"},
        {"accelerate.yaml", "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n", "accelerate"}}) {
    const Called other =
        call(Words{"simulate", "--plan", folder.write(name, text).string()} + kLlama7bOn8, kUnlimitedColumns);
    EXPECT_EQ(other.code, ExitCode::bad_input) << name;
    EXPECT_TRUE(says(other, std::string("found a ") + what) || says(other, std::string("found an ") + what))
        << other.err;
  }
}

// A plan needs no rope that reaches so far, and says that it does not.
TEST(PublicCases, SequencesBeyondThePositionsAreRemarkedOn) {
  const auto ask = [](const char* model, const char* tokens) {
    return call({"simulate", "--model", model, "--cluster", "1x8xh100", "--seq-len", tokens, "--global-batch",
                 "8", "--plan", "cp8.z1.mbs1.full"},
                kUnlimitedColumns);
  };
  EXPECT_TRUE(says(ask("llama-2-7b", "32768"),
                   "sequences of 32768 tokens go beyond the 4096 positions of llama-2-7b"));
  EXPECT_FALSE(says(ask("llama-2-7b", "4096"), "go beyond"));
  EXPECT_FALSE(says(ask("llama-3.1-8b", "131072"), "go beyond"));
}

// As people write layouts down, and as `sextant plan` prints its own.
TEST(PublicCases, SpellingsOfALayoutAreAKey) {
  const Words on64 = {"--model", "llama-2-7b", "--cluster", "8x8xa100-80gb"};
  for (const auto& [typed, key] :
       {std::pair{"tp=4, pp=2,mbs=1", "tp4.pp2.mbs1"},
        {"tp8_pp2_dp4", "tp8.pp2.dp4"},
        {"TP8-PP4-DP2", "tp8.pp4.dp2"},
        {"tp4pp2dp8", "tp4.pp2.dp8"},
        {"TP: 4, PP: 2, VPP: 4", "tp4.pp2.vp4"},
        {"dp64.zero3", "dp64.z3"},
        {"TP4 PP4 DP4 ZeRO-1 MBS1, no recomputation", "tp4.pp4.dp4.z1.mbs1"},
        {"DP64 ZeRO-3/8 MBS2 full", "dp64.z3.sd8.mbs2.full"},
        {"tp 4 x pp 2 x dp 8, micro-batch 2", "tp4.pp2.dp8.mbs2"},
        {"(tp=8, pp=4, dp=2)", "tp8.pp4.dp2"},
        {"8-way TP, 4-way PP", "tp8.pp4"},
        {"8-way tensor parallelism, 4-way pipeline parallelism", "tp8.pp4"},
        {"t8p4d2", "tp8.pp4.dp2"},
        {"t8p4", "tp8.pp4"},
        {"mp8 pp4", "tp8.pp4"},
        {"FSDP", "z3"},
        {"fsdp8 tp8", "dp8.z3.tp8"},
        {"tensor_parallel=8 pipeline_parallel=4", "tp8.pp4"},
        {"--tensor-model-parallel-size 8 --pipeline-model-parallel-size 4", "tp8.pp4"},
        {"TP=8,PP=4,VPP=2,mbs=1,recompute=full", "tp8.pp4.vp2.mbs1.full"}}) {
    const Called c = call(Words{"simulate", "--seq-len", "1024", "--plan", typed} + on64, kUnlimitedColumns);
    EXPECT_TRUE(c.code == ExitCode::ok || c.code == ExitCode::no_feasible_plan) << typed << ": " << c.err;
    EXPECT_TRUE(says(c, std::string("is taken as ") + key + "\n")) << typed << ": " << c.out << c.err;
  }
  for (const auto& [typed, key] :
       {std::pair{"zero_stage=3, micro_batch_size=2, offload_optimizer", "z3.mbs2.oo100"},
        {"dp=64,zero=3,offload_optimizer=cpu,offload_param=cpu", "dp64.z3.oo100.po"},
        {"zero=2, offload=cpu", "z2.oo100"}}) {
    const Called c =
        call(Words{"simulate", "--seq-len", "1024", "--plan", typed, "--stack", "deepspeed-zero"} + on64,
             kUnlimitedColumns);
    EXPECT_TRUE(says(c, std::string("is taken as ") + key + "\n")) << typed << ": " << c.out << c.err;
  }
  EXPECT_FALSE(
      says(call(Words{"simulate", "--plan", "dp8"} + kLlama7bOn8), "is taken as"));  // a key as it is
  for (const char* typed : {"tp=4,rec=some", "eight by two", "tp4.pp2.offload", "zero3 offload", "HSDP 8x8"})
    EXPECT_EQ(call(Words{"simulate", "--plan", typed} + kLlama7bOn8).code, ExitCode::usage) << typed;
}

// A list that is not finished is none, and no spelling of another key.
TEST(PublicCases, UnfinishedListsAreNoSpelling) {
  for (const auto& [typed, expected] : {std::pair{"ga8-", "micro-batches of each replica such as ga9x7-5"},
                                        {"tp2.ga8-", "micro-batches of each replica such as ga9x7-5"},
                                        {"pp4.L8-", "layers of each chunk such as"},
                                        {"L8-,pp4", "layers of each chunk such as"},
                                        {"tp4-", "tp and a whole number"},
                                        {"tp4.pp2+", "pp and a whole number"},
                                        {"full12-", "full and the layers"}}) {
    const Called c =
        call(Words{"simulate", "--seq-len", "1024", "--plan", typed} + kLlama7bOn8, kUnlimitedColumns);
    EXPECT_EQ(c.code, ExitCode::usage) << typed << c.out;
    EXPECT_TRUE(says(c, expected)) << typed << ": " << c.err;
  }
}

TEST(PublicCases, ModelsOfLlamasShape) {
  const TempDir folder;
  // As printed: "12,247,782,400 parameters".
  const auto parameters = [&](const char* name, const char* config) {
    const Called c = call({"simulate", "--model", folder.write(name, config).string(), "--cluster",
                           "1x8xh100", "--plan", "dp8.z1.mbs1", "--seq-len", "1024", "--global-batch", "8"},
                          kUnlimitedColumns);
    const std::size_t open = c.out.find('('), close = c.out.find(" parameters)");
    EXPECT_NE(close, std::string::npos) << c.err;
    return close == std::string::npos ? "" : c.out.substr(open + 1, close - open - 1);
  };
  EXPECT_EQ(parameters("nemo.json",
                       R"({"architectures": ["MistralForCausalLM"], "model_type": "mistral", "head_dim": 128,
      "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 14336, "max_position_embeddings": 131072,
      "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
      "rope_theta": 1000000.0, "sliding_window": null, "tie_word_embeddings": false, "vocab_size": 131072})"),
            "12,247,782,400");
  EXPECT_EQ(parameters("qwen.json",
                       R"({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu",
      "hidden_size": 3584, "intermediate_size": 18944, "max_position_embeddings": 131072, "max_window_layers": 28,
      "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
      "rope_theta": 1000000.0, "sliding_window": 131072, "tie_word_embeddings": false, "use_sliding_window": false,
      "vocab_size": 152064})"),
            "7,615,616,512");
  EXPECT_EQ(
      parameters("internlm2.json",
                 R"({"architectures": ["InternLM2ForCausalLM"], "model_type": "internlm2", "bias": false,
      "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
      "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
      "rope_theta": 1000000, "rope_scaling": {"factor": 2.0, "type": "dynamic"}, "tie_word_embeddings": false, "vocab_size": 92544})"),
      "7,737,708,544");
  EXPECT_EQ(parameters("longrope.json",
                       R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256,
      "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 4, "vocab_size": 1024, "max_position_embeddings": 65536,
      "rope_scaling": {"rope_type": "longrope", "original_max_position_embeddings": 4096,
      "long_factor": [1.0, 2.0], "short_factor": [1.0, 1.0]}})"),
            "1,328,384");
  // A window in a file that lacks the rest.
  const auto window =
      folder.write("window.json", R"({"architectures": ["MistralForCausalLM"], "model_type": "mistral",
      "hidden_size": 4096, "max_position_embeddings": 32768, "sliding_window": 4096})");
  EXPECT_EQ(call({"simulate", "--model", window.string(), "--cluster", "1x8xh100", "--plan", "z1"}).code,
            ExitCode::bad_input);
}

// Today's Megatron-Core asserts on chunks of unequal depth unless they are a layout string.
TEST(PublicCases, UnequalChunksComeWithTheirLayoutString) {
  const auto of = [](const char* model, const char* cluster, const char* plan, const char* stack) {
    return call({"simulate", "--model", model, "--cluster", cluster, "--seq-len", "4096", "--global-batch",
                 "256", "--plan", plan, "--stack", stack},
                kUnlimitedColumns);
  };
  const Called uneven = of("llama-2-70b", "32x8xa100-80gb", "tp8.pp16.vp2.dp2.z1.mbs1", "megatron-core");
  EXPECT_TRUE(says(uneven, "--pipeline-model-parallel-layout")) << uneven.out << uneven.err;
  EXPECT_TRUE(says(uneven, "\"Ettt|(ttt|)*15(tt|)*15ttL\"")) << uneven.out << uneven.err;
  EXPECT_FALSE(says(of("llama-2-70b", "32x8xa100-80gb", "tp8.pp8.vp2.dp4.z1.mbs1", "megatron-core"),
                    "parallel-layout"));
  EXPECT_TRUE(says(of("llama-2-7b", "6x8xa100-80gb", "pp3.dp16.z1.mbs1", "megatron-core"), "|"));
  EXPECT_FALSE(says(of("llama-2-7b", "6x8xa100-80gb", "pp3.dp16.z1.mbs1", "nanotron"), "parallel-layout"));
  // NeMo before that string: the first and the last stage alone, by options of their own.
  const Called ends = of("llama-2-7b", "4x8xa100-80gb", "pp4.dp8.z1.mbs1.L7-9-9-7", "nemo-dgxc");
  for (const char* option : {"num_layers_in_first_pipeline_stage=7", "num_layers_in_last_pipeline_stage=7"})
    EXPECT_TRUE(says(ends, option)) << ends.out << ends.err;
  const Called steps = of("llama-2-7b", "4x8xa100-80gb", "pp4.dp8.z1.mbs1.L9-9-7-7", "nemo-dgxc");
  EXPECT_NE(steps.code, ExitCode::ok);
  EXPECT_TRUE(says(steps, "gives only the first and the last of pp=4 stages")) << steps.err;
  // nanotron cuts by its own rule, whatever is asked for.
  EXPECT_TRUE(says(of("llama-2-7b", "4x8xa100-80gb", "pp4.dp8.z1.mbs1", "nanotron"), "L9-8-8-7"));
  const Called dealt = of("llama-2-7b", "4x8xa100-80gb", "pp4.dp8.z1.mbs1.L8-8-8-8", "nanotron");
  EXPECT_TRUE(says(dealt, "deals layers by its block_compute_costs: 9-8-8-7; use L9-8-8-7")) << dealt.err;
  const Called stated =
      of("llama-2-7b", "6x8xa100-80gb", "pp3.vp6.dp16.z1.mbs1.L1-2x15-1-0", "megatron-core");
  EXPECT_TRUE(says(stated, "\"Et|(tt|)*15t|L\"")) << stated.out << stated.err;
}

// torchtitan's blocks are eager unless its user asks for the compiler: two published runs beside their compiled twins, 15.7 % apart.
TEST(PublicCases, EagerOrCompiledBlocks) {
  const auto ask = [](const Words& more) {
    return call(Words{"simulate", "--model", "llama-3-8b", "--cluster", "1x8xh100", "--seq-len", "8192",
                      "--global-batch", "8", "--plan", "dp8.z3.mbs1.sel"} +
                    more,
                kUnlimitedColumns);
  };
  const auto step = [&](const Words& more) {
    const Called c = ask(Words{"--json"} + more);
    EXPECT_EQ(c.code, ExitCode::ok) << c.err;
    return nlohmann::json::parse(c.out).at("prediction").at("step_time_s").get<double>();
  };
  const Words eager = {"--stack", "torchtitan", "--set", "stack.kernels.blocks=eager"};
  EXPECT_NEAR(step(eager) / step({"--stack", "torchtitan"}), 1.157, 0.03);
  EXPECT_EQ(step(eager), step({"--stack", "torchtitan-eager"}));
  EXPECT_TRUE(says(ask({"--stack", "torchtitan"}), "blocks are taken as compiled"));
  EXPECT_FALSE(says(ask(eager), "blocks are taken as"));
  EXPECT_FALSE(says(ask({"--stack", "smp-v2"}), "blocks are taken as"));
  const Called none = ask({"--stack", "fsdp1-eager", "--set", "stack.kernels.blocks=compiled"});
  EXPECT_EQ(none.code, ExitCode::usage);
  EXPECT_TRUE(says(none, "the only ones that fsdp1-eager has constants for")) << none.err;
  EXPECT_EQ(ask({"--stack", "torchtitan", "--set", "stack.kernels.blocks=jit"}).code, ExitCode::usage);
}

// What a log shows is used; what --set says wins over both.
TEST(PublicCases, TheLogWinsOverThePreset) {
  const TempDir folder;
  const auto log = [&](const char* compiles) {
    return folder
        .write("run.log",
               std::string("Building 1-D device mesh with ['dp_shard'], [8]\n"
                           "Applied SelectiveAC activation checkpointing to the model\n") +
                   compiles +
                   "Applied FSDP to the model\n"
                   "Trainer is initialized with 16384 tokens per DP rank, 131072 tokens per train step, "
                   "gradient accumulation steps 1, maximum context length 8192, total steps 9\n"
                   "step:  1  loss: 12.0  memory: 70.00GiB(88.00%)  tps: 6,000\n"
                   "step: 10  loss: 10.0  memory: 70.00GiB(88.00%)  tps: 6,700\n"
                   "step: 20  loss:  9.0  memory: 70.00GiB(88.00%)  tps: 6,710\n")
        .string();
  };
  const auto ask = [&](const std::string& file, const Words& more) {
    return call(Words{"calibrate", "--log", file, "--model", "llama-3-8b", "--cluster", "1x8xh100"} + more,
                kUnlimitedColumns);
  };
  const Called eager = ask(log(""), {});
  EXPECT_EQ(eager.code, ExitCode::ok) << eager.err;
  EXPECT_TRUE(says(eager, "the log shows eager blocks")) << eager.err;
  const Called compiled = ask(log("Compiling each TransformerBlock with torch.compile\n"), {});
  EXPECT_EQ(compiled.code, ExitCode::ok) << compiled.err;
  EXPECT_FALSE(says(compiled, "torchtitan-eager")) << compiled.out;
  EXPECT_FALSE(says(compiled, "blocks are taken as")) << compiled.err;
  const Called set = ask(log(""), {"--set", "stack.kernels.blocks=compiled"});
  EXPECT_TRUE(says(set, "the log shows eager blocks, priced as compiled")) << set.err;
  EXPECT_TRUE(says(ask(log(""), {"--stack", "smp-v2"}), "smp-v2")) << "a stack without the other blocks";
}

// A100's table halved an H100's NVLink once.
TEST(PublicCases, MeasurementsOfAnotherDeviceAreRefused) {
  const TempDir folder;
  std::string table = "# Using devices\n";
  for (int r = 0; r < 8; ++r)
    table += "#  Rank  " + std::to_string(r) + " Group  0 Pid   100" + std::to_string(r) +
             " on node-a device  " + std::to_string(r) + " [0x10] NVIDIA A100-SXM4-80GB\n";
  for (const char* line : {"67108864 16777216 float sum -1 560.0 119.8 209.7 0 560.0 119.8 209.7 0",
                           "268435456 67108864 float sum -1 2100.0 127.8 223.7 0 2100.0 127.8 223.7 0"})
    table += std::string(line) + "\n";
  const auto file = folder.write("all_reduce.txt", table).string();
  const auto ask = [&](const Words& more) {
    return call(Words{"calibrate", "--nccl", file} + more, kUnlimitedColumns);
  };
  EXPECT_EQ(ask({"--cluster", "1x8xa100-80gb"}).code, ExitCode::ok);
  const Called other = ask({"--cluster", "1x8xh100"});
  EXPECT_EQ(other.code, ExitCode::bad_input);
  EXPECT_TRUE(says(other, "NVIDIA A100-SXM4-80GB")) << other.err;
  EXPECT_EQ(ask({"--cluster", "1x8xh100", "--allow-other-device"}).code, ExitCode::ok);
  EXPECT_EQ(ask({"--cluster", "2x4xa100-80gb"}).code, ExitCode::bad_input);  // eight ranks in a node of four
  const auto log =
      folder
          .write("run.log",
                 "[rank0]:2025 - root - INFO - CUDA capacity: NVIDIA H200 with 139.83GiB memory\n"
                 "Building 1-D device mesh with ['dp_shard'], [8]\n"
                 "step:  1  loss: 12.0  memory: 40.00GiB(28.00%)  tps: 6,000\n"
                 "step: 10  loss: 10.0  memory: 40.00GiB(28.00%)  tps: 7,000\n"
                 "step: 20  loss:  9.0  memory: 40.00GiB(28.00%)  tps: 7,010\n")
          .string();
  const auto of_log = [&](const char* cluster) {
    return call({"calibrate", "--log", log + "=dp8.z3.mbs1", "--model", "llama-3-8b", "--cluster", cluster,
                 "--stack", "torchtitan", "--seq-len", "8192", "--global-batch", "8"});
  };
  EXPECT_EQ(of_log("1x8xh200").code, ExitCode::ok) << of_log("1x8xh200").err;
  EXPECT_EQ(of_log("1x8xh100").code, ExitCode::bad_input);
}

// What runs today is measured against what would be recommended, not against the fastest on paper alone.
TEST(PublicCases, ExplainComparesWithWhatPlanRecommends) {
  const TempDir folder;
  const auto script = folder.write(
      "pretrain.sh",
      "torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
      "--ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 "
      "--seq-length 8192 --max-position-embeddings 8192 --micro-batch-size 1 --global-batch-size 128 "
      "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 2 --sequence-parallel --bf16 "
      "--use-distributed-optimizer --swiglu --normalization RMSNorm --disable-bias-linear "
      "--untie-embeddings-and-output-weights --position-embedding-type rope --vocab-size 128256\n");
  const Words question = {"--from", script.string(), "--cluster", "2x8xh100"};
  const auto json = [](const Called& c) {
    EXPECT_EQ(c.code, ExitCode::ok) << c.err;
    return nlohmann::json::parse(c.out);
  };
  const auto planned = json(call(Words{"plan", "--json"} + question));
  const auto explained = json(call(Words{"explain", "--quick", "--json"} + question));
  EXPECT_EQ(explained.at("recommended").at("key"), planned.at("recommended").at("key"));
  EXPECT_LT(explained.at("recommended").at("comparison").at("slower_share").get<double>(), 0);
  const std::string key = planned.at("recommended").at("key");
  const Called text = call(Words{"explain", "--quick"} + question, kUnlimitedColumns);
  EXPECT_TRUE(says(text, "'sextant plan' recommends " + key)) << text.out;
  const Called own = call(Words{"explain", key, "--quick", "--model", "llama-3-8b", "--cluster", "2x8xh100",
                                "--seq-len", "8192", "--global-batch", "128"},
                          kUnlimitedColumns);
  EXPECT_TRUE(says(own, "it is what 'sextant plan' recommends")) << own.out;
}

}  // namespace
}  // namespace sextant

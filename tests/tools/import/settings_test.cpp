// Settings of torchtitan, nanotron, DeepSpeed, accelerate and Megatron-Bridge as training runs.
#include <chrono>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/sanitized.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/tools/import/imported.hpp"
#include "tests/tools/verbs/bad_input.hpp"
#include "tools/import/config_text.hpp"
#include "tools/import/python_settings.hpp"

namespace sextant::importing {
namespace {

TEST(ImportTorchtitan, Toml) {
  const Question q = asked_from(golden("torchtitan_llama3_70b.toml"), "8x8xa100-80gb");
  EXPECT_EQ(q.model.name, "llama-3.1-70b");
  EXPECT_EQ(plan_key(*q.plan), "tp8.pp1.vp1.cp1.dp8.z3.mbs8.full");
  EXPECT_EQ(q.training.global_batch, 64);
  EXPECT_EQ(q.training.seq_len, 8192);
  EXPECT_EQ(q.training.parameter, Dtype::bf16);
  EXPECT_EQ(q.stack.name, "torchtitan-eager");  // compile.enable is false
  EXPECT_EQ(q.stack.memory.logits_bytes, 12);   // of its time: not in chunks
  EXPECT_FALSE(names(q.notes, "not understood"));
}

// Each line is read once, however many there are.
TEST(ImportTorchtitan, AHundredThousandFunctions) {
  std::string text, lines = "def g():\n  return 1\n";
  for (int i = 0; i < 100'000; ++i) {
    text += "def f():\n  return TrainingConfig()\n";
    lines += "x=1,\n";
  }
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(config_functions(text).size(), 100'000u);
  EXPECT_TRUE(config_functions(lines + lines).empty());
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(kSanitized ? 100 : 10));
}

TEST(ImportTorchtitan, PythonFunctions) {
  const std::string file = golden("torchtitan_registry.py").string();
  const Question small = asked_from(file + ":small", "2x8xh100");
  EXPECT_EQ(small.model.name, "llama-3.1-8b");
  EXPECT_EQ(plan_key(*small.plan), "tp1.pp2.vp2.cp1.dp8.z2.mbs1.sel.sd4.L8-9-8-7");
  EXPECT_EQ(small.training.global_batch, 256);
  const Question large = asked_from(file + ":large", "16x8xh100");
  EXPECT_EQ(large.model.name, "llama-3.1-405b");
  EXPECT_EQ(plan_key(*large.plan), "tp8.pp1.vp1.cp1.dp16.z3.mbs2.full.tpo");
  EXPECT_EQ(large.training.global_batch, 32);
  EXPECT_EQ(large.training.compute, Dtype::fp8);
  EXPECT_EQ(large.stack.name, "torchtitan");
  EXPECT_LT(large.stack.memory.logits_bytes, 1);  // in chunks
}

// With the settings of one file and options over them.
TEST(ImportTorchtitan, CommandLineOverTheFile) {
  const TempDir dir;
  dir.write("train.toml",
            "[model]\nflavor = \"8B\"\n[training]\nlocal_batch_size = 2\nseq_len = "
            "4096\n[parallelism]\ntensor_parallel_degree = 4\n");
  const auto script =
      dir.write("run.sh",
                "CONFIG_FILE=${CONFIG_FILE:-\"train.toml\"}\ntorchrun --nproc_per_node=8 --nnodes 2 -m "
                "torchtitan.train "
                "--job.config_file ${CONFIG_FILE} --parallelism.tensor_parallel_degree 2 "
                "--activation_checkpoint.mode=none --parallelism.data_parallel_replicate_degree=2");
  const Question q = asked_from(script, "2x8xh100");
  EXPECT_EQ(plan_key(*q.plan), "tp2.pp1.vp1.cp1.dp8.z3.mbs2.sd4");
  EXPECT_EQ(q.training.seq_len, 4096);
  EXPECT_EQ(q.training.global_batch, 16);
}

// The model is that of --model: one layer of two is no full recomputation, and interleaved stages are several.
TEST(ImportTorchtitan, WithoutAModel) {
  const TempDir dir;
  const auto key = [&](const std::string& more, const char* model) {
    const auto file =
        dir.write("train.toml", "[training]\nlocal_batch_size = 8\nseq_len = 4096\n[parallelism]\n" + more);
    return plan_key(*asked_from(file, "2x8xh100", model).plan);
  };
  const std::string selective = "[activation_checkpoint]\nmode = \"selective\"\nselective_ac_option = ";
  EXPECT_EQ(key(selective + "\"2\"\n", "llama-3.1-8b"), "tp1.pp1.vp1.cp1.dp16.z3.mbs8.full16");
  EXPECT_EQ(key(selective + "\"2\"\n", "llama-3.1-70b"), "tp1.pp1.vp1.cp1.dp16.z3.mbs8.full40");
  EXPECT_EQ(key(selective + "\"op\"\n", "llama-3.1-8b"), "tp1.pp1.vp1.cp1.dp16.z3.mbs8.sel");
  EXPECT_EQ(key("", "llama-3.1-8b"), "tp1.pp1.vp1.cp1.dp16.z3.mbs8.full16");  // its default
  EXPECT_EQ(key("[activation_checkpoint]\nmode = \"full\"\n", "llama-3.1-8b"),
            "tp1.pp1.vp1.cp1.dp16.z3.mbs8.full");
  const std::string stages =
      "pipeline_parallel_degree = 2\npipeline_parallel_schedule = \"Interleaved1F1B\"\n"
      "[activation_checkpoint]\nmode = \"none\"\n";
  EXPECT_EQ(key(stages, "llama-3.1-8b").substr(0, 11), "tp1.pp2.vp2");
  EXPECT_EQ(key("pipeline_parallel_layers_per_stage = 3\n" + stages, "llama-3.1-8b").substr(0, 11),
            "tp1.pp2.vp6");
  EXPECT_THROW(key(selective + "\"2abc\"\n", "llama-3.1-8b"), ConfigError);
  // The model that is named wins over the file's.
  const auto file =
      dir.write("of_8b.toml", "[model]\nflavor = \"8B\"\n[training]\nlocal_batch_size = 8\n[parallelism]\n" +
                                  selective + "\"2\"\n");
  EXPECT_EQ(asked_from(file, "2x8xh100").plan->recompute.layers, 16);
  EXPECT_EQ(asked_from(file, "2x8xh100", "llama-3.1-70b").plan->recompute.layers, 40);
  // Where nothing names one, it is said.
  const auto alone = imported(
      dir.write("alone.toml", "[training]\nlocal_batch_size = 8\n[parallelism]\n" + stages + "[model]\n"));
  EXPECT_EQ(alone.plan.vp, 2);
  EXPECT_TRUE(names(imported(dir.write("alone.toml", "[training]\nlocal_batch_size = 8\n[parallelism]\n" +
                                                         selective + "\"2\"\n"))
                        .unread,
                    "selective_ac_option 2: taken as full"));
}

TEST(ImportNanotron, Example) {
  const Question q = asked_from(golden("nanotron_tiny_llama.yaml"), "1x8xh100");
  EXPECT_EQ(q.model.n_layers, 28);
  EXPECT_EQ(q.model.n_kv_heads, 2);
  EXPECT_TRUE(q.model.tied_embeddings);
  EXPECT_EQ(plan_key(*q.plan), "tp2.pp1.vp1.cp1.dp4.z0.mbs3.tpo");
  EXPECT_EQ(q.training.global_batch, 12);
  EXPECT_EQ(q.training.gradient, Dtype::fp32);
  EXPECT_FALSE(names(q.notes, "not understood"));
}

TEST(ImportDeepSpeed, ChatExampleWithTheTrainersOptions) {
  const Question q = asked_from(golden("deepspeed_chat_llama2_7b.sh"), "1x8xa100-80gb");
  EXPECT_EQ(q.model.name, "llama-2-7b");
  EXPECT_EQ(plan_key(*q.plan), "tp1.pp1.vp1.cp1.dp8.z3.mbs4.full");
  EXPECT_EQ(q.training.seq_len, 512);
  EXPECT_EQ(q.training.global_batch, 32);
  EXPECT_EQ(q.training.gradient, Dtype::bf16);  // DeepSpeed's own: that of the parameters
  EXPECT_EQ(q.stack.name, "deepspeed-zero");
}

TEST(ImportDeepSpeed, FileAlone) {
  const Question q = asked_from(golden("deepspeed_zero2.json"), "1x4xa100-80gb", "llama-3.1-8b");
  EXPECT_EQ(plan_key(*q.plan), "tp1.pp1.vp1.cp1.dp4.z2.mbs2.oo100.nogr");
  EXPECT_EQ(q.training.global_batch, 8);
  EXPECT_TRUE(names(q.notes, "zero_optimization.zenflow.topk_ratio 0.1"));
  EXPECT_TRUE(names(q.notes, "no recomputation, unless --plan states full"));
}

// Names until 2021, which DeepSpeed takes to this day.
TEST(ImportDeepSpeed, OffloadAsItWasStatedUntil2021) {
  const TempDir dir;
  const auto key = [&](const char* zero) {
    const auto file =
        dir.write("ds.json",
                  std::string(R"({"train_micro_batch_size_per_gpu": 1, "zero_optimization": )") + zero + "}");
    const Question q = asked_from(file, "1x8xa100-80gb", "llama-2-7b");
    EXPECT_FALSE(names(q.notes, "not understood")) << zero;
    return plan_key(*q.plan);
  };
  EXPECT_EQ(key(R"({"stage": 2, "cpu_offload": true, "overlap_comm": true})"),
            "tp1.pp1.vp1.cp1.dp8.z2.mbs1.oo100");
  EXPECT_EQ(key(R"({"stage": 3, "cpu_offload": true, "cpu_offload_params": true,
                    "cpu_offload_use_pin_memory": true})"),
            "tp1.pp1.vp1.cp1.dp8.z3.mbs1.oo100.po");
  EXPECT_EQ(key(R"({"stage": 2, "cpu_offload": false, "overlap_comm": true})"),
            "tp1.pp1.vp1.cp1.dp8.z2.mbs1");
}

TEST(ImportDeepSpeed, MegatronDeepSpeedWritesItsSettings) {
  const TempDir dir;
  const auto script =
      dir.write("run.sh",
                "DS=ds_config.json\nZ=1\ncat <<EOT > $DS\n{\"train_batch_size\": 64, \"zero_optimization\": "
                "{\"stage\": $Z}, \"bf16\": {\"enabled\": true}}\nEOT\n"
                "deepspeed --num_gpus 8 --num_nodes 2 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
                "--num-attention-heads 32 --vocab-size 32000 "
                "--seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size "
                "64 --bf16 --tensor-model-parallel-size 2 "
                "--pipeline-model-parallel-size 2 --deepspeed --deepspeed_config=$DS --zero-stage=$Z "
                "--checkpoint-activations");
  const Question q = asked_from(script, "2x8xa100-80gb");
  EXPECT_EQ(q.stack.name, "megatron-deepspeed-bloom-bf16");
  EXPECT_EQ(plan_key(*q.plan).substr(0, 33), "tp2.pp2.vp1.cp1.dp4.z1.mbs1.full.");
  EXPECT_TRUE(names(q.notes, "a Megatron-DeepSpeed command line"));
}

TEST(ImportAccelerate, Example) {
  const Question q = asked_from(golden("accelerate_fsdp.yaml"), "1x2xa100-80gb", "llama-3.2-1b");
  EXPECT_EQ(plan_key(*q.plan), "tp1.pp1.vp1.cp1.dp2.z3.mbs1");
  EXPECT_EQ(q.stack.name, "fsdp1-eager");
  EXPECT_EQ(q.training.global_batch, 2);
  EXPECT_TRUE(names(q.notes, "the training program sets them"));
}

TEST(ImportAccelerate, HybridShardsInANode) {
  const TempDir dir;
  const auto file =
      dir.write("a.yaml",
                "distributed_type: FSDP\nmixed_precision: bf16\nfsdp_config: {fsdp_sharding_strategy: "
                "HYBRID_SHARD, fsdp_activation_checkpointing: true}\n");
  EXPECT_EQ(plan_key(*asked_from(file, "2x8xa100-80gb", "llama-2-7b").plan),
            "tp1.pp1.vp1.cp1.dp16.z3.mbs1.full.sd8");
}

TEST(ImportBridge, PrintedConfiguration) {
  const Question q = asked_from(golden("bridge_llama31_8b.yaml"), "2x8xh100");
  EXPECT_EQ(q.model.name, "llama-3.1-8b");
  EXPECT_EQ(plan_key(*q.plan), "tp2.pp2.vp4.cp2.dp2.z1.mbs1.sel");
  EXPECT_EQ(q.training.gradient, Dtype::fp32);
  EXPECT_EQ(q.stack.name, "nemo-dgxc");
  EXPECT_TRUE(names(q.notes, "a vocabulary of 128256, as llama-3.1-8b of this shape has"));
}

// NVIDIA/NeMo v2.0, megatron_llama_config.yaml: model, batch and layout stand under `model`, which Megatron-Bridge's have elsewhere.
TEST(ImportNemo, OneIsNoMegatronBridge) {
  const Question q = asked_from(golden("nemo_llama2_7b.yaml"), "4x8xa100-80gb");
  EXPECT_EQ(q.model.name, "llama-2-7b");
  EXPECT_EQ(plan_key(*q.plan), "tp4.pp2.vp1.cp1.dp4.z1.mbs1.sel");
  EXPECT_TRUE(q.plan->sequence_parallel);
  EXPECT_EQ(q.training.global_batch, 128);
  EXPECT_EQ(q.training.seq_len, 4096);
  EXPECT_EQ(q.training.parameter, Dtype::bf16);
  EXPECT_EQ(q.stack.name, "nemo-2024");
  EXPECT_TRUE(names(q.notes, "is a NeMo 1 configuration"));
  EXPECT_FALSE(names(q.notes, "it starts")) << "32 ranks, as the cluster has";
  EXPECT_FALSE(names(q.notes, "not understood"));
  EXPECT_TRUE(names(asked_from(golden("nemo_llama2_7b.yaml"), "2x8xa100-80gb").notes, "it starts 32 ranks"));
}

TEST(ImportNemo, OptimizerPrecisionAndInterpolation) {
  const TempDir dir;
  const auto of = [&](const char* precision, const char* optimizer, const char* more) {
    return asked_from(
        dir.write(
            "nemo.yaml",
            fmt::format(
                "trainer: {{devices: 8, num_nodes: 1, precision: {}}}\nmodel:\n"
                "  tensor_model_parallel_size: 2\n  micro_batch_size: 2\n  global_batch_size: 16\n"
                "  encoder_seq_length: 2048\n  num_layers: 12\n  hidden_size: 768\n"
                "  num_attention_heads: 12\n  tokenizer: {{library: megatron, type: GPT2BPETokenizer}}\n"
                "  optim: {{name: {}}}\n{}",
                precision, optimizer, more)),
        "1x8xa100-80gb");
  };
  const Question q = of("16-mixed", "fused_adam", "  ffn_hidden_size: ${multiply:4, ${.hidden_size}}\n");
  EXPECT_EQ(q.model.ffn_hidden, 3072);
  EXPECT_EQ(q.model.vocab_size, 50257);
  EXPECT_EQ(q.training.parameter, Dtype::fp16);
  EXPECT_EQ(plan_key(*q.plan), "tp2.pp1.vp1.cp1.dp4.z0.mbs2.nosp.nogr");
  EXPECT_EQ(of("bf16-mixed", "distributed_fused_adam", "").plan->zero_stage, 1);
  EXPECT_THROW(of("bf16", "fused_adam", "  ffn_hidden_size: ${oc.env:FFN}\n"), ConfigError);
  EXPECT_THROW(of("bf16", "fused_adam", "  num_moe_experts: 8\n"), ConfigError);
  EXPECT_THROW(of("bf16", "fused_adam", "  activation: squared-relu\n"), ConfigError);
  EXPECT_THROW(of("64", "fused_adam", ""), ConfigError);
}

// NVIDIA/Megatron-LM d98e8a6, examples/gpt3/gpt_config.yaml.
TEST(ImportMegatron, Yaml) {
  const TempDir dir;
  const auto file =
      dir.write("gpt.yaml",
                "language_model:\n  num_layers: 32\n  hidden_size: 4096\n  num_attention_heads: 32\n"
                "  ffn_hidden_size: 11008\n  num_query_groups: null\n  activation_func: swiglu\n"
                "  add_bias_linear: false\n  normalization: RMSNorm\n"
                "model_parallel:\n  tensor_model_parallel_size: 4\n  pipeline_model_parallel_size: 2\n"
                "  sequence_parallel: true\n  bf16: true\n"
                "seq_length: 4096\nmicro_batch_size: 1\nglobal_batch_size: 64\n"
                "position_embedding_type: rope\nuntie_embeddings_and_output_weights: true\n"
                "vocab_size: 32000\nuse_distributed_optimizer: true\n");
  const Question q = asked_from(file, "2x8xh100");
  EXPECT_EQ(q.model.name, "llama-2-7b");
  EXPECT_EQ(plan_key(*q.plan), "tp4.pp2.vp1.cp1.dp2.z1.mbs1.nogr.nopg");
  EXPECT_EQ(q.training.global_batch, 64);
  EXPECT_EQ(q.stack.name, "megatron-core");
}

TEST(ConfigText, KindsOfValues) {
  const auto toml = toml_settings("a = 1\nb = 2.5\nc = true\nd = \"x\"\n[e]\nf = [1, 2]\n");
  EXPECT_EQ(*toml, nlohmann::json::parse(R"({"a": 1, "b": 2.5, "c": true, "d": "x", "e": {"f": [1, 2]}})"));
  const auto yaml = yaml_settings("a: 1\nb: 1.0e-05\nc: true\nd: 'true'\ne: [null, ~, x]\nf: {g: -3}\n");
  EXPECT_EQ(*yaml,
            nlohmann::json::parse(
                R"({"a": 1, "b": 1.0e-05, "c": true, "d": "true", "e": [null, null, "x"], "f": {"g": -3}})"));
  std::string why;
  EXPECT_EQ(toml_settings("a = \n", &why), std::nullopt);
  EXPECT_NE(why.find("line 1"), std::string::npos) << why;
  EXPECT_EQ(yaml_settings("a: [1\n", &why), std::nullopt);
  std::string bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n";
  for (char c = 'b'; c < 'j'; ++c)
    bomb += fmt::format("{}: &{} [*{}, *{}, *{}, *{}, *{}, *{}, *{}, *{}]\n", c, c, char(c - 1), char(c - 1),
                        char(c - 1), char(c - 1), char(c - 1), char(c - 1), char(c - 1), char(c - 1));
  EXPECT_EQ(yaml_settings(bomb, &why), std::nullopt);
  EXPECT_NE(why.find("too many values"), std::string::npos) << why;
}

class ImportBadSettings : public bad_input::BadInput {
 protected:
  static void refuse(const std::string& name, const std::string& text, const bad_input::Words& told,
                     const bad_input::Words& more = {}) {
    write(name, text);
    bad_input::Words words = {"simulate", "--from", name, "--cluster", "1x8xa100-80gb"};
    words.insert(words.end(), more.begin(), more.end());
    bad_file(words, told);
  }
};

TEST_F(ImportBadSettings, Torchtitan) {
  const std::string head = "[model]\nflavor = \"8B\"\n[training]\nseq_len = 4096\n[parallelism]\n";
  refuse("broken.toml", "[parallelism\n", {"broken.toml", "not read as toml", "line 1"});
  refuse("t.toml", head + "tensor_parallel_degree = \"four\"\n",
         {"t.toml: parallelism.tensor_parallel_degree", "four", "a whole number from 1"});
  refuse("t.toml", head + "tensor_parallel_degree = 2.5\n", {"parallelism.tensor_parallel_degree", "2.5"});
  refuse("t.toml", head + "tensor_parallel_degree = 3\n", {"tp 3", "a divisor of the cluster's 8 GPUs"});
  refuse("t.toml", head + "fsdp_reshard_after_forward = \"some\"\n",
         {"fsdp_reshard_after_forward", "default, always or never"});
  refuse("t.toml", head + "pipeline_parallel_degree = 2\npipeline_parallel_layers_per_stage = 4\n",
         {"pipeline_parallel_layers_per_stage", "one stage a rank"});
  refuse("t.toml", "[model]\nname = \"deepseek_v3\"\n[parallelism]\n[training]\n",
         {"model.name", "deepseek_v3", "llama3 or qwen3"});
  refuse("t.toml", "[model]\nflavor = \"9B\"\n[parallelism]\n[training]\n", {"model.flavor", "9B"});
  refuse("c.py", "def a():\n    return TrainingConfig()\ndef b():\n    return TrainingConfig()\n",
         {"2 functions", "one of: a, b", "--from c.py:a"});
  bad_file({"simulate", "--from", "c.py:d", "--cluster", "1x8xa100-80gb"}, {"function d", "one of: a, b"});
  refuse("d.py", "print('nothing')\n", {"d.py", "no function that makes a TrainingConfig"});
}

TEST_F(ImportBadSettings, OtherFrameworks) {
  refuse("n.yaml",
         "parallelism: {tp: 2, dp: 4}\nmodel: {model_config: {is_llama_config: true, moe_config: "
         "{num_experts: 8}}}\n",
         {"moe_config", "a mixture of experts"});
  refuse("n.yaml", "parallelism: {tp: 2, dp: 4, pp_engine: zb}\n",
         {"parallelism.pp_engine", "zb", "1f1b or afab"});
  refuse("n.yaml", "parallelism: {tp: 2, dp: 4}\noptimizer: {zero_stage: 3}\n",
         {"optimizer.zero_stage", "0 or 1"});
  refuse("broken.yaml", "parallelism: {tp: 2\n", {"broken.yaml", "not read as yaml"});
  refuse("broken.json", "{\"zero_optimization\": {\"stage\": 3},\n", {"broken.json", "line 2"},
         {"--model", "llama-2-7b"});
  for (const char* empty : {"none.sh", "none.json", "none.toml", "none.yaml"})
    refuse(empty, " \n", {empty, "an empty file"});
  refuse("ds.json", R"({"zero_optimization": {"stage": 4}})",
         {"ds.json: zero_optimization.stage", "0, 1, 2 or 3"}, {"--model", "llama-2-7b"});
  refuse("ds.json", R"({"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}})",
         {"offload_param", "stage 3"}, {"--model", "llama-2-7b"});
  refuse("ds.json", R"({"train_batch_size": 12, "zero_optimization": {"stage": 1}})",
         {"a batch of 12", "8 replicas"}, {"--model", "llama-2-7b"});
  refuse("a.yaml", "distributed_type: XLA\nnum_processes: 8\n", {"distributed_type", "XLA"},
         {"--model", "llama-2-7b"});
  refuse("a.yaml",
         "distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config: {deepspeed_config_file: x.json}\n",
         {"deepspeed_config_file", "--from x.json"}, {"--model", "llama-2-7b"});
  refuse("b.yaml", "model: {tensor_model_parallel_size: 1, num_moe_experts: 8}\n", {"num_moe_experts", "8"});
  write("run.sh",
        std::string("torchrun -m torchtitan.train --job.config_file none.toml --training.steps 10"));
  bad_file({"simulate", "--from", "run.sh", "--cluster", "1x8xa100-80gb"}, {"none.toml"});
  // What a script starts its program with is told by its own name; without the slip the same script is read.
  for (const bool whole : {false, true}) {
    write("named.json",
          std::string(whole ? "{\"zero_optimization\": {\"stage\": 3}}" : "{\"zero_optimization\": {"));
    const bad_input::Words words = {"simulate",      "--from",  "ds.sh",       "--cluster",
                                    "1x8xa100-80gb", "--model", "llama-3.2-1b"};
    write("ds.sh",
          std::string("deepspeed train.py --deepspeed named.json --per_device_train_batch_size 1\n"));
    if (whole) {
      EXPECT_EQ(call(words).code, ExitCode::ok) << call(words).err;
    } else {
      bad_file(words, {"named.json", "line 1"});
    }
  }
  usage({"simulate", "--from", "ds.json", "--cluster", "1x8xa100-80gb"},
        {"--model is missing", "ds.json names no model"});
}

}  // namespace
}  // namespace sextant::importing

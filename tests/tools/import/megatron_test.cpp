// Megatron-LM's own examples (tests/golden/import, which name their source) and single options, as training runs.
#include <gtest/gtest.h>

#include "core/plan/megatron_layout.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/tools/import/imported.hpp"
#include "tests/tools/verbs/bad_input.hpp"

namespace sextant::importing {
namespace {

TEST(ImportMegatron, Gpt3Example) {
  const Question q = asked_from(golden("megatron_gpt3_175b.sh"), "16x8xa100-80gb");
  EXPECT_EQ(q.model.name, "gpt3-175b");
  EXPECT_EQ(q.model.vocab_size, 50257);  // of the preset of this shape: its tokenizer's file says it
  EXPECT_TRUE(q.model.tied_embeddings && q.model.linear_bias && !q.model.gated_mlp);
  EXPECT_EQ(plan_key(*q.plan), "tp8.pp16.vp1.cp1.dp1.z0.mbs1.nosp.nogr");
  EXPECT_EQ(q.training.seq_len, 2048);
  EXPECT_EQ(q.training.global_batch, 1536);
  EXPECT_EQ(q.training.parameter, Dtype::fp16);
  EXPECT_EQ(q.training.gradient, Dtype::fp16);
  EXPECT_EQ(q.stack.name, "megatron-core");
  EXPECT_TRUE(names(q.notes, "it starts 8 ranks; the cluster has 128 GPUs, and so dp is 1"));
  EXPECT_TRUE(names(q.notes, "a vocabulary of 50257"));
  EXPECT_TRUE(names(q.notes, "the batch of 1536 at which --step-batch-size-schedule ends"));
  EXPECT_FALSE(names(q.notes, "not understood"));
}

TEST(ImportMegatron, Llama3Example) {
  const Question q = asked_from(golden("megatron_llama3_8b_fp8.sh"), "1x8xh100");
  EXPECT_EQ(q.model.name, "llama-3-8b");
  EXPECT_EQ(q.model.n_kv_heads, 8);
  EXPECT_EQ(q.model.rope_theta, 1e6);
  EXPECT_EQ(plan_key(*q.plan), "tp1.pp1.vp1.cp1.dp8.z1.mbs1");
  EXPECT_EQ(q.training.compute, Dtype::fp8);
  EXPECT_EQ(q.training.parameter, Dtype::bf16);
  EXPECT_EQ(q.training.gradient, Dtype::bf16);  // --grad-reduce-in-bf16
  EXPECT_EQ(q.training.seq_len, 8192);
  EXPECT_FALSE(names(q.notes, "not understood"));
}

TEST(ImportMegatron, FsdpExample) {
  const Question q = asked_from(golden("megatron_fsdp_llama3_8b.sh"), "1x8xh100");
  EXPECT_EQ(plan_key(*q.plan), "tp1.pp1.vp1.cp1.dp8.z3.mbs1");
  EXPECT_TRUE(names(q.notes, "not understood, and so not used here: --no-gradient-accumulation-fusion"));
}

// Options in one exported string, the program in a word of srun, ranks by #SBATCH.
TEST(ImportMegatron, OldPaperScripts) {
  const Question q = asked_from(golden("megatron_sc21.sh"), "4x8xa100-80gb");
  EXPECT_EQ(plan_key(*q.plan), "tp8.pp4.vp1.cp1.dp1.z0.mbs1.full.nosp.nogr");
  EXPECT_EQ(q.model.n_layers, 12);
  EXPECT_EQ(q.model.name, "model of megatron_sc21.sh");  // of no preset's shape, and the script has none
  EXPECT_FALSE(names(q.notes, "it starts"));             // 32 ranks, as the cluster has
}

// The arguments that the program prints: defaults and what was computed are among them.
TEST(ImportMegatron, LogWithItsArguments) {
  const TempDir dir;
  std::string text = "0: ------------------------ arguments ------------------------\n";
  const std::pair<const char*, const char*> arguments[] = {{"add_bias_linear", "False"},
                                                           {"bf16", "True"},
                                                           {"cp_comm_type", "['p2p']"},
                                                           {"data_parallel_size", "4"},
                                                           {"ffn_hidden_size", "14336"},
                                                           {"fp8", "None"},
                                                           {"global_batch_size", "128"},
                                                           {"group_query_attention", "True"},
                                                           {"hidden_size", "4096"},
                                                           {"lr", "0.0003"},
                                                           {"max_position_embeddings", "8192"},
                                                           {"micro_batch_size", "1"},
                                                           {"norm_epsilon", "1e-05"},
                                                           {"normalization", "RMSNorm"},
                                                           {"num_attention_heads", "32"},
                                                           {"num_experts", "None"},
                                                           {"num_layers", "32"},
                                                           {"num_query_groups", "8"},
                                                           {"overlap_grad_reduce", "True"},
                                                           {"overlap_param_gather", "True"},
                                                           {"padded_vocab_size", "128256"},
                                                           {"pipeline_model_parallel_size", "4"},
                                                           {"position_embedding_type", "rope"},
                                                           {"recompute_granularity", "selective"},
                                                           {"recompute_modules", "['core_attn']"},
                                                           {"rotary_base", "500000"},
                                                           {"seq_length", "8192"},
                                                           {"sequence_parallel", "True"},
                                                           {"swiglu", "True"},
                                                           {"tensor_model_parallel_size", "2"},
                                                           {"untie_embeddings_and_output_weights", "True"},
                                                           {"use_distributed_optimizer", "True"},
                                                           {"virtual_pipeline_model_parallel_size", "2"},
                                                           {"vocab_size", "None"},
                                                           {"world_size", "32"}};
  for (const auto& [key, value] : arguments)
    text += fmt::format("0:   {} {} {}\n", key, std::string(48 - std::string(key).size(), '.'), value);
  text +=
      "0: -------------------- end of arguments ---------------------\n0:  iteration 1/ 10 | elapsed time "
      "per iteration (ms): 5000.0 |\n";
  const Question q = asked_from(dir.write("train.log", text), "4x8xh100");
  EXPECT_EQ(plan_key(*q.plan), "tp2.pp4.vp2.cp1.dp4.z1.mbs1.sel");
  EXPECT_EQ(q.model.name, "llama-3-8b");
  EXPECT_FALSE(q.model.linear_bias);
  EXPECT_EQ(q.training.global_batch, 128);
  EXPECT_TRUE(names(q.notes, "a log of Megatron-LM with its arguments"));
  EXPECT_FALSE(names(q.notes, "not understood"));
  EXPECT_FALSE(names(q.notes, "it starts"));
}

// One option added to a plain command line.
class ImportMegatronOption : public ::testing::Test {
 protected:
  ImportedRun with(const std::string& options) {
    return imported(folder_.write(
        "run.sh",
        "torchrun --nproc-per-node 8 --nnodes 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
        "--num-attention-heads 32 --vocab-size 32000 --seq-length 4096 --micro-batch-size 1 "
        "--global-batch-size 128 --bf16 " +
            options));
  }
  std::string key(const std::string& options) { return plan_key(size_run(with(options), 64, 8).plan); }
  TempDir folder_;
};

TEST_F(ImportMegatronOption, Layouts) {
  const std::string pipeline =
      "--pipeline-model-parallel-size 4 --use-distributed-optimizer --overlap-grad-reduce ";
  EXPECT_EQ(key(pipeline + "--num-layers-per-virtual-pipeline-stage 2"), "tp1.pp4.vp4.cp1.dp16.z1.mbs1.nopg");
  EXPECT_EQ(key(pipeline + "--num-virtual-stages-per-pipeline-rank=2"), "tp1.pp4.vp2.cp1.dp16.z1.mbs1.nopg");
  EXPECT_EQ(key(pipeline + "--pipeline-model-parallel-layout 'Et*7|t*8|t*9|t*8L'"),
            "tp1.pp4.vp1.cp1.dp16.z1.mbs1.nopg.L7-8-9-8");
  EXPECT_EQ(key(pipeline + "--pipeline-model-parallel-layout 'Et*4|(t*4|)*6t*4L'"),
            "tp1.pp4.vp2.cp1.dp16.z1.mbs1.nopg");
  EXPECT_EQ(key(pipeline + "--decoder-first-pipeline-num-layers 5 --decoder-last-pipeline-num-layers 7"),
            "tp1.pp4.vp1.cp1.dp16.z1.mbs1.nopg.L5-10-10-7");
  EXPECT_EQ(key(pipeline + "--num-virtual-stages-per-pipeline-rank 2 --decoder-first-pipeline-num-layers 6 "
                           "--decoder-last-pipeline-num-layers 6"),
            "tp1.pp4.vp2.cp1.dp16.z1.mbs1.nopg.L3-5-5-3-3-5-5-3");
  EXPECT_EQ(
      key(pipeline +
          "--tensor-model-parallel-size 2 --sequence-parallel --tp-comm-overlap --overlap-param-gather"),
      "tp2.pp4.vp1.cp1.dp8.z1.mbs1.tpo");
  EXPECT_EQ(key(pipeline + "--use-tp-pp-dp-mapping --ddp-bucket-size 20000000"),
            "tp1.pp4.vp1.cp1.dp16.z1.mbs1.b20M.nopg.ax-tp-cp-pp-dp");
  EXPECT_EQ(key("--context-parallel-size 2 --recompute-granularity full --recompute-method block "
                "--recompute-num-layers 3"),
            "tp1.pp1.vp1.cp2.dp32.z0.mbs1.full3.nogr");
  EXPECT_EQ(
      key("--use-distributed-optimizer --num-distributed-optimizer-instances 4 --recompute-activations"),
      "tp1.pp1.vp1.cp1.dp64.z1.mbs1.sel.sd16.nogr.nopg");
  EXPECT_EQ(
      key("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads --use-distributed-optimizer"),
      "tp1.pp1.vp1.cp1.dp64.z2.mbs1.nogr.nopg");
  EXPECT_EQ(key("--use-distributed-optimizer --optimizer-cpu-offload --optimizer-offload-fraction 0.5"),
            "tp1.pp1.vp1.cp1.dp64.z1.mbs1.oo50.nogr.nopg");
}

TEST_F(ImportMegatronOption, WhatIsNotUnderstoodIsNamed) {
  const ImportedRun run = with(
      "--optimizer-cuda-graph --optimizer muon --attention-backend unfused --lr 1e-4 --recompute-activations "
      "--recompute-modules mlp --micro-batch-size "
      "$MBS");
  EXPECT_TRUE(names(run.unread, "--optimizer-cuda-graph"));
  EXPECT_TRUE(names(run.unread, "--optimizer muon: taken as adam"));
  EXPECT_TRUE(names(run.unread, "--attention-backend unfused: taken as fused"));
  EXPECT_TRUE(names(run.unread, "--recompute-modules mlp: taken as core_attn"));
  EXPECT_TRUE(names(run.unread, "--micro-batch-size $MBS"));
  EXPECT_FALSE(names(run.unread, "--lr"));
  EXPECT_FALSE(names(run.unread, "--bf16"));
}

TEST(MegatronLayout, StringsAndRefusals) {
  EXPECT_EQ(layout_layers("Ett|(ttt|)*2ttL"), (std::vector<int>{2, 3, 3, 2}));
  EXPECT_EQ(layout_layers("E|t*3|L"), (std::vector<int>{0, 3, 0}));
  for (const char* text : {"", "Etm|tL", "E(t", "Et*x|tL", "hello", "(t*60000)*60000"})
    EXPECT_EQ(layout_layers(text), std::nullopt) << text;
  constexpr CountedAsLayers both{.embedding = true, .head = true};
  EXPECT_EQ(accounted_layers(30, 4, both), (std::vector<int>{7, 8, 8, 7}));
  EXPECT_EQ(accounted_layers(31, 4, both), std::nullopt);
  EXPECT_EQ(first_last_layers(32, 4, 1, 5, 7), (std::vector<int>{5, 10, 10, 7}));
  EXPECT_EQ(first_last_layers(32, 4, 1, 5, 6), std::nullopt);
  EXPECT_EQ(first_last_layers(32, 4, 2, 6, 6), (std::vector<int>{3, 5, 5, 3, 3, 5, 5, 3}));
  EXPECT_EQ(first_last_layers(32, 4, 2, 5, 7), std::nullopt) << "5 layers are no two equal chunks";
}

class ImportBadInput : public bad_input::BadInput {
 protected:
  using Words = bad_input::Words;
  static Words from(const std::string& file, const Words& more = {"--cluster", "1x8xa100-80gb"}) {
    Words words = {"simulate", "--from", file};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  static constexpr const char* kGood =
      "pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 "
      "--seq-length 2048 --micro-batch-size 1 --global-batch-size 8 --swiglu ";
};

TEST_F(ImportBadInput, Scripts) {
  bad_file(from("none.sh"), {"none.sh"});
  bad_file(from("folder"), {"folder/launch.sh"});
  write("empty.sh", std::string());
  bad_file(from("empty.sh"), {"empty.sh", "an empty file", "a Megatron-LM command line, script or log"});
  write("other.sh", std::string("python serve.py --port 80 --host a"));
  bad_file(from("other.sh"), {"serve.py", "options of no framework"});
  const auto spoiled = [&](const std::string& options, const Words& told) {
    write("run.sh", kGood + options);
    bad_file(from("run.sh"), told);
  };
  spoiled("--num-experts 8", {"run.sh: --num-experts", "a mixture of experts"});
  spoiled("--vocab-size 32000 --tensor-model-parallel-size four",
          {"--tensor-model-parallel-size", "four", "a whole number from 1"});
  spoiled("--vocab-size 32000 --tensor-model-parallel-size", {"--tensor-model-parallel-size", "nothing"});
  spoiled("--vocab-size 0", {"--vocab-size", "a whole number from 1"});
  spoiled("--ffn-hidden-size 9999", {"size of the vocabulary", "--set model.vocab_size=N"});
  spoiled("--vocab-size 32000 --pipeline-model-parallel-size 4 --pipeline-model-parallel-layout Et*7L",
          {"--pipeline-model-parallel-layout"});
  spoiled("--vocab-size 32000 --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 5",
          {"--num-layers-per-virtual-pipeline-stage"});
  spoiled("--vocab-size 32000 --recompute-granularity half",
          {"--recompute-granularity", "selective or full"});
  spoiled("--vocab-size 32000 --tensor-model-parallel-size 3", {"tp 3", "a divisor of the cluster's 8 GPUs"});
  spoiled("--num-layers $LAYERS --vocab-size 32000", {"$LAYERS", "environment"});
  write("run.sh", std::string(kGood) + "--vocab-size 32000 --micro-batch-size 3");
  bad_file(from("run.sh"),
           {"run.sh: micro_batch * dp", "24", "--global-batch, --plan and --set win over the file"});
}

TEST_F(ImportBadInput, CommandLines) {
  write("run.sh", "torchrun --nproc_per_node 8 --nnodes 2 " + std::string(kGood));
  usage(from("run.sh", {}), {"--cluster is missing", "it starts 16 ranks", "--cluster 2x8xh100"});
  usage(from("run.sh", {"--cluster", "1x8xa100-80gb", "--plan", "plan.json"}), {"--from and a plan file"});
  write("flags.sh", std::string("run.py --micro-batch-size 1 --tensor-model-parallel-size 2"));
  usage(from("flags.sh"), {"--model is missing", "flags.sh names no model"});
  bad_file(bad_input::with_plan("run.sh"),
           {"found a Megatron-LM command line", "of plan, simulate and explain takes it"});
}

// Options on the command line win over the file.
TEST_F(ImportBadInput, OptionsWin) {
  write("run.sh", std::string(kGood) + "--vocab-size 32000 --bf16 --use-distributed-optimizer");
  const Called plain = call(from("run.sh"));
  EXPECT_EQ(plain.code, ExitCode::ok) << plain.err;
  EXPECT_NE(plain.out.find("tp1.pp1.vp1.cp1.dp8.z1.mbs1.nogr.nopg"), std::string::npos) << plain.out;
  const Called other = call(from(
      "run.sh", {"--cluster", "1x8xh100", "--plan", "tp2.pp2.z1.mbs2", "--global-batch", "64", "--seq-len",
                 "1024", "--stack", "nanotron", "--model", "llama-2-7b", "--set", "training.gradient=bf16"}));
  EXPECT_EQ(other.code, ExitCode::ok) << other.err;
  for (const char* words :
       {"llama-2-7b", "tp2.pp2.vp1.cp1.dp2.z1.mbs2", " 64 sequences of 1024", "nanotron; 64 sequences"})
    EXPECT_NE(other.out.find(words), std::string::npos) << words << '\n' << other.out;
}

TEST(ImportedPlan, SaysWhatTheSearchGains) {
  const auto asked = [](const std::string& cluster, const bad_input::Words& more) {
    bad_input::Words words = {"plan", "--from", golden("megatron_gpt3_175b.sh").string(), "--cluster",
                              cluster};
    words.insert(words.end(), more.begin(), more.end());
    return call(words);
  };
  const Called screen = asked("64x8xa100-80gb", {});
  EXPECT_EQ(screen.code, ExitCode::ok) << screen.err;
  for (const char* words : {"today (", "times as long", "predicted as"})
    EXPECT_NE(screen.out.find(words), std::string::npos) << words << '\n' << screen.out;
  const auto whole = nlohmann::json::parse(asked("64x8xa100-80gb", {"--json"}).out);
  EXPECT_EQ(whole.at("today").at("key"), "tp8.pp16.vp1.cp1.dp4.z0.mbs1.nosp.nogr");
  EXPECT_GT(whole.at("today").at("step_time_s").get<double>(),
            whole.at("recommended").at("step_time_s").get<double>());
  const auto today =
      nlohmann::json::parse(asked("10x8xa100-80gb", {"--json", "--budget-s", "2"}).out).at("today");
  EXPECT_TRUE(today.at("step_time_s").is_null());
  EXPECT_EQ(today.at("refused"), "it needs 128 GPUs, the cluster has 80");
}

}  // namespace
}  // namespace sextant::importing

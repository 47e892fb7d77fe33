// From options to what is asked, with the built-in presets.
#include "tools/inputs/inputs.hpp"

#include <functional>

#include <gtest/gtest.h>

#include "tests/support/temp_dir.hpp"

namespace sextant {
namespace {

std::filesystem::path presets() { return std::filesystem::path(SEXTANT_SOURCE_DIR) / "tools/presets"; }

Question ask(std::vector<std::string> arguments) {
  CLI::App app;
  QuestionOptions options;
  add_question_options(app, options, {.plan = true, .limits = true});
  std::reverse(arguments.begin(), arguments.end());
  app.parse(arguments);
  return read_question(options, presets());
}

std::string problem_of(const std::vector<std::string>& arguments) {
  try {
    ask(arguments);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

const std::vector<std::string> kBase = {"--model", "llama-2-13b", "--cluster", "8x8xa100-80gb"};
std::vector<std::string> base(std::vector<std::string> more) {
  std::vector<std::string> all = kBase;
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

TEST(Inputs, DefaultsAndOverrides) {
  const Question q = ask(kBase);
  EXPECT_EQ(q.model.n_layers, 40);
  EXPECT_EQ(q.cluster.gpus(), 64);
  EXPECT_EQ(q.training.seq_len, 4096);
  EXPECT_EQ(q.training.global_batch, 1024);
  EXPECT_EQ(q.training.stack, q.stack.name);
  const Question other = ask(
      base({"--seq-len", "2048", "--global-batch=512", "--stack", "torchtitan", "--set",
            "fabric.bandwidth_GBps=100", "--set", "training.gradient=bf16", "--set", "model.n_layers=48"}));
  EXPECT_EQ(other.training.seq_len, 2048);
  EXPECT_EQ(other.training.global_batch, 512);
  EXPECT_EQ(other.stack.name, "torchtitan");
  EXPECT_EQ(other.cluster.fabric.bandwidth, BytesPerSecond(100e9));
  EXPECT_EQ(other.training.gradient, Dtype::bf16);
  EXPECT_EQ(other.model.n_layers, 48);
}

TEST(Inputs, GradientsHaveTheFormatOfTheStackUnlessStated) {
  const auto formats = [](std::vector<std::string> more) {
    const Question q = ask(base(std::move(more)));
    return std::pair(q.training.gradient, q.training.reduction);
  };
  using enum Dtype;
  EXPECT_EQ(formats({"--stack", "megatron-core"}), std::pair(fp32, fp32));
  EXPECT_EQ(formats({"--stack", "nemo-dgxc"}), std::pair(bf16, bf16));
  EXPECT_EQ(formats({"--stack", "nemo-2024"}), std::pair(bf16, bf16));  // what its base says
  EXPECT_EQ(formats({"--stack", "megatron-deepspeed-bloom-bf16"}), std::pair(fp32, fp32));
  EXPECT_EQ(formats({"--stack", "nemo-dgxc", "--set", "training.parameter=fp32"}), std::pair(fp32, fp32));
  EXPECT_EQ(formats({"--stack", "nemo-dgxc", "--set", "training.gradient=fp32"}), std::pair(fp32, bf16));
  EXPECT_EQ(formats({"--set", "training.reduction=bf16"}), std::pair(fp32, bf16));
}

TEST(Inputs, LimitsAndPlan) {
  const Question q = ask(base({"--fix", "tp=4,pp=2", "--limit", "mbs<=4", "--limit", "z>=1"}));
  EXPECT_EQ(q.limits.limits.size(), 4U);
  EXPECT_FALSE(q.plan);
  const Question one = ask(base({"--plan", "tp4.pp2.dp8.z1.mbs1"}));
  ASSERT_TRUE(one.plan);
  EXPECT_EQ(one.plan->tp, 4);
}

TEST(Inputs, APlanFileBringsEverythingAndOptionsOverrideIt) {
  const TempDir folder;
  const Question q = ask(base({"--plan", "tp4.pp2.dp8.z1.mbs1"}));
  PlanFile file;
  file.model = q.model;
  file.training = q.training;
  file.cluster = q.cluster;
  file.stack = q.stack;
  file.plan = *q.plan;
  const std::string path = (folder.path() / "plan.json").string();
  save_plan_file(path, file);
  const Question again = ask({"--plan", path});
  EXPECT_EQ(again.model, q.model);
  EXPECT_EQ(again.cluster, q.cluster);
  EXPECT_EQ(again.stack, q.stack);
  EXPECT_EQ(again.training, q.training);
  EXPECT_EQ(*again.plan, *q.plan);
  const Question changed = ask({"--plan", path, "--global-batch", "2048", "--cluster", "8x8xh100"});
  EXPECT_EQ(changed.training.global_batch, 2048);
  EXPECT_NE(changed.cluster, q.cluster);
  EXPECT_EQ(changed.model, q.model);
}

TEST(Inputs, AKeyWithoutDpFillsTheClusterAndIdleGpusAreNoted) {
  const Question filled = ask(base({"--plan", "tp2.pp1.z1.mbs1"}));
  EXPECT_EQ(filled.plan->world(), filled.cluster.gpus());
  EXPECT_TRUE(filled.notes.empty());
  const Question idle = ask(base({"--plan", "tp2.pp1.dp1.z1.mbs1"}));
  EXPECT_EQ(idle.plan->world(), 2);
  ASSERT_EQ(idle.notes.size(), 1U);
  EXPECT_NE(idle.notes[0].find("62 are idle"), std::string::npos) << idle.notes[0];
  const std::string indivisible = problem_of(base({"--plan", "tp5.pp1"}));
  EXPECT_NE(indivisible.find("tp * cp * pp = 5, expected a divisor of the cluster's 64 GPUs"),
            std::string::npos)
      << indivisible;
}

TEST(Inputs, NotesOfAModelAreMootWhereSetStatesTheField) {
  const TempDir folder;
  const std::string model =
      folder.write("params.json", R"({"dim": 4096, "n_heads": 32, "n_layers": 32, "vocab_size": -1})")
          .string();
  EXPECT_EQ(ask({"--model", model, "--cluster", "8x8xh100"}).notes.size(), 3U);
  EXPECT_EQ(ask({"--model", model, "--cluster", "8x8xh100", "--seq-len", "4096"}).notes.size(), 2U);
  const Question stated = ask({"--model", model, "--cluster", "8x8xh100", "--set", "model.vocab_size=50000",
                               "--set", "model.tied_embeddings=false", "--set", "model.max_positions=4096"});
  EXPECT_TRUE(stated.notes.empty());
  EXPECT_EQ(stated.model.vocab_size, 50000);
}

TEST(Inputs, ProblemsSayWhatToDo) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--cluster", "8x8xh100"}, "--model is missing"},
      {{"--model", "llama-2-13b"}, "--cluster is missing"},
      {{"--model", "lama-2-13b", "--cluster", "8x8xh100"}, "llama-2-13b"},
      {{"--model", "llama-2-13b", "--cluster", "8x8xh1000"}, "did you mean"},
      {base({"--stack", "megatron-cor"}), "megatron-core"},
      {base({"--set", "fabric.bandwith_GBps=100"}), "bandwidth_GBps"},
      {base({"--set", "training.gradient"}), "KEY=VALUE"},
      {base({"--set", "training.seqlen=1"}), "seq_len"},
      {base({"--set", "training.global_batch=0"}), "from 1 to"},
      {base({"--fix", "tp=4", "--limit", "tp<=2"}), "some value satisfies"},
      {base({"--plan", "tp4.xx2"}), "xx2"},
      {base({"--plan", "tp3.pp2.dp8"}), "--plan"},
      {base({"--plan", "missing.json"}), "missing.json"},
      {base({"--seq-len", "0"}), "--seq-len: found 0"},
  };
  for (const auto& [arguments, expected] : cases)
    EXPECT_NE(problem_of(arguments).find(expected), std::string::npos)
        << "wanted " << expected << ", got: " << problem_of(arguments);
}

}  // namespace
}  // namespace sextant

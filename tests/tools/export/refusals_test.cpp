// What a target has no option for is refused field by field, with exit code 5 and nothing written; --nearest gives the plan
// beside it, and what it costs.
#include <algorithm>
#include <utility>

#include "tests/tools/export/export_case.hpp"
#include "tools/export/export_target.hpp"

namespace sextant::exporting {
namespace {

struct Refusal {
  std::string target, cluster, stack, key, field;
  Words question = k8B;
};

const Words k1B = {"--model", "llama-3.2-1b", "--seq-len", "4096", "--global-batch", "64"};

// Of a stack whose framework cuts layers by its own rule, as if it did not.
Words cut_as_told(Words question) {
  question.insert(question.end(), {"--set", "stack.can.uneven_stages=any"});
  return question;
}

Words in_any_order(Words question) {
  question.insert(question.end(), {"--set", "stack.can.axis_orders=[]"});
  return question;
}

// Each is refused for this field alone.
const std::vector<Refusal> kRefusals = {
    {"megatron-lm", "4x8xh100", "torchtitan", "pp4.dp8.z2.mbs1", "zero_stage"},
    {"megatron-lm", "1x8xh100", "deepspeed-zero", "dp8.z3.mbs1.oo100.po", "parameter_offload"},
    {"megatron-lm", "4x8xh100", "torchtitan", "pp4.dp8.z0.mbs1.gpipe", "schedule"},
    {"megatron-lm", "4x8xh100", "megatron-core", "pp4.dp8.z1.mbs1.nogr", "overlap_param_gather"},
    {"megatron-lm", "4x8xh100", "megatron-core", "tp2.pp4.dp4.z1.mbs1.ax-dp-tp-cp-pp", "axis_order",
     in_any_order(k8B)},
    {"megatron-lm", "4x8xh100", "torchtitan", "tp2.dp16.z3.mbs1.tpo", "overlap_tp"},
    {"nanotron", "2x8xh100", "nanotron", "tp2.pp2.dp4.z1.mbs1.nopg.L14-18", "chunks", cut_as_told(k7B)},
    {"nanotron", "2x8xh100", "torchtitan", "dp16.z2.mbs1.nopg", "zero_stage", k7B},
    {"nanotron", "2x8xh100", "nanotron", "tp2.dp8.z0.mbs1.nogr", "overlap_grad_reduce", k7B},
    {"nanotron", "2x8xh100", "megatron-core", "tp2.cp2.dp4.z0.mbs1", "cp", k7B},
    {"nanotron", "2x8xh100", "torchtitan", "tp2.dp8.z0.mbs1.sel", "recompute", k7B},
    {"fsdp2", "2x8xh100", "torchtitan", "tp2.pp2.dp4.z3.mbs1", "pp"},
    {"fsdp2", "2x8xh100", "torchtitan", "cp2.dp8.z3.mbs1", "cp"},
    {"fsdp2", "2x8xh100", "torchtitan", "tp2.dp8.z3.mbs1.tpo", "overlap_tp"},
    {"fsdp2", "2x8xh100", "megatron-core", "dp16.z1.mbs1", "zero_stage"},
    {"fsdp2", "2x8xh100", "sextant", "dp16.z3.mbs1.nopg", "overlap_param_gather"},
    {"deepspeed", "1x8xh100", "deepspeed-zero", "tp2.dp4.z2.mbs1", "sequence_parallel"},
    {"deepspeed", "1x8xh100", "deepspeed-zero", "tp2.pp2.dp2.z1.mbs1.nosp.nogr", "tp"},
    {"deepspeed", "1x8xh100", "deepspeed-zero", "dp8.z0.mbs1", "overlap_grad_reduce", k1B},
    {"deepspeed", "1x8xh100", "deepspeed-zero", "pp2.dp4.z1.mbs1", "overlap_grad_reduce"},
    {"deepspeed", "1x8xh100", "deepspeed-zero", "dp8.z0.mbs1.nogr.b20M", "bucket_elements", k1B},
    {"deepspeed", "2x8xh100", "torchtitan", "dp16.z3.sd8.mbs1", "shard_degree"},
    {"deepspeed", "1x8xh100", "torchtitan", "dp8.z3.sd1.mbs1.full", "shard_degree"},
    {"deepspeed", "1x8xh100", "deepspeed-zero", "dp8.z3.mbs1.nogr", "overlap_param_gather"},
    {"deepspeed", "1x8xh100", "deepspeed-zero", "dp8.z3.mbs1.full.ao4", "activation_offload"},
    {"deepspeed", "1x8xh100", "sextant", "dp8.z2.mbs1.oo50", "optimizer_offload"},
    {"deepspeed", "1x8xh100", "torchtitan", "pp2.dp4.z3.mbs1.nogr.nopg", "zero_stage"},
    {"deepspeed", "2x8xh100", "torchtitan", "tp2.cp2.dp4.z2.mbs1.nosp", "cp"},
    {"accelerate", "1x8xh100", "torchtitan-eager", "tp2.dp4.z3.mbs1", "tp"},
    {"accelerate", "1x8xh100", "torchtitan-eager", "cp2.dp4.z3.mbs1", "cp"},
    {"accelerate", "1x8xh100", "torchtitan-eager", "dp8.z0.mbs1", "zero_stage", k7B},
    {"accelerate", "1x8xh100", "torchtitan-eager", "dp8.z3.mbs1.sel", "recompute"},
    {"accelerate", "1x8xh100", "torchtitan-eager", "dp8.z3.sd1.mbs1.full", "shard_degree"},
    {"accelerate-deepspeed", "1x8xh100", "deepspeed-zero", "tp2.dp4.z2.mbs1.nosp", "tp"},
    {"accelerate-deepspeed", "1x8xh100", "deepspeed-zero", "dp8.z0.mbs1", "overlap_grad_reduce", k1B},
    {"colossalai", "2x8xh100", "colossal-ai", "tp2.pp2.dp4.z1.mbs1", "overlap_grad_reduce"},
    {"colossalai", "1x8xh100", "colossal-ai", "dp8.z0.mbs1.nogr", "overlap_grad_reduce", k1B},
    {"colossalai", "1x8xh100", "colossal-ai", "dp8.z2.mbs1.b20M", "bucket_elements"},
    {"colossalai", "1x8xh100", "colossal-ai", "dp8.z2.mbs1.full4", "recompute.layers"},
    {"colossalai", "2x8xh100", "colossal-ai", "tp2.cp2.dp4.z2.mbs1", "sequence_parallel"},
    {"colossalai", "1x8xh100", "colossal-ai", "dp8.z1.sd1.mbs1.full", "shard_degree", k1B},
    {"colossalai", "1x8xh100", "colossal-ai", "tp2.dp4.z1.mbs1.ax-dp-tp-cp-pp", "axis_order",
     in_any_order(k8B)},
    {"colossalai", "2x8xh100", "colossal-ai", "pp2.vp2.dp8.z1.mbs1.nogr.L7-9-8-8", "chunks",
     cut_as_told(k8B)},
    {"colossalai-gemini", "1x8xh100", "colossal-gemini", "tp2.dp4.z3.mbs1", "sequence_parallel"},
    {"colossalai-gemini", "2x8xh100", "colossal-gemini", "dp16.z3.sd8.mbs1", "shard_degree"},
    {"colossalai-gemini", "1x8xh100", "colossal-gemini", "dp8.z3.mbs1.b20M", "bucket_elements"},
    {"smp", "1x8xh100", "megatron-core", "dp8.z1.mbs1", "zero_stage"},
    {"smp", "1x8xh100", "smp-v2", "dp8.z3.mbs1.full.ao4", "activation_offload"},
    {"sextant", "2x8xh100", "megatron-core", "tp2.dp8.z1.mbs1.tpo", "overlap_tp"},
    {"megatron-bridge", "4x8xh100", "torchtitan", "pp4.dp8.z2.mbs1", "zero_stage"},
    {"megatron-bridge", "4x8xh100", "megatron-core", "tp2.pp4.dp4.z1.mbs1.ax-dp-tp-cp-pp", "axis_order",
     in_any_order(k8B)},
    {"megatron-bridge", "4x8xh100", "megatron-core", "pp4.dp8.z1.mbs1.nogr", "overlap_param_gather"},
    {"torchtitan", "4x8xh100", "megatron-core", "tp2.dp16.z1.mbs1", "zero_stage"},
    {"torchtitan", "2x8xh100", "megatron-core", "dp16.z3.mbs1.b20M", "bucket_elements"},
    {"torchtitan", "2x8xh100", "sextant", "dp16.z3.mbs1.nopg", "overlap_param_gather"},
    {"torchtitan",
     "2x8xh100",
     "megatron-core",
     "cp2.dp8.z0.mbs1",
     "zero_stage",
     {"--model", "llama-3.2-1b", "--seq-len", "4096", "--global-batch", "64"}},
    {"torchtitan", "2x8xh100", "megatron-core", "tp16.dp1.z0.mbs1", "tp"},
    {"torchtitan",
     "2x8xh100",
     "torchtitan",
     "pp2.dp8.z0.mbs1",
     "pp",
     {"--model", "llama-3.2-1b", "--seq-len", "4096", "--global-batch", "64"}},
};

TEST(ExportRefusals, NameTheFieldAndWriteNothing) {
  for (const Refusal& r : kRefusals) {
    SCOPED_TRACE(r.target + " " + r.key);
    const TempDir dir;
    const std::string plan = plan_file(dir, on(r.cluster, r.stack, r.question), r.key);
    const Called called = export_to(r.target, plan, dir.path() / "job");
    EXPECT_EQ(called.code, ExitCode::export_cannot_express) << called.out << called.err;
    EXPECT_NE(called.out.find("  " + r.field), std::string::npos) << called.out;
    EXPECT_NE(called.out.find("--nearest"), std::string::npos) << called.out;
    EXPECT_FALSE(std::filesystem::exists(dir.path() / "job"));
    const auto answer = exported_json(r.target, plan, dir.path() / "job");
    EXPECT_EQ(missing_fields(answer), Words{r.field});
  }
}

// Of whatever was refused: expressible without --nearest, the same model and batch, on as many GPUs, with its price.
TEST(ExportRefusals, TheNearestCanBeExported) {
  for (const Refusal& r : kRefusals) {
    SCOPED_TRACE(r.target + " " + r.key);
    const TempDir dir;
    const std::string plan = plan_file(dir, on(r.cluster, r.stack, r.question), r.key);
    const auto answer = exported_json(r.target, plan, dir.path() / "job", {"--nearest"});
    ASSERT_TRUE(answer.contains("key")) << answer.dump(1);
    EXPECT_NE(answer.at("key"), answer.at("asked"));
    EXPECT_FALSE(answer.at("changes").empty());
    EXPECT_GT(answer.at("prediction").at("step_time_s").get<double>(), 0);
    const std::string written = (dir.path() / "job" / "plan.json").string();
    const auto asked = nlohmann::json::parse(text_of(plan)), now = nlohmann::json::parse(text_of(written));
    EXPECT_EQ(asked.at("model"), now.at("model"));
    EXPECT_EQ(asked.at("training").at("global_batch"), now.at("training").at("global_batch"));
    const auto ranks = [](const nlohmann::json& p) {
      return p.at("plan").at("tp").get<int>() * p.at("plan").at("cp").get<int>() *
             p.at("plan").at("pp").get<int>() * p.at("plan").at("dp").get<int>();
    };
    EXPECT_EQ(ranks(asked), ranks(now));
    EXPECT_EQ(export_to(r.target, written, dir.path() / "again").code, ExitCode::ok);
  }
}

TEST(ExportRefusals, UnequalShardsHaveANearestThatIsEqual) {
  const TempDir dir;
  for (const auto& [target, key] : {std::pair{"megatron-lm", "dp8.z1.mbs1.full.sw2x7-1"},
                                    {"torchtitan", "dp8.z3.mbs1.full.sw2x7-1"},
                                    {"fsdp2", "dp8.z3.mbs1.full.sw2x7-1"}}) {
    const std::string plan =
        plan_file(dir, on("1x8xh100", "sextant", k1B), key, std::string(target) + ".json");
    EXPECT_EQ(missing_fields(exported_json(target, plan, dir.path() / (std::string(target) + "no"))),
              Words{"shard_weights"})
        << target;
    const auto equal = exported_json(target, plan, dir.path() / target, {"--nearest"});
    ASSERT_TRUE(equal.contains("key")) << target << equal.dump(1);
    EXPECT_EQ(equal.at("key").get<std::string>().find("sw"), std::string::npos) << equal.at("key");
  }
}

// Replicas that do not divide the batch: fewer that do, or as many of smaller micro-batches.
TEST(ExportRefusals, UnequalReplicasHaveANearestThatDividesTheBatch) {
  const TempDir dir;
  const auto nearest = [&](const std::string& key, const std::string& target) {
    const std::string plan = plan_file(dir, on("1x8xh100", "sextant", k1B), key, key + ".json");
    EXPECT_EQ(missing_fields(exported_json(target, plan, dir.path() / (key + target + "no"))),
              Words{"replica_microbatches"});
    return exported_json(target, plan, dir.path() / (key + target), {"--nearest"});
  };
  for (const char* target : {"megatron-lm", "torchtitan"}) {
    const auto fewer = nearest("dp7.z0.mbs1.full.ga10-9x6", target);
    ASSERT_TRUE(fewer.contains("key")) << target << fewer.dump(1);
    EXPECT_NE(fewer.at("key").get<std::string>().find(".dp4."), std::string::npos) << fewer.at("key");
    EXPECT_NE(fewer.at("changes").dump().find("equally many micro-batches, dp 4"), std::string::npos)
        << fewer.at("changes").dump();
  }
  const auto divides = nearest("dp8.z0.mbs1.full.ga9x7-1", "megatron-lm");
  EXPECT_NE(divides.at("key").get<std::string>().find(".dp8."), std::string::npos) << "control: 64 by 8";
}

// Positions that a target does not scale in the model's way: a kind of model, so that no plan is near it.
TEST(ExportRefusals, ScaledPositionsAreNamed) {
  const auto missing = [](const std::string& target, const std::string& stack, const std::string& key,
                          const Words& question) {
    const TempDir dir;
    const std::string plan = plan_file(dir, on("1x8xh100", stack, question), key);
    for (const Words& more : {Words{}, Words{"--nearest"}}) {
      const Called called = export_to(target, plan, dir.path() / "job", more);
      EXPECT_EQ(called.code, ExitCode::export_cannot_express);
      EXPECT_NE(called.out.find("model.rope_scaling has no substitute"), std::string::npos) << called.out;
      EXPECT_EQ(called.out.find("next: --nearest"), std::string::npos) << called.out;
    }
    return missing_fields(exported_json(target, plan, dir.path() / "job"));
  };
  EXPECT_EQ(missing("nanotron", "nanotron", "tp2.dp4.z1.mbs1.nopg", k8B), Words{"model.rope_scaling"});
  EXPECT_EQ(missing("nanotron", "nanotron", "tp2.dp4.z1.mbs1.nopg", k1B), Words{"model.rope_scaling"});
  Words yarn = k8B;
  yarn.insert(yarn.end(), {"--set", "model.rope_scaling.type=yarn"});
  EXPECT_EQ(missing("deepspeed", "deepspeed-zero", "dp8.z3.mbs1", yarn), Words{"model.rope_scaling"});
  EXPECT_EQ(missing("accelerate", "torchtitan-eager", "dp8.z3.mbs1", yarn), Words{"model.rope_scaling"});
  EXPECT_EQ(missing("fsdp2", "torchtitan", "dp8.z3.mbs1", yarn), Words{"model.rope_scaling"});
  EXPECT_EQ(missing("colossalai", "colossal-ai", "dp8.z2.mbs1", yarn), Words{"model.rope_scaling"});
}

// DeepSpeed takes another optimizer for bf16 parameters with fp32 gradients: it is sharded where ZeRO is off, and reduces late.
TEST(ExportRefusals, DeepSpeedWithFp32Gradients) {
  const TempDir dir;
  const auto missing = [&](const std::string& key, const std::string& format) {
    Words question = k8B;
    // The stack refuses the first of them before the export is asked.
    question.insert(question.end(),
                    {"--set", "training.gradient=" + format, "--set", "stack.can.fp32_sums_from_zero=0"});
    const std::string plan = plan_file(dir, on("1x8xh100", "deepspeed-zero", question), key, key + format);
    return missing_fields(exported_json("deepspeed", plan, dir.path() / ("job" + key + format)));
  };
  EXPECT_EQ(missing("dp8.z0.mbs1.nogr", "fp32"), Words{"training.gradient"});
  EXPECT_EQ(missing("dp8.z0.mbs1.nogr", "bf16"), Words{}) << "the negative control";
  EXPECT_EQ(missing("dp8.z1.mbs1", "fp32"), Words{"overlap_grad_reduce"});
  EXPECT_EQ(missing("dp8.z1.mbs1", "bf16"), Words{}) << "the negative control";
  EXPECT_EQ(missing("dp8.z2.mbs1", "fp32"), Words{});
}

// The embedded runtime reads the plan file: it says itself which models and formats it cannot train.
TEST(ExportRefusals, TheRuntimeSpeaksForItself) {
  const TempDir dir;
  const auto missing = [&](const std::string& setting) {
    Words question = k8B;
    question.insert(question.end(), {"--set", setting});
    const std::string plan =
        plan_file(dir, on("1x8xh100", "sextant", question), "dp8.z3.mbs1", setting + ".json");
    return missing_fields(exported_json("sextant", plan, dir.path() / setting));
  };
  EXPECT_EQ(missing("model.norm=layer"), Words{"model.norm"});
  EXPECT_EQ(missing("training.optimizer_state=bf16"), Words{"training.optimizer_state"});
  EXPECT_EQ(missing("model.qk_norm=head"), Words{}) << "the negative control";
}

// A kind of model that a framework does not have is refused with --nearest too: nothing stands for it.
TEST(ExportRefusals, WhatAModelHasThatNoTargetWrites) {
  for (const std::string setting :
       {"qk_norm=head", "norm_placement=after", "window=1024", "normalized_head=true"})
    for (const std::string target : {"megatron-lm", "torchtitan", "nanotron", "fsdp2", "deepspeed",
                                     "megatron-bridge", "accelerate", "accelerate-deepspeed", "smp"}) {
      const TempDir dir;
      Words question = k8B;
      question.insert(question.end(), {"--set", "model." + setting});
      const std::string plan = plan_file(dir, on("1x8xh100", "torchtitan", question), "dp8.z3.mbs1");
      const auto answer = exported_json(target, plan, dir.path() / "job");
      const auto fields = missing_fields(answer);
      EXPECT_EQ(std::count(fields.begin(), fields.end(), "model." + setting.substr(0, setting.find('='))), 1)
          << target << ' ' << setting << '\n'
          << answer.dump(1);
    }
}

TEST(ExportRefusals, AModelHasNoNearest) {
  const TempDir dir;
  const Words question = {"--model",        "llama-3.1-8b", "--seq-len", "4096",
                          "--global-batch", "64",           "--set",     "model.norm=layer"};
  const std::string plan = plan_file(dir, on("1x8xh100", "torchtitan", question), "dp8.z3.mbs1");
  const Called called = export_to("torchtitan", plan, dir.path() / "job", {"--nearest"});
  EXPECT_EQ(called.code, ExitCode::export_cannot_express);
  EXPECT_NE(called.out.find("model.norm"), std::string::npos) << called.out;
  EXPECT_FALSE(std::filesystem::exists(dir.path() / "job"));
}

// Ranks are started alike on every node: a node with a missing GPU cannot be.
TEST(ExportRefusals, ANodeWithAMissingGpu) {
  const TempDir dir;
  auto whole = nlohmann::json::parse(text_of(plan_file(dir, on("2x8xh100", "torchtitan"), "dp16.z3.mbs1")));
  whole["cluster"]["defects"] = {{{"node", 0}, {"gpu", 3}, {"missing", true}}};
  const auto cluster = dir.write("cluster.json", whole["cluster"].dump()).string();
  const Words sixty = {"--model", "llama-3.1-8b", "--seq-len", "4096", "--global-batch", "60"};
  const std::string broken = plan_file(dir, on(cluster, "torchtitan", sixty), "dp15.z3.mbs1", "broken.json");
  const auto answer = exported_json("torchtitan", broken, dir.path() / "broken");
  EXPECT_EQ(missing_fields(answer), Words{"cluster.defects"}) << answer.dump(1);
}

// Where the nearest is too large: no files, exit code 4 and what to do.
TEST(ExportRefusals, ANearestThatDoesNotFitIsNotWritten) {
  const TempDir dir;
  const Words larger = {"--model", "llama-2-13b", "--seq-len", "4096", "--global-batch", "64"};
  const std::string plan = plan_file(dir, on("2x8xh100", "megatron-core", larger), "cp2.dp8.z0.mbs1");
  const Called called = export_to("torchtitan", plan, dir.path() / "job", {"--nearest"});
  EXPECT_EQ(called.code, ExitCode::no_feasible_plan) << called.out;
  EXPECT_NE(called.out.find("sextant plan --stack torchtitan"), std::string::npos) << called.out;
  EXPECT_FALSE(std::filesystem::exists(dir.path() / "job"));
}

// What the target's stack can do depends on the devices: from Blackwell on Megatron-FSDP goes with overlapped TP.
TEST(ExportRefusals, AbilitiesAreThoseOfTheDevices) {
  const TempDir dir;
  const auto missing = [&](const std::string& cluster, const std::string& name) {
    const std::string plan =
        plan_file(dir, on(cluster, "torchtitan"), "tp2.dp16.z3.mbs1.tpo", name + ".json");
    return missing_fields(exported_json("megatron-lm", plan, dir.path() / name));
  };
  EXPECT_EQ(missing("4x8xb200", "blackwell"), Words{});
  EXPECT_EQ(missing("4x8xh100", "hopper"), Words{"overlap_tp"}) << "the negative control";
}

// The plan's stack is not the target's: it is exported, and what the target's stack makes of it is said.
TEST(ExportRefusals, AnotherStackIsSaid) {
  const TempDir dir;
  const std::string plan = plan_file(dir, on("4x8xh100", "nemo-2024"), "tp2.pp2.dp8.z1.mbs1");
  const Called called = export_to("megatron-lm", plan, dir.path() / "job");
  EXPECT_EQ(called.code, ExitCode::ok);
  EXPECT_NE(called.out.find("the plan was made for nemo-2024"), std::string::npos) << called.out;
  const auto now = nlohmann::json::parse(text_of(dir.path() / "job" / "plan.json"));
  EXPECT_EQ(now.at("stack").at("name"), "megatron-core");
  const Called same =
      export_to("megatron-lm", (dir.path() / "job" / "plan.json").string(), dir.path() / "again");
  EXPECT_EQ(same.out.find("was made for"), std::string::npos) << same.out;
}

}  // namespace
}  // namespace sextant::exporting

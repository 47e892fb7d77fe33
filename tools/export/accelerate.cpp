// Export to accelerate: the YAML file of `accelerate launch --config_file`, and a script that trains transformers' LLaMA with an
// Accelerator. Two targets: FSDP2, and DeepSpeed with a ds_config.json. Key names and what excludes what: accelerate 1.15.0,
// commands/config/config_args.py, utils/launch.py, parallelism_config.py, utils/dataclasses.py (FullyShardedDataParallelPlugin,
// DeepSpeedPlugin).
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tools/export/deepspeed_config.hpp"
#include "tools/export/export_target.hpp"
#include "tools/export/launch.hpp"
#include "tools/export/python_text.hpp"

namespace sextant {
namespace {

enum class Engine : std::uint8_t { fsdp, deepspeed };

TargetFeatures script_features(TargetFeatures t) {
  t.can.pipeline_parallel = t.can.activation_offload = t.can.recompute_layers = t.can.recompute_selective =
      false;
  t.every_bias = t.own_head_dim = true;
  t.rope_scaling = {kScriptRopeScaling};
  return t;
}

TargetFeatures fsdp_features(const std::string&, const StackCapabilities& can) {
  TargetFeatures t;
  t.can = can;
  t.can.zero_stages = {2, 3};
  t.can.overlap_tp = false;
  t.without_grad_overlap = t.without_param_overlap = false;
  for (const Dtype low : {Dtype::bf16, Dtype::fp16})
    for (const Dtype wire : {Dtype::fp32, low})
      t.formats.push_back({low, low, Dtype::fp32, wire, Dtype::fp32});
  t.formats.push_back({Dtype::fp32, Dtype::fp32, Dtype::fp32, Dtype::fp32, Dtype::fp32});
  return script_features(std::move(t));
}

TargetFeatures engine_features(const std::string&, const StackCapabilities& can) {
  return script_features(deepspeed_engine_features(can));
}

// Splitting matrices and sequences: accelerate splits those of models that from_pretrained() loads onto its mesh, and buffers that
// a training loop names; the script here makes its model and has neither.
std::vector<Inexpressible> common_rules(const PlanFile& file) {
  std::vector<Inexpressible> found;
  const ParallelPlan& p = file.plan;
  const auto into_dp = [&](const char* field, int ParallelPlan::*member, const char* why) {
    const int degree = p.*member;
    if (degree > 1)
      found.push_back(
          {field,
           fmt::format("{}", degree),
           why,
           {set_field(fmt::format("{} 1, dp {}", field, p.dp * degree), [member](ParallelPlan& q) {
             q.dp *= q.*member;
             q.*member = 1;
             if (q.tp == 1) q.sequence_parallel = q.overlap_tp = false;
           })}});
  };
  into_dp("tp", &ParallelPlan::tp, "accelerate splits matrices only of models that from_pretrained() loads");
  into_dp("cp", &ParallelPlan::cp,
          "accelerate splits sequences only where the training loop names each buffer");
  const NodeShare share = node_share(file);
  if (share.last != share.gpus)
    found.push_back(
        {"dp",
         fmt::format("{}", p.dp),
         fmt::format("accelerate launch starts as many ranks on the last node, not {}", share.last),
         {}});
  return found;
}

std::vector<Inexpressible> fsdp_rules(const PlanFile& file, const std::string&) {
  std::vector<Inexpressible> found = common_rules(file);
  const ParallelPlan& p = file.plan;
  if (p.world() == 1)
    found.push_back({"dp", "1", "FSDP needs two ranks or more", {}});
  else if (p.zero_stage > 0 && p.shards() == 1 && p.dp > 1)
    found.push_back({"shard_degree",
                     "1",
                     "FSDP needs two ranks or more to shard over",
                     {set_field("shard_degree 0", [](ParallelPlan& q) { q.shard_degree = 0; })}});
  return found;
}

std::vector<Inexpressible> engine_rules(const PlanFile& file, const std::string&) {
  std::vector<Inexpressible> found = common_rules(file);
  for (Inexpressible& more : deepspeed_engine_rules(file)) found.push_back(std::move(more));
  return found;
}

const char* yaml_bool(bool value) { return value ? "true" : "false"; }

std::string precision_word(const TrainingSpec& t) {
  return t.parameter == Dtype::fp32 ? "'no'" : std::string(name(t.parameter));
}

// `formats`: a line that states them, or none.
std::string head_of_yaml(const PlanFile& file, const std::string& version, const char* type,
                         const std::string& formats) {
  const NodeShare share = node_share(file);
  return fmt::format(
      "# accelerate {}: the plan {}.\ncompute_environment: LOCAL_MACHINE\ndistributed_type: {}\n"
      "{}num_machines: {}\nnum_processes: {}\nmain_training_function: main\n"
      "rdzv_backend: static\nsame_network: true\nuse_cpu: false\n",
      version, plan_key(file.plan), type, formats, share.nodes, file.plan.world());
}

std::string fsdp_yaml(const PlanFile& file, const std::string& version) {
  const ParallelPlan& p = file.plan;
  return head_of_yaml(file, version, "FSDP",
                      fmt::format("mixed_precision: {}\n", precision_word(file.training))) +
         fmt::format(R"(fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
  fsdp_reshard_after_forward: {}
  fsdp_offload_params: {}
  fsdp_activation_checkpointing: {}
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_cpu_ram_efficient_loading: false
parallelism_config:
  parallelism_config_dp_replicate_size: {}
  parallelism_config_dp_shard_size: {}
  parallelism_config_tp_size: 1
  parallelism_config_cp_size: 1
)",
                     yaml_bool(p.zero_stage == 3), yaml_bool(p.parameter_offload),
                     yaml_bool(p.recompute.kind == RecomputeKind::full), p.dp / p.shards(), p.shards());
}

// accelerate refuses to start with mixed_precision beside a file of DeepSpeed's, which states the formats.
std::string engine_yaml(const PlanFile& file, const std::string& version) {
  return head_of_yaml(file, version, "DEEPSPEED", "") +
         fmt::format(
             "deepspeed_config:\n  deepspeed_config_file: ds_config.json\n"
             "  deepspeed_multinode_launcher: standard\n  zero3_init_flag: {}\n",
             yaml_bool(file.plan.zero_stage == 3));
}

std::string accelerate_settings(const PlanFile& file, Engine engine) {
  const bool deepspeed = engine == Engine::deepspeed;
  const TrainingSpec& t = file.training;
  std::string text =
      fmt::format("# The plan {}, as train.py reads it beside accelerate.yaml.\n", plan_key(file.plan));
  text += python_model_settings(file.model);
  text += fmt::format("MAX_POSITIONS, BIASES = {}, {}\n", file.model.max_positions,
                      python_bool(file.model.linear_bias));
  text += fmt::format("SEQ_LEN, MICRO_BATCH, MICRO_BATCHES = {}, {}, {}\n", t.seq_len, file.plan.micro_batch,
                      microbatches(file.plan, t));
  const auto torch_name = [](Dtype d) {
    return d == Dtype::bf16 ? "bfloat16" : d == Dtype::fp16 ? "float16" : "float32";
  };
  text +=
      fmt::format("DTYPE, REDUCE_DTYPE = \"{}\", \"{}\"\n", torch_name(t.parameter), torch_name(t.reduction));
  text += "# FSDP recomputes by accelerate.yaml; under DeepSpeed the model does by itself.\n";
  return text + fmt::format("DEEPSPEED, RECOMPUTE = {}, {}\n", python_bool(deepspeed),
                            python_bool(deepspeed && file.plan.recompute.kind == RecomputeKind::full));
}

ExportContent accelerate_content(const PlanFile& file, const std::string& version, Engine engine) {
  const bool deepspeed = engine == Engine::deepspeed;
  ExportContent out;
  out.files.push_back({"accelerate.yaml", deepspeed ? engine_yaml(file, version) : fsdp_yaml(file, version)});
  if (deepspeed) out.files.push_back({"ds_config.json", deepspeed_config(file).dump(2) + "\n"});
  out.files.push_back({"settings.py", accelerate_settings(file, engine)});
  out.copied = {{"accelerate_train.py", "train.py"}, {"check_rope.py", "check_rope.py"}};
  out.environment = {{"PYTORCH_ALLOC_CONF", "expandable_segments:True"}};
  out.starter = fmt::format(
      "accelerate launch --config_file accelerate.yaml --machine_rank \"$NODE_RANK\" \\\n"
      "  --main_process_ip \"$MASTER_ADDR\" --main_process_port \"$MASTER_PORT\"");
  out.program = "train.py";
  out.needs =
      fmt::format("accelerate {}, torch and transformers 5{}", version, deepspeed ? ", deepspeed 0.19" : "");
  out.checker = "accelerate";
  out.notes.push_back(
      "weights and tokens are random: model() and batches() in train.py are yours, as are checkpoints");
  if (deepspeed)
    out.notes.push_back("accelerate.yaml gives the path of ds_config.json relative to this folder");
  return out;
}

ExportContent write_fsdp(const PlanFile& file, const std::string& version) {
  return accelerate_content(file, version, Engine::fsdp);
}
ExportContent write_engine(const PlanFile& file, const std::string& version) {
  return accelerate_content(file, version, Engine::deepspeed);
}

}  // namespace

ExportTarget accelerate_target() {
  return {.name = "accelerate",
          .title = "accelerate with FSDP2",
          .versions = {"1.15"},
          .package = "accelerate",
          .stack = "torchtitan-eager",
          .features = fsdp_features,
          .rules = fsdp_rules,
          .write = write_fsdp};
}

ExportTarget accelerate_deepspeed_target() {
  return {.name = "accelerate-deepspeed",
          .title = "accelerate with DeepSpeed",
          .versions = {"1.15"},
          .package = "accelerate",
          .stack = "deepspeed-zero",
          .features = engine_features,
          .rules = engine_rules,
          .write = write_engine};
}

}  // namespace sextant

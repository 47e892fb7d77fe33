#include <algorithm>

#include <fmt/format.h>

#include "core/base/words.hpp"
#include "tools/import/foreign_keys.hpp"
#include "tools/import/import_settings.hpp"

namespace sextant {

namespace {

const std::vector<std::string> kAccelerateNoEffect = {"compute_environment",
                                                      "debug",
                                                      "downcast_bf16",
                                                      "enable_cpu_affinity",
                                                      "machine_rank",
                                                      "main_*",
                                                      "num_machines",
                                                      "rdzv_*",
                                                      "same_network",
                                                      "tpu_*",
                                                      "use_cpu",
                                                      "gpu_ids",
                                                      "dynamo_config",
                                                      "fsdp_config.fsdp_auto_wrap_policy",
                                                      "fsdp_config.fsdp_backward_prefetch*",
                                                      "fsdp_config.fsdp_cpu_ram_efficient_loading",
                                                      "fsdp_config.fsdp_state_dict_type",
                                                      "fsdp_config.fsdp_sync_module_states",
                                                      "fsdp_config.fsdp_transformer_layer_cls_to_wrap",
                                                      "fsdp_config.fsdp_use_orig_params",
                                                      "fsdp_config.fsdp_forward_prefetch",
                                                      "deepspeed_config.zero3_*",
                                                      "deepspeed_config.deepspeed_hostfile",
                                                      "deepspeed_config.deepspeed_multinode_launcher",
                                                      "deepspeed_config.gradient_clipping",
                                                      "deepspeed_config.offload_*_nvme_path",
                                                      "megatron_lm_config.megatron_lm_gradient_clipping",
                                                      "fsdp_config.fsdp_offload_params",
                                                      "commands",
                                                      "command_file",
                                                      "parallelism_config.parallelism_config_*_strategy",
                                                      "tags"};

void read_fsdp(ForeignKeys& k, ImportedRun& run) {
  ParallelPlan& p = run.plan;
  const std::string at = "fsdp_config.fsdp_";
  const int version = k.count(at + "version").value_or(1);
  run.stack = version >= 2 ? "torchtitan-eager" : "fsdp1-eager";
  const std::string strategy = lower(k.text(at + "sharding_strategy").value_or("full_shard"));
  p.zero_stage =
      strategy == "full_shard" || strategy == "1" || strategy.starts_with("hybrid_shard") || strategy == "4"
          ? 3
      : strategy == "shard_grad_op" || strategy == "2" ? 2
                                                       : 0;
  run.shards_in_node = strategy.starts_with("hybrid_shard") || strategy == "4";
  if (const auto* reshard = k.value(at + "reshard_after_forward"); reshard && version >= 2) {
    const std::string word = lower(reshard->is_string() ? reshard->get<std::string>() : reshard->dump());
    p.zero_stage = word == "false" || word == "shard_grad_op" ? 2 : 3;
  }
  if (k.is(at + "offload_params")) {
    p.parameter_offload = true;
    p.optimizer_offload = 1.0;
  }
  if (k.is(at + "activation_checkpointing")) p.recompute.kind = RecomputeKind::full;
  const std::string mesh = "parallelism_config.parallelism_config_";
  p.tp = k.count(mesh + "tp_size").value_or(1);
  p.cp = k.count(mesh + "cp_size").value_or(1);
  p.sequence_parallel = p.tp > 1;
  const auto replicate = k.count(mesh + "dp_replicate_size"), shard = k.count(mesh + "dp_shard_size");
  run.state_copies = replicate.value_or(1);
  if (shard) run.dp = *shard * replicate.value_or(1);
  if (k.count(mesh + "sp_size").value_or(1) > 1) run.unread.push_back(mesh + "sp_size");
}

void read_accelerate_deepspeed(ForeignKeys& k, ImportedRun& run) {
  ParallelPlan& p = run.plan;
  const std::string at = "deepspeed_config.";
  run.stack = "deepspeed-zero";
  if (const auto file = k.text(at + "deepspeed_config_file"))
    k.wrong(at + "deepspeed_config_file", *file, "the settings here", "--from " + *file + " reads that file");
  p.zero_stage = k.count(at + "zero_stage", 0).value_or(2);
  if (p.zero_stage > 3) k.wrong(at + "zero_stage", "0, 1, 2 or 3");
  const auto host = [&](const char* key) { return lower(k.text(at + key).value_or("none")) != "none"; };
  if (host("offload_optimizer_device")) p.optimizer_offload = 1.0;
  p.parameter_offload = host("offload_param_device") && p.zero_stage == 3;
  p.overlap_grad_reduce = p.zero_stage == 3;
  run.accumulation = k.count(at + "gradient_accumulation_steps").value_or(1);
}

void read_accelerate_megatron(ForeignKeys& k, ImportedRun& run) {
  ParallelPlan& p = run.plan;
  const std::string at = "megatron_lm_config.megatron_lm_";
  run.stack = "megatron-core";
  p.tp = k.count(at + "tp_degree").value_or(1);
  p.pp = k.count(at + "pp_degree").value_or(1);
  p.cp = k.count(at + "context_parallel_size").value_or(1);
  run.accumulation = k.count(at + "num_micro_batches").value_or(1);
  p.sequence_parallel = k.is(at + "sequence_parallelism") && p.tp > 1;
  p.zero_stage = k.is(at + "use_distributed_optimizer") ? 1 : 0;
  p.overlap_grad_reduce = p.zero_stage > 0;
  const std::string granularity = k.text(at + "recompute_granularity").value_or("");
  if (k.is(at + "recompute_activations") || granularity == "selective")
    p.recompute.kind = RecomputeKind::selective;
  if (granularity == "full") p.recompute.kind = RecomputeKind::full;
  if (k.is(at + "optimizer_cpu_offload")) p.optimizer_offload = 1.0;
}

}  // namespace

bool is_accelerate(const nlohmann::json& s) {
  return s.is_object() && s.contains("distributed_type") &&
         (s.contains("num_processes") || s.contains("mixed_precision") || s.contains("compute_environment") ||
          s.contains("fsdp_config") || s.contains("deepspeed_config"));
}

ImportedRun import_accelerate(const nlohmann::json& settings, const ImportSource& source) {
  ForeignKeys k(settings, source.file, kAccelerateNoEffect);
  ImportedRun run;
  run.file = source.file;
  run.what = "an accelerate configuration";
  const std::string type = k.text("distributed_type").value_or("NO");
  run.gpus = k.count("num_processes");
  run.accumulation = 1;
  if (type == "FSDP")
    read_fsdp(k, run);
  else if (type == "DEEPSPEED")
    read_accelerate_deepspeed(k, run);
  else if (type == "MEGATRON_LM")
    read_accelerate_megatron(k, run);
  else if (type == "MULTI_GPU" || type == "NO")
    run.stack = "fsdp1-eager";
  else
    k.wrong("distributed_type", "FSDP, DEEPSPEED, MEGATRON_LM, MULTI_GPU or NO");
  const std::string precision = lower(k.text("mixed_precision").value_or("no"));
  const auto format =
      precision == "no" || precision == "false" ? std::optional(Dtype::fp32) : dtype_from_name(precision);
  if (!format) k.wrong("mixed_precision", "no, bf16, fp16 or fp8");
  run.formats.compute = *format;
  run.formats.parameter = *format == Dtype::fp8 ? Dtype::bf16 : *format;
  run.assumed.emplace_back(
      "micro-batches of 1, and gradients accumulated as stated here: the training program sets them (--plan "
      "...mbs2, --global-batch)");
  if (run.plan.recompute.kind == RecomputeKind::none) run.assumed.emplace_back("no recomputation");
  for (std::string& key : k.unread()) run.unread.push_back(std::move(key));
  return run;
}

}  // namespace sextant

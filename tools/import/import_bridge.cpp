// Megatron-Bridge's configuration holds Megatron-Core's own settings: they become Megatron-LM's options, which one reader knows.
#include <array>

#include <fmt/format.h>

#include "core/base/words.hpp"
#include "tools/import/foreign_keys.hpp"
#include "tools/import/import_megatron.hpp"
#include "tools/import/import_settings.hpp"

namespace sextant {

namespace {

struct BridgeKey {
  const char* path;
  const char* option;
};
// Values, and switches that are true.
constexpr std::array kBridgeValues = {
    BridgeKey{"model.num_layers", "--num-layers"},
    BridgeKey{"model.hidden_size", "--hidden-size"},
    BridgeKey{"model.ffn_hidden_size", "--ffn-hidden-size"},
    BridgeKey{"model.num_attention_heads", "--num-attention-heads"},
    BridgeKey{"model.num_query_groups", "--num-query-groups"},
    BridgeKey{"model.kv_channels", "--kv-channels"},
    BridgeKey{"model.vocab_size", "--vocab-size"},
    BridgeKey{"model.normalization", "--normalization"},
    BridgeKey{"model.layernorm_epsilon", "--norm-epsilon"},
    BridgeKey{"model.position_embedding_type", "--position-embedding-type"},
    BridgeKey{"model.rotary_base", "--rotary-base"},
    BridgeKey{"model.seq_length", "--seq-length"},
    BridgeKey{"dataset.sequence_length", "--seq-length"},
    BridgeKey{"dataset.seq_length", "--seq-length"},
    BridgeKey{"model.rope_scaling_factor", "--rope-scaling-factor"},
    BridgeKey{"model.tensor_model_parallel_size", "--tensor-model-parallel-size"},
    BridgeKey{"model.pipeline_model_parallel_size", "--pipeline-model-parallel-size"},
    BridgeKey{"model.virtual_pipeline_model_parallel_size", "--num-virtual-stages-per-pipeline-rank"},
    BridgeKey{"model.pipeline_model_parallel_layout", "--pipeline-model-parallel-layout"},
    BridgeKey{"model.num_layers_in_first_pipeline_stage", "--decoder-first-pipeline-num-layers"},
    BridgeKey{"model.num_layers_in_last_pipeline_stage", "--decoder-last-pipeline-num-layers"},
    BridgeKey{"model.context_parallel_size", "--context-parallel-size"},
    BridgeKey{"model.recompute_granularity", "--recompute-granularity"},
    BridgeKey{"model.recompute_method", "--recompute-method"},
    BridgeKey{"model.recompute_num_layers", "--recompute-num-layers"},
    BridgeKey{"train.micro_batch_size", "--micro-batch-size"},
    BridgeKey{"train.global_batch_size", "--global-batch-size"},
    BridgeKey{"ddp.bucket_size", "--ddp-bucket-size"},
    BridgeKey{"ddp.num_distributed_optimizer_instances", "--num-distributed-optimizer-instances"},
    BridgeKey{"ddp.data_parallel_sharding_strategy", "--data-parallel-sharding-strategy"},
    BridgeKey{"optimizer.optimizer_offload_fraction", "--optimizer-offload-fraction"},
    BridgeKey{"model.fp8", "--fp8-format"},
    BridgeKey{"mixed_precision.fp8", "--fp8-format"}};
constexpr std::array kBridgeSwitches = {
    BridgeKey{"model.gated_linear_unit", "--swiglu"},
    BridgeKey{"model.add_qkv_bias", "--add-qkv-bias"},
    BridgeKey{"model.qk_layernorm", "--qk-layernorm"},
    BridgeKey{"model.rope_scaling", "--use-rope-scaling"},
    BridgeKey{"model.sequence_parallel", "--sequence-parallel"},
    BridgeKey{"model.account_for_embedding_in_pipeline_split", "--account-for-embedding-in-pipeline-split"},
    BridgeKey{"model.account_for_loss_in_pipeline_split", "--account-for-loss-in-pipeline-split"},
    BridgeKey{"model.multi_latent_attention", "--multi-latent-attention"},
    BridgeKey{"ddp.use_distributed_optimizer", "--use-distributed-optimizer"},
    BridgeKey{"ddp.overlap_grad_reduce", "--overlap-grad-reduce"},
    BridgeKey{"ddp.overlap_param_gather", "--overlap-param-gather"},
    BridgeKey{"ddp.use_megatron_fsdp", "--use-megatron-fsdp"},
    BridgeKey{"dist.use_megatron_fsdp", "--use-megatron-fsdp"},
    BridgeKey{"dist.use_torch_fsdp2", "--use-torch-fsdp2"},
    BridgeKey{"dist.use_tp_pp_dp_mapping", "--use-tp-pp-dp-mapping"},
    BridgeKey{"comm_overlap.tp_comm_overlap", "--tp-comm-overlap"},
    BridgeKey{"model.tp_comm_overlap", "--tp-comm-overlap"},
    BridgeKey{"optimizer.optimizer_cpu_offload", "--optimizer-cpu-offload"}};

// "bf16_mixed", "bf16_with_fp8_delayed_scaling_mixed", or an object with bf16 and fp16.
void read_precision(ForeignKeys& k, CommandFlags& flags) {
  const nlohmann::json* precision = k.value("mixed_precision");
  const std::string name = precision && precision->is_string() ? lower(precision->get<std::string>()) : "";
  const bool object = precision && precision->is_object();
  const bool bf16 = name.find("bf16") != std::string::npos || (object && k.is("mixed_precision.bf16")) ||
                    k.is("model.bf16");
  const bool fp16 = !bf16 && (name.find("fp16") != std::string::npos ||
                              (object && k.is("mixed_precision.fp16")) || k.is("model.fp16"));
  if (bf16) flags.options["--bf16"] = {};
  if (fp16) flags.options["--fp16"] = {};
  if (name.find("fp8") != std::string::npos) flags.options["--fp8-format"] = {"hybrid"};
  const auto reduce = k.flag("ddp.grad_reduce_in_fp32");
  if (bf16 && reduce && !*reduce) flags.options["--grad-reduce-in-bf16"] = {};
  if (fp16 && reduce.value_or(false)) flags.options["--accumulate-allreduce-grads-in-fp32"] = {};
}

}  // namespace

bool is_bridge(const nlohmann::json& s) {
  return s.is_object() && s.contains("model") && s["model"].is_object() &&
         s["model"].contains("tensor_model_parallel_size") && !is_nemo(s);
}

ImportedRun import_bridge(const nlohmann::json& settings, const ImportSource& source) {
  ForeignKeys k(settings, source.file, {});
  if (k.count("model.num_moe_experts", 0).value_or(0) > 0)
    k.wrong("model.num_moe_experts", "null: sextant plans no mixtures of experts");
  CommandFlags flags;
  for (const BridgeKey& key : kBridgeValues)
    if (const auto value = k.text(key.path)) flags.options[key.option] = {*value};
  for (const BridgeKey& key : kBridgeSwitches)
    if (k.value(key.path) && k.is(key.path)) flags.options[key.option] = {};
  if (flags.has("--num-query-groups")) flags.options["--group-query-attention"] = {};
  if (!k.flag("model.add_bias_linear").value_or(true)) flags.options["--disable-bias-linear"] = {};
  if (!k.flag("model.share_embeddings_and_output_weights").value_or(true))
    flags.options["--untie-embeddings-and-output-weights"] = {};
  if (k.is("model.cpu_offloading"))
    if (const auto layers = k.text("model.cpu_offloading_num_layers"))
      flags.options["--cpu-offloading-num-layers"] = {*layers};
  if (const nlohmann::json* modules = k.value("model.recompute_modules"); modules && modules->is_array())
    for (const auto& module : *modules)
      if (module.is_string()) flags.options["--recompute-modules"].push_back(module);
  read_precision(k, flags);
  ImportedRun run = import_megatron(flags, source.file);
  run.what = "a Megatron-Bridge configuration";
  run.stack = "nemo-dgxc";
  return run;
}

}  // namespace sextant

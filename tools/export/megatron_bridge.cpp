// Export to Megatron-Bridge: a recipe, which is a Python function that returns its ConfigContainer, and the lines that start
// pretrain() with it. Field names and what excludes what: megatron-bridge 0.6.2, megatron/bridge/training/config.py
// (ConfigContainer.validate), models/gpt_provider.py, training/mixed_precision.py, on megatron-core 0.19.2.
#include <algorithm>

#include <fmt/format.h>

#include "core/base/decimal.hpp"
#include "core/plan/pipeline_order.hpp"
#include "planner/explain/framework_setting.hpp"
#include "tools/export/export_target.hpp"
#include "tools/export/megatron_lm.hpp"
#include "tools/export/python_text.hpp"

namespace sextant {
namespace {

TargetFeatures bridge_features(const std::string& version, const StackCapabilities& can) {
  TargetFeatures t = megatron_features(version, can);
  std::erase_if(t.formats, [](const TargetFormats& f) { return f.compute == Dtype::fp32; });
  return t;
}

// Keyword arguments of one call, a line each.
class Keywords {
 public:
  Keywords& set(const std::string& name, const std::string& value) {
    text_ += fmt::format("        {}={},\n", name, value);
    return *this;
  }
  Keywords& set(const std::string& name, std::int64_t value) { return set(name, std::to_string(value)); }
  Keywords& set(const std::string& name, int value) { return set(name, std::to_string(value)); }
  Keywords& yes(const std::string& name, bool value) { return set(name, python_bool(value)); }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

std::string quoted(const std::string& s) { return '"' + s + '"'; }

std::string torch_format(Dtype d) {
  return d == Dtype::fp8    ? "torch.uint8"
         : d == Dtype::bf16 ? "torch.bfloat16"
         : d == Dtype::fp16 ? "torch.float16"
                            : "torch.float32";
}

std::string shape_keywords(const PlanFile& file) {
  const ModelSpec& m = file.model;
  Keywords k;
  k.set("num_layers", m.n_layers).set("hidden_size", m.hidden).set("ffn_hidden_size", m.ffn_hidden);
  k.set("num_attention_heads", m.n_heads)
      .set("num_query_groups", m.n_kv_heads)
      .set("kv_channels", m.head_dim);
  k.set("seq_length", file.training.seq_len).set("vocab_size", m.vocab_size).yes("should_pad_vocab", true);
  k.set("make_vocab_size_divisible_by", file.stack.rules.vocab_multiple);
  k.set("normalization", m.norm == NormKind::rms ? "\"RMSNorm\"" : "\"LayerNorm\"");
  k.set("layernorm_epsilon", decimal(m.norm_eps)).yes("gated_linear_unit", m.gated_mlp);
  k.set("activation_func", m.gated_mlp ? "torch.nn.functional.silu" : "torch.nn.functional.gelu");
  k.yes("add_bias_linear", m.linear_bias).yes("add_qkv_bias", m.qkv_bias && !m.linear_bias);
  k.yes("share_embeddings_and_output_weights", m.tied_embeddings);
  if (m.position == PositionKind::rope) {
    k.set("position_embedding_type", "\"rope\"");
    k.set("rotary_base", static_cast<std::int64_t>(m.rope_theta));
    if (m.rope_scaling)
      k.yes("rope_scaling", true).set("rope_scaling_factor", decimal(m.rope_scaling->factor));
  } else {
    k.set("position_embedding_type", "\"learned_absolute\"");
  }
  k.set("attention_dropout", "0.0").set("hidden_dropout", "0.0");
  return k.text();
}

std::string layout_keywords(const PlanFile& file) {
  const ParallelPlan& p = file.plan;
  Keywords k;
  k.set("tensor_model_parallel_size", p.tp).yes("sequence_parallel", p.tp > 1 && p.sequence_parallel);
  k.yes("tp_comm_overlap", p.tp > 1 && p.overlap_tp);
  k.set("context_parallel_size", p.cp);
  if (p.cp > 1) k.set("cp_comm_type", "\"p2p\"");
  k.set("pipeline_model_parallel_size", p.pp);
  if (p.pp > 1 && p.vp > 1) {
    k.set("virtual_pipeline_model_parallel_size", p.vp);
    k.set("microbatch_group_size_per_vp_stage", interleaved_group(p.pp, microbatches(p, file.training)));
    k.yes("overlap_p2p_comm", true).yes("batch_p2p_comm", false);
  }
  if (p.pp > 1 && !equal_chunks(p, file.model.n_layers))
    k.set("pipeline_model_parallel_layout", quoted(pipeline_layout(layer_ranges(p, file.model.n_layers))));
  if (p.recompute.kind == RecomputeKind::selective)
    k.set("recompute_granularity", "\"selective\"").set("recompute_modules", "[\"core_attn\"]");
  if (p.recompute.kind == RecomputeKind::full) {
    k.set("recompute_granularity", "\"full\"");
    k.set("recompute_method", p.recompute.layers < 0 ? "\"uniform\"" : "\"block\"");
    k.set("recompute_num_layers", p.recompute.layers < 0 ? 1 : p.recompute.layers);
  }
  if (p.activation_offload > 0)
    k.yes("cpu_offloading", true).set("cpu_offloading_num_layers", p.activation_offload);
  if (megatron_fsdp(p)) k.yes("gradient_accumulation_fusion", false);
  return k.text();
}

std::string state_text(const PlanFile& file) {
  const ParallelPlan& p = file.plan;
  const TrainingSpec& t = file.training;
  const bool gathers = megatron_sharded(p) && p.overlap_grad_reduce && p.overlap_param_gather;
  Keywords ddp, optimizer, dist;
  ddp.yes("use_distributed_optimizer", megatron_sharded(p));
  ddp.yes("grad_reduce_in_fp32", t.gradient == Dtype::fp32).yes("overlap_grad_reduce", p.overlap_grad_reduce);
  ddp.yes("overlap_param_gather", gathers);
  if (p.bucket_elements > 0) ddp.set("bucket_size", p.bucket_elements);
  if (megatron_sharded(p) && p.shards() < p.replicas())
    ddp.set("num_distributed_optimizer_instances", p.replicas() / p.shards());
  if (megatron_fsdp(p)) {
    ddp.yes("use_megatron_fsdp", true);
    ddp.set("data_parallel_sharding_strategy",
            p.zero_stage == 2 ? "\"optim_grads\"" : "\"optim_grads_params\"");
    dist.yes("use_megatron_fsdp", true);
  }
  dist.yes("use_tp_pp_dp_mapping", !same_order(p, kMegatronOrder));
  optimizer.set("optimizer", "\"adam\"").set("lr", "3e-4").set("min_lr", "3e-5").set("weight_decay", "0.1");
  optimizer.set("adam_beta2", "0.95").yes("use_distributed_optimizer", megatron_sharded(p));
  optimizer.yes("overlap_param_gather", gathers);
  if (p.optimizer_offload > 0)
    optimizer.yes("optimizer_cpu_offload", true)
        .set("optimizer_offload_fraction", decimal(p.optimizer_offload));
  const bool aware = p.optimizer_offload > 0 || t.optimizer_state != Dtype::fp32;
  if (aware) optimizer.yes("use_precision_aware_optimizer", true);
  if (t.optimizer_state != Dtype::fp32)
    optimizer.set("exp_avg_dtype", torch_format(t.optimizer_state))
        .set("exp_avg_sq_dtype", torch_format(t.optimizer_state));
  return fmt::format(
      "    ddp = DistributedDataParallelConfig(\n{}    )\n    optimizer = OptimizerConfig(\n{}    )\n"
      "    dist = DistributedInitConfig(\n{}    )\n",
      ddp.text(), optimizer.text(), dist.text());
}

std::string precision_text(const TrainingSpec& t) {
  Keywords k;
  k.yes(t.parameter == Dtype::fp16 ? "fp16" : "bf16", true);
  k.set("params_dtype", torch_format(t.parameter)).set("pipeline_dtype", torch_format(t.parameter));
  k.yes("grad_reduce_in_fp32", t.gradient == Dtype::fp32);
  if (t.compute == Dtype::fp8)
    k.set("fp8", "\"hybrid\"").set("fp8_recipe", "\"delayed\"").set("fp8_amax_history_len", 1024);
  return fmt::format("    precision = MixedPrecisionConfig(\n{}    )\n", k.text());
}

constexpr const char* kImports = R"(import torch
from megatron.bridge.models import GPTModelProvider
from megatron.bridge.training.config import (
    CheckpointConfig,
    ConfigContainer,
    DistributedDataParallelConfig,
    DistributedInitConfig,
    LoggerConfig,
    MockGPTDatasetConfig,
    OptimizerConfig,
    RNGConfig,
    SchedulerConfig,
    TokenizerConfig,
    TrainingConfig,
    ValidationConfig,
)
from megatron.bridge.training.mixed_precision import MixedPrecisionConfig
)";

ExportContent write_bridge(const PlanFile& file, const std::string& version) {
  const ParallelPlan& p = file.plan;
  ExportContent out;
  std::string text = fmt::format(
      "\"\"\"Megatron-Bridge {}: the plan {}.\n\nplan() is the recipe; the lines at the end start "
      "it.\n\"\"\"\n{}\n\n"
      "def plan():\n    model = GPTModelProvider(\n{}{}    )\n{}{}",
      version, plan_key(p), kImports, shape_keywords(file), layout_keywords(file),
      precision_text(file.training), state_text(file));
  text +=
      fmt::format("    train = TrainingConfig(train_iters=100, micro_batch_size={}, global_batch_size={})\n",
                  p.micro_batch, file.training.global_batch);
  text += fmt::format(
      R"(    # Yours: data, tokenizer, learning rate and checkpoints. Mock data measures the step.
    return ConfigContainer(
        model=model, train=train, optimizer=optimizer, ddp=ddp, dist=dist, mixed_precision=precision,
        scheduler=SchedulerConfig(lr_decay_style="cosine", lr_warmup_iters=10),
        dataset=MockGPTDatasetConfig(
            seq_length={}, random_seed=1234, reset_attention_mask=False, reset_position_ids=False, eod_mask_loss=False,
            num_dataset_builder_threads=1, data_sharding=True, dataloader_type="single"),
        tokenizer=TokenizerConfig(tokenizer_type="NullTokenizer", vocab_size={}),
        checkpoint=CheckpointConfig(ckpt_format="{}"),
        logger=LoggerConfig(log_interval=1), rng=RNGConfig(seed=1234),
        validation=ValidationConfig(eval_iters=0),
    )


if __name__ == "__main__":
    from megatron.bridge.training.gpt_step import forward_step
    from megatron.bridge.training.pretrain import pretrain

    pretrain(config=plan(), forward_step_func=forward_step)
)",
      file.training.seq_len, file.model.vocab_size - 1, megatron_fsdp(p) ? "fsdp_dtensor" : "torch_dist");
  out.files.push_back({"sextant_recipe.py", text});
  out.environment = megatron_environment(file);
  out.program = "sextant_recipe.py";
  out.needs = fmt::format(
      "megatron-bridge {} with Transformer Engine, as in NVIDIA's NeMo container (pip install "
      "megatron-bridge)",
      version);
  out.checker = "megatron_bridge";
  out.notes.push_back(
      "an override of Bridge's own recipes takes the same names: model.tensor_model_parallel_size=...");
  return out;
}

}  // namespace

ExportTarget megatron_bridge_target() {
  return {.name = "megatron-bridge",
          .title = "Megatron-Bridge",
          .versions = {"0.6"},
          .package = "megatron-bridge",
          .stack = "megatron-core",
          .features = bridge_features,
          .rules = megatron_rules,
          .write = write_bridge};
}

}  // namespace sextant

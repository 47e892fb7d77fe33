// Export to Megatron-LM's pretrain_gpt.py: its command line, as bash arrays. Option names and what excludes what:
// NVIDIA/Megatron-LM d98e8a6, megatron/training/arguments.py; the same in the wheel megatron-core 0.19.2.
#include "tools/export/megatron_lm.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/decimal.hpp"
#include "core/plan/pipeline_order.hpp"
#include "planner/explain/framework_setting.hpp"
#include "tools/export/bash_text.hpp"
#include "tools/export/export_target.hpp"

namespace sextant {
namespace {

std::vector<TargetFormats> formats() {
  std::vector<TargetFormats> all;
  for (const Dtype state : {Dtype::fp32, Dtype::bf16, Dtype::fp16, Dtype::fp8})
    for (const Dtype sums : {Dtype::fp32, Dtype::bf16}) {
      all.push_back({Dtype::bf16, Dtype::bf16, sums, sums, state});
      all.push_back({Dtype::fp8, Dtype::bf16, sums, sums, state});
    }
  for (const Dtype sums : {Dtype::fp32, Dtype::fp16})
    all.push_back({Dtype::fp16, Dtype::fp16, sums, sums, Dtype::fp32});
  all.push_back({Dtype::fp32, Dtype::fp32, Dtype::fp32, Dtype::fp32, Dtype::fp32});
  return all;
}

}  // namespace

TargetFeatures megatron_features(const std::string&, const StackCapabilities& can) {
  TargetFeatures t;
  t.can = can;
  t.axis_orders = {kMegatronOrder, kMegatronPipelineInside};
  t.formats = formats();
  t.learned_positions = t.layer_norm = t.plain_mlp = t.every_bias = t.qkv_bias = t.own_head_dim = true;
  t.rope_scaling = {"llama3"};
  return t;
}

std::vector<Inexpressible> megatron_rules(const PlanFile& file, const std::string&) {
  std::vector<Inexpressible> found;
  const ParallelPlan& p = file.plan;
  const TrainingSpec& t = file.training;
  const PlanChange sharded = set_field("zero_stage 1", [](ParallelPlan& q) { q.zero_stage = 1; });
  if (t.optimizer_state != Dtype::fp32 && !megatron_sharded(p))
    found.push_back(
        {"training.optimizer_state",
         std::string(name(t.optimizer_state)),
         "moments in another format than fp32 need the distributed optimizer "
         "(--use-precision-aware-optimizer)",
         {sharded, {"optimizer_state fp32", [](PlanFile& f) { f.training.optimizer_state = Dtype::fp32; }}}});
  if (p.optimizer_offload > 0 && !megatron_sharded(p))
    found.push_back(
        {"optimizer_offload",
         decimal(p.optimizer_offload),
         "--optimizer-cpu-offload needs the distributed optimizer",
         {sharded, set_field("optimizer_offload 0", [](ParallelPlan& q) { q.optimizer_offload = 0; })}});
  if (megatron_sharded(p) && p.replicas() > 1 && p.overlap_param_gather && !p.overlap_grad_reduce)
    found.push_back(
        {"overlap_param_gather",
         "true",
         "--overlap-param-gather goes only with --overlap-grad-reduce",
         {set_field("overlap_grad_reduce true", [](ParallelPlan& q) { q.overlap_grad_reduce = true; }),
          set_field("overlap_param_gather false", [](ParallelPlan& q) { q.overlap_param_gather = false; })}});
  if (p.tp > 1 && p.overlap_tp && !p.sequence_parallel)
    found.push_back(
        {"overlap_tp",
         "true",
         "--tp-comm-overlap goes only with --sequence-parallel",
         {set_field("sequence_parallel true", [](ParallelPlan& q) { q.sequence_parallel = true; }),
          set_field("overlap_tp false", [](ParallelPlan& q) { q.overlap_tp = false; })}});
  const int layers = file.model.n_layers;
  if (p.activation_offload >= layers && p.pp == 1)
    found.push_back({"activation_offload",
                     fmt::format("{}", p.activation_offload),
                     fmt::format("--cpu-offloading-num-layers must be below the {} layers", layers),
                     {set_field(fmt::format("activation_offload {}", layers - 1),
                                [layers](ParallelPlan& q) { q.activation_offload = layers - 1; })}});
  if (const auto& scaling = file.model.rope_scaling; scaling && scaling->type == "llama3") {
    RopeScaling fixed;
    fixed.factor = scaling->factor;
    if (!(*scaling == fixed))
      found.push_back({"model.rope_scaling",
                       "llama3",
                       "--use-rope-scaling fixes its other constants at 1, 4 and 8192",
                       {}});
  }
  if (p.cp > 1 && t.seq_len % (2 * p.cp) != 0)
    found.push_back({"cp", fmt::format("{}", p.cp), "the sequence must be a multiple of 2 * cp", {}});
  if (file.model.position == PositionKind::rope &&
      file.model.rope_theta != static_cast<int>(file.model.rope_theta))
    found.push_back(
        {"model.rope_theta", decimal(file.model.rope_theta), "--rotary-base takes whole numbers", {}});
  return found;
}

namespace {

BashOptions model_options(const PlanFile& file) {
  const ModelSpec& m = file.model;
  BashOptions o("MODEL_ARGS");
  o.option("--num-layers", m.n_layers)
      .option("--hidden-size", m.hidden)
      .option("--ffn-hidden-size", m.ffn_hidden);
  o.option("--num-attention-heads", m.n_heads).option("--kv-channels", m.head_dim);
  if (m.n_kv_heads != m.n_heads) o.flag("--group-query-attention").option("--num-query-groups", m.n_kv_heads);
  o.option("--seq-length", file.training.seq_len);
  o.option("--max-position-embeddings", std::max(m.max_positions, file.training.seq_len));
  if (m.position == PositionKind::rope) {
    o.option("--position-embedding-type", "rope")
        .option("--rotary-base", static_cast<std::int64_t>(m.rope_theta));
    if (m.rope_scaling)
      o.flag("--use-rope-scaling").option("--rope-scaling-factor", decimal(m.rope_scaling->factor));
  } else {
    o.option("--position-embedding-type", "learned_absolute");
  }
  o.flag_if(m.gated_mlp, "--swiglu");
  o.option("--normalization", m.norm == NormKind::rms ? "RMSNorm" : "LayerNorm")
      .option("--norm-epsilon", decimal(m.norm_eps));
  if (!m.linear_bias) o.flag("--disable-bias-linear").flag_if(m.qkv_bias, "--add-qkv-bias");
  o.flag_if(!m.tied_embeddings, "--untie-embeddings-and-output-weights");
  o.option("--make-vocab-size-divisible-by", file.stack.rules.vocab_multiple);
  o.option("--attention-dropout", "0.0").option("--hidden-dropout", "0.0");
  return o;
}

void pipeline_options(BashOptions& o, const PlanFile& file) {
  const ParallelPlan& p = file.plan;
  o.option("--pipeline-model-parallel-size", p.pp);
  if (p.pp == 1) return;
  if (!equal_chunks(p, file.model.n_layers))
    o.option("--pipeline-model-parallel-layout", pipeline_layout(layer_ranges(p, file.model.n_layers)));
  else if (p.vp > 1)
    o.option("--num-virtual-stages-per-pipeline-rank", p.vp);
  if (p.vp > 1)
    o.option("--microbatch-group-size-per-virtual-pipeline-stage",
             interleaved_group(p.pp, microbatches(p, file.training)));
}

void state_options(BashOptions& o, const PlanFile& file) {
  const ParallelPlan& p = file.plan;
  if (megatron_fsdp(p)) {
    o.flag("--use-megatron-fsdp");
    o.option("--data-parallel-sharding-strategy", p.zero_stage == 2 ? "optim_grads" : "optim_grads_params");
    o.option("--ckpt-format", "fsdp_dtensor");
  }
  o.flag_if(megatron_sharded(p), "--use-distributed-optimizer");
  if (megatron_sharded(p) && p.shards() < p.replicas())
    o.option("--num-distributed-optimizer-instances", p.replicas() / p.shards());
  o.flag_if(p.overlap_grad_reduce, "--overlap-grad-reduce");
  o.flag_if(megatron_sharded(p) && p.overlap_grad_reduce && p.overlap_param_gather, "--overlap-param-gather");
  if (p.bucket_elements > 0) o.option("--ddp-bucket-size", p.bucket_elements);
  if (p.optimizer_offload > 0)
    o.flag("--optimizer-cpu-offload").option("--optimizer-offload-fraction", decimal(p.optimizer_offload));
  const Dtype state = file.training.optimizer_state;
  o.flag_if(p.optimizer_offload > 0 || state != Dtype::fp32, "--use-precision-aware-optimizer");
  if (state != Dtype::fp32)
    o.option("--exp-avg-dtype", std::string(name(state)))
        .option("--exp-avg-sq-dtype", std::string(name(state)));
}

void recompute_options(BashOptions& o, const ParallelPlan& p) {
  if (p.recompute.kind == RecomputeKind::selective)
    o.option("--recompute-granularity", "selective").option("--recompute-modules", "core_attn");
  if (p.recompute.kind == RecomputeKind::full) {
    o.option("--recompute-granularity", "full");
    o.option("--recompute-method", p.recompute.layers < 0 ? "uniform" : "block");
    o.option("--recompute-num-layers", p.recompute.layers < 0 ? 1 : p.recompute.layers);
  }
  if (p.activation_offload > 0) o.option("--cpu-offloading-num-layers", p.activation_offload);
}

BashOptions parallel_options(const PlanFile& file) {
  const ParallelPlan& p = file.plan;
  BashOptions o("PARALLEL_ARGS");
  o.option("--tensor-model-parallel-size", p.tp);
  o.flag_if(p.tp > 1 && p.sequence_parallel, "--sequence-parallel");
  o.flag_if(p.tp > 1 && p.overlap_tp, "--tp-comm-overlap");
  o.option("--context-parallel-size", p.cp);
  if (p.cp > 1) o.option("--cp-comm-type", "p2p");
  pipeline_options(o, file);
  o.flag_if(!same_order(p, kMegatronOrder), "--use-tp-pp-dp-mapping");
  state_options(o, file);
  recompute_options(o, p);
  return o;
}

BashOptions training_options(const PlanFile& file) {
  const TrainingSpec& t = file.training;
  BashOptions o("TRAINING_ARGS");
  o.option("--micro-batch-size", file.plan.micro_batch).option("--global-batch-size", t.global_batch);
  o.flag_if(t.parameter == Dtype::bf16, "--bf16").flag_if(t.parameter == Dtype::fp16, "--fp16");
  o.flag_if(t.gradient == Dtype::bf16, "--grad-reduce-in-bf16");
  o.flag_if(t.gradient == Dtype::fp32 && t.parameter != Dtype::fp32, "--accumulate-allreduce-grads-in-fp32");
  if (t.compute == Dtype::fp8) o.option("--fp8-format", "hybrid").option("--fp8-recipe", "delayed");
  return o;
}

}  // namespace

// With tp or cp, GPUs before Blackwell need one hardware queue, so that collectives start before the GEMMs that they run
// beside; FSDP needs more than one.
std::vector<std::pair<std::string, std::string>> megatron_environment(const PlanFile& file) {
  const ParallelPlan& p = file.plan;
  if (megatron_fsdp(p)) return {{"CUDA_DEVICE_MAX_CONNECTIONS", "8"}};
  const std::string& g = file.cluster.device.generation;
  const bool before_blackwell = g == "volta" || g == "ampere" || g == "hopper";
  if (before_blackwell && (p.tp > 1 || p.cp > 1)) return {{"CUDA_DEVICE_MAX_CONNECTIONS", "1"}};
  return {};
}

namespace {

ExportContent write_megatron(const PlanFile& file, const std::string& version) {
  ExportContent out;
  std::string text = fmt::format(
      "# Megatron-LM {} arguments of the plan {}.\n# Sourced by launch.sh; the option names are those of "
      "megatron/training/arguments.py.\n",
      version, plan_key(file.plan));
  text += model_options(file).text() + parallel_options(file).text() + training_options(file).text();
  BashOptions own("DATA_AND_SCHEDULE_ARGS");
  own.flag("--mock-data")
      .option("--tokenizer-type", "NullTokenizer")
      .option("--vocab-size", file.model.vocab_size);
  own.option("--train-iters", 100)
      .option("--lr", "3e-4")
      .option("--min-lr", "3e-5")
      .option("--lr-decay-style", "cosine");
  own.option("--eval-iters", 0).option("--log-interval", 1).flag("--log-throughput");
  text +=
      "# Yours: data, tokenizer, learning rate and checkpoints. Mock data measures the step.\n" + own.text();
  text +=
      "MEGATRON_ARGS=(\n  \"${MODEL_ARGS[@]}\" \"${PARALLEL_ARGS[@]}\" \"${TRAINING_ARGS[@]}\"\n"
      "  \"${DATA_AND_SCHEDULE_ARGS[@]}\"\n)\n";
  out.files.push_back({"arguments.sh", text});
  out.environment = megatron_environment(file);
  out.setup = {": \"${MEGATRON_LM:?set MEGATRON_LM to a checkout of NVIDIA/Megatron-LM}\"",
               "source ./arguments.sh"};
  out.program = "\"$MEGATRON_LM/pretrain_gpt.py\" \"${MEGATRON_ARGS[@]}\"";
  out.needs =
      fmt::format("a checkout of NVIDIA/Megatron-LM (core {} or its head) with Transformer Engine", version);
  out.trial = fmt::format(
      "WORLD_SIZE={} RANK=0 LOCAL_RANK=0 MASTER_ADDR=localhost "
      "MASTER_PORT=29500 python \"$MEGATRON_LM/pretrain_gpt.py\" \"${{MEGATRON_ARGS[@]}}\" "
      "--fake-process-group "
      "--train-iters 3",
      file.plan.world());
  out.trial_needs = "one GPU; collectives are faked, and what NCCL holds is not counted";
  out.checker = "megatron_lm";
  if (megatron_fsdp(file.plan) && (file.plan.tp > 1 || file.plan.cp > 1))
    out.notes.push_back(
        "Megatron-FSDP beside TP or CP: CUDA_DEVICE_MAX_CONNECTIONS cannot be 1, so collectives of TP may "
        "start late");
  return out;
}

}  // namespace

ExportTarget megatron_lm_target() {
  return {.name = "megatron-lm",
          .title = "Megatron-LM",
          .versions = {"0.19", "head"},
          .package = "megatron-core",
          .stack = "megatron-core",
          .features = megatron_features,
          .rules = megatron_rules,
          .write = write_megatron};
}

}  // namespace sextant

// Export to nanotron: the YAML file of run_train.py. Field names and what excludes what: huggingface/nanotron 2411b02, which calls
// itself 0.4: config/config.py, config/parallelism_config.py, config/models_config.py, models/base.py (stages), trainer.py.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "core/plan/pipeline_order.hpp"
#include "tools/export/export_target.hpp"

namespace sextant {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;
constexpr int kDefaultBucket_MiB = 25;

TargetFeatures nanotron_features(const std::string&, const StackCapabilities& can) {
  TargetFeatures t;
  t.can = can;
  t.can.uneven_stages = UnevenStages::block_compute_costs;  // its file has no place for another cut
  t.without_grad_overlap = false;
  t.formats = {{Dtype::bf16, Dtype::bf16, Dtype::fp32, Dtype::fp32, Dtype::fp32}};
  return t;
}

std::vector<Inexpressible> nanotron_rules(const PlanFile& file, const std::string&) {
  std::vector<Inexpressible> found;
  const ParallelPlan& p = file.plan;
  if (p.pp > 1 && p.schedule == PipelineSchedule::one_f_one_b && microbatches(p, file.training) < p.pp - 1)
    found.push_back(
        {"schedule",
         "1f1b",
         fmt::format("it needs {} micro-batches or more", p.pp - 1),
         {set_field("schedule gpipe", [](ParallelPlan& q) { q.schedule = PipelineSchedule::gpipe; })}});
  if (p.tp > 1 && p.overlap_tp && !p.sequence_parallel)
    found.push_back(
        {"overlap_tp",
         "true",
         "tp_linear_async_communication goes with tp_mode REDUCE_SCATTER",
         {set_field("sequence_parallel true", [](ParallelPlan& q) { q.sequence_parallel = true; }),
          set_field("overlap_tp false", [](ParallelPlan& q) { q.overlap_tp = false; })}});
  return found;
}

// DDP counts in MiB of 16-bit gradients, whole ones.
int bucket_MiB(const ParallelPlan& p) {
  if (p.bucket_elements == 0) return kDefaultBucket_MiB;
  return std::max(1, static_cast<int>(std::lround(2.0 * static_cast<double>(p.bucket_elements) / kMiB)));
}

std::string yaml_of_model(const PlanFile& file) {
  const ModelSpec& m = file.model;
  return fmt::format(R"(model:
  ddp_bucket_cap_mb: {}
  dtype: bfloat16
  init_method:
    std: 0.02
  make_vocab_size_divisible_by: 1
  model_config:
    is_llama_config: true
    hidden_act: silu
    hidden_size: {}
    intermediate_size: {}
    num_hidden_layers: {}
    num_attention_heads: {}
    num_key_value_heads: {}
    vocab_size: {}
    max_position_embeddings: {}
    rms_norm_eps: {:.8f}
    rope_theta: {:.1f}
    rope_interleaved: false
    tie_word_embeddings: {}
)",
                     bucket_MiB(file.plan), m.hidden, m.ffn_hidden, m.n_layers, m.n_heads, m.n_kv_heads,
                     m.vocab_size, std::max(m.max_positions, file.training.seq_len), m.norm_eps, m.rope_theta,
                     m.tied_embeddings);
}

std::string yaml_of_parallelism(const ParallelPlan& p) {
  return fmt::format(R"(parallelism:
  dp: {}
  pp: {}
  tp: {}
  context_parallel_size: 1
  expert_parallel_size: 1
  pp_engine: {}
  tp_mode: {}
  tp_linear_async_communication: {}
  recompute_layer: {}
)",
                     p.dp, p.pp, p.tp, p.schedule == PipelineSchedule::gpipe ? "afab" : "1f1b",
                     p.tp > 1 && p.sequence_parallel ? "REDUCE_SCATTER" : "ALL_REDUCE",
                     p.tp > 1 && p.overlap_tp, p.recompute.kind == RecomputeKind::full);
}

std::string yaml_of_training(const PlanFile& file) {
  return fmt::format(R"(tokens:
  sequence_length: {}
  micro_batch_size: {}
  batch_accumulation_per_replica: {}
  train_steps: 100
optimizer:
  zero_stage: {}
  accumulate_grad_in_fp32: true
  clip_grad: 1.0
  weight_decay: 0.1
  optimizer_factory:
    name: adamW
    adam_beta1: 0.9
    adam_beta2: 0.95
    adam_eps: 1.0e-08
    torch_adam_is_fused: true
  learning_rate_scheduler:
    learning_rate: 0.0003
    lr_warmup_steps: 10
    lr_warmup_style: linear
    lr_decay_style: cosine
    min_decay_lr: 0.00003
)",
                     file.training.seq_len, file.plan.micro_batch, microbatches(file.plan, file.training),
                     file.plan.zero_stage);
}

constexpr const char* kOwn =
    R"(# Yours: data, tokenizer and checkpoints. Without a dataset random tokens measure the step.
general:
  project: sextant
  run: plan_%date_%jobid
  seed: 42
data_stages:
- name: Stage
  start_training_step: 1
  data:
    dataset: null
    num_loading_workers: 1
    seed: 42
tokenizer: null
checkpoints:
  checkpoints_path: checkpoints
  checkpoint_interval: 1000
  save_final_state: false
logging:
  iteration_step_info_interval: 1
  log_level: info
  log_level_replica: info
)";

ExportContent write_nanotron(const PlanFile& file, const std::string& version) {
  const ParallelPlan& p = file.plan;
  ExportContent out;
  std::string text = fmt::format("# nanotron {}: the plan {}.\n# run_train.py --config-file nanotron.yaml\n",
                                 version, plan_key(p));
  text += yaml_of_model(file) + yaml_of_parallelism(p) + yaml_of_training(file) + kOwn;
  out.files.push_back({"nanotron.yaml", text});
  out.environment = {{"CUDA_DEVICE_MAX_CONNECTIONS", "1"}};
  out.setup = {": \"${NANOTRON:?set NANOTRON to a checkout of huggingface/nanotron}\""};
  out.program = "\"$NANOTRON/run_train.py\" --config-file nanotron.yaml";
  out.needs =
      "a checkout of huggingface/nanotron at 2411b02 or later, installed, with flash-attn (the wheel 0.4 of "
      "PyPI is of 2024 and has other fields)";
  out.checker = "nanotron";
  out.notes.push_back("nanotron has no trial without the ranks themselves; check.py reads the file only");
  if (p.bucket_elements > 0)
    out.notes.push_back(fmt::format("DDP's buckets are whole MiB: {} for {} elements of 16 bits",
                                    bucket_MiB(p), p.bucket_elements));
  return out;
}

}  // namespace

ExportTarget nanotron_target() {
  return {.name = "nanotron",
          .title = "nanotron",
          .versions = {"0.4"},
          .package = "nanotron",
          .stack = "nanotron",
          .features = nanotron_features,
          .rules = nanotron_rules,
          .write = write_nanotron};
}

}  // namespace sextant

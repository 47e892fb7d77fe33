// Export to Colossal-AI: the arguments of its booster's plugin and a script that trains transformers' LLaMA with it. Two targets:
// HybridParallelPlugin (tp, pp, sp, ZeRO 0 to 2) and GeminiPlugin (chunks, ZeRO 3). Names and what excludes what: the package 0.5.0,
// booster/plugin/hybrid_parallel_plugin.py, booster/plugin/gemini_plugin.py, pipeline/stage_manager.py, pipeline/schedule,
// shardformer/shard/grad_ckpt_config.py, shardformer/modeling/llama.py, shardformer/policies/llama.py, zero/low_level.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/decimal.hpp"
#include "tools/export/export_target.hpp"
#include "tools/export/megatron_lm.hpp"
#include "tools/export/python_text.hpp"

namespace sextant {
namespace {

constexpr std::int64_t kMi = 1 << 20;  // zero_bucket_size_in_m counts elements by it, ddp_bucket_cap_mb bytes
constexpr int kZeroBucket = 12, kDdpBucket = 25;  // the plugin's own

bool reduces(const ParallelPlan& p) { return p.replicas() > 1; }
bool by_ddp(const ParallelPlan& p) { return p.zero_stage == 0 && p.pp == 1; }
std::int64_t bytes_of(Dtype d) { return d == Dtype::fp32 ? 4 : 2; }

TargetFeatures plugin_features(const StackCapabilities& can) {
  TargetFeatures t;
  t.can = can;
  t.can.uneven_stages = UnevenStages::per_stage;  // num_layers_per_stage of the plugin
  for (const Dtype low : {Dtype::bf16, Dtype::fp16}) t.formats.push_back({low, low, low, low, Dtype::fp32});
  t.formats.push_back({Dtype::fp8, Dtype::bf16, Dtype::bf16, Dtype::bf16, Dtype::fp32});
  t.every_bias = true;
  t.rope_scaling = {kScriptRopeScaling};
  return t;
}

TargetFeatures hybrid_features(const std::string&, const StackCapabilities& can) {
  TargetFeatures t = plugin_features(can);
  // dp_outside, or not; the copies of a sequence stand beside tp in either.
  t.axis_orders = {kMegatronOrder, kMegatronPipelineInside};
  for (const Dtype low : {Dtype::bf16, Dtype::fp16})
    t.formats.push_back({low, low, low, Dtype::fp32, Dtype::fp32});
  t.formats.push_back({Dtype::fp32, Dtype::fp32, Dtype::fp32, Dtype::fp32, Dtype::fp32});
  return t;
}

TargetFeatures gemini_features(const std::string&, const StackCapabilities& can) {
  TargetFeatures t = plugin_features(can);
  t.can.bucket_size = t.can.recompute_layers = false;
  t.can.sequence_parallel = false;  // its ShardConfig is given no group of the tp ranks
  t.can.shard_degree = false;       // extra_dp_size stands inside of the ranks that shard, not outside
  return t;
}

std::vector<int> layers_by_chunk(const PlanFile& file) {
  return layer_counts(layer_ranges(file.plan, file.model.n_layers));
}

PlanChange bucket_change(std::int64_t elements) {
  return set_field(fmt::format("bucket_elements {}", elements),
                   [elements](ParallelPlan& q) { q.bucket_elements = elements; });
}

void check_plugin_bucket(const PlanFile& file, std::vector<Inexpressible>& found) {
  const ParallelPlan& p = file.plan;
  if (p.bucket_elements == 0) return;
  const std::string value = fmt::format("{}", p.bucket_elements);
  if (p.zero_stage == 0 && p.pp > 1) {
    found.push_back({"bucket_elements",
                     value,
                     "pipeline stages without ZeRO reduce gradients parameter by parameter",
                     {bucket_change(0)}});
    return;
  }
  const std::int64_t unit = by_ddp(p) ? kMi / bytes_of(file.training.gradient) : kMi;
  if (p.bucket_elements % unit == 0) return;
  const std::int64_t near = std::max<std::int64_t>(1, (p.bucket_elements + unit / 2) / unit) * unit;
  found.push_back(
      {"bucket_elements",
       value,
       by_ddp(p) ? "ddp_bucket_cap_mb counts whole MiB" : "zero_bucket_size_in_m counts whole 2^20 elements",
       {bucket_change(near), bucket_change(0)}});
}

void check_plugin_reduction(const PlanFile& file, std::vector<Inexpressible>& found) {
  const ParallelPlan& p = file.plan;
  const TrainingSpec& t = file.training;
  const auto overlap = [](bool on) {
    return set_field(fmt::format("overlap_grad_reduce {}", on),
                     [on](ParallelPlan& q) { q.overlap_grad_reduce = on; });
  };
  if (p.pp > 1 && reduces(p) && p.overlap_grad_reduce)
    found.push_back({"overlap_grad_reduce",
                     "true",
                     "pipeline stages reduce gradients after the last backward pass",
                     {overlap(false)}});
  if (by_ddp(p) && reduces(p) && !p.overlap_grad_reduce)
    found.push_back({"overlap_grad_reduce",
                     "false",
                     "without ZeRO its DistributedDataParallel always reduces during the backward pass",
                     {overlap(true)}});
  if (p.zero_stage == 0 && t.reduction != t.gradient)
    found.push_back({"training.reduction",
                     std::string(name(t.reduction)),
                     "communication_dtype is of ZeRO alone",
                     {{fmt::format("reduction {}", name(t.gradient)),
                       [](PlanFile& f) { f.training.reduction = f.training.gradient; }}}});
  if (p.zero_stage > 0 && t.parameter == Dtype::fp32)
    found.push_back(
        {"zero_stage",
         fmt::format("{}", p.zero_stage),
         "ZeRO goes with 16-bit parameters alone",
         {set_field("zero_stage 0", [](ParallelPlan& q) { q.zero_stage = q.shard_degree = 0; })}});
}

void check_plugin_offload(const PlanFile& file, std::vector<Inexpressible>& found) {
  const ParallelPlan& p = file.plan;
  if (p.optimizer_offload == 0) return;
  const auto share = [](double s) {
    return set_field(fmt::format("optimizer_offload {}", decimal(s)),
                     [s](ParallelPlan& q) { q.optimizer_offload = s; });
  };
  if (p.zero_stage == 0)
    found.push_back({"optimizer_offload",
                     decimal(p.optimizer_offload),
                     "cpu_offload is of ZeRO stages 1 and 2",
                     {set_field("zero_stage 1", [](ParallelPlan& q) { q.zero_stage = 1; }), share(0)}});
  if (p.optimizer_offload < 1)
    found.push_back({"optimizer_offload",
                     decimal(p.optimizer_offload),
                     "cpu_offload takes all of the optimizer state or none",
                     {share(1), share(0)}});
}

std::vector<Inexpressible> plugin_shard_rules(const PlanFile& file) {
  std::vector<Inexpressible> found;
  const ParallelPlan& p = file.plan;
  if (p.zero_stage > 0 && p.shards() == 1 && p.replicas() > 1)
    found.push_back({"shard_degree",
                     "1",
                     "state is sharded over all replicas or none",
                     {set_field("shard_degree 0", [](ParallelPlan& q) { q.shard_degree = 0; })}});
  return found;
}

std::vector<Inexpressible> hybrid_rules(const PlanFile& file, const std::string&) {
  std::vector<Inexpressible> found = plugin_shard_rules(file);
  const ParallelPlan& p = file.plan;
  const PlanChange no_sp =
      set_field("sequence_parallel false", [](ParallelPlan& q) { q.sequence_parallel = false; });
  if (p.cp > 1 && p.tp > 1 && p.sequence_parallel)
    found.push_back({"sequence_parallel",
                     "true",
                     "its one sequence_parallelism_mode is ring_attn for cp, not split_gather beside it",
                     {no_sp}});
  else if (p.tp > 1 && p.sequence_parallel && file.training.seq_len % p.tp != 0)
    found.push_back({"sequence_parallel",
                     "true",
                     fmt::format("split_gather takes sequences that are a multiple of tp {}", p.tp),
                     {no_sp}});
  if (p.cp > 1 && file.training.seq_len % (2 * p.cp) != 0)
    found.push_back({"cp",
                     fmt::format("{}", p.cp),
                     fmt::format("ring_attn takes sequences that are a multiple of {}", 2 * p.cp),
                     {set_field(fmt::format("cp 1, dp {}", p.dp * p.cp), [](ParallelPlan& q) {
                       q.dp *= q.cp;
                       q.cp = 1;
                     })}});
  if (p.pp > 1 && microbatches(p, file.training) < p.pp)
    found.push_back({"micro_batch",
                     fmt::format("{}", p.micro_batch),
                     fmt::format("its schedules take {} micro-batches or more, as many as stages", p.pp),
                     {}});
  if (p.recompute.kind == RecomputeKind::full && p.recompute.layers >= 0 && p.pp == 1) {
    const auto recompute = [](const char* what, RecomputeKind kind) {
      return set_field(what, [kind](ParallelPlan& q) { q.recompute = {.kind = kind, .layers = -1}; });
    };
    found.push_back({"recompute.layers",
                     fmt::format("{}", p.recompute.layers),
                     "gradient_checkpoint_config counts layers of pipeline stages alone",
                     {recompute("recompute full", RecomputeKind::full),
                      recompute("recompute none", RecomputeKind::none)}});
  }
  check_plugin_reduction(file, found);
  check_plugin_offload(file, found);
  check_plugin_bucket(file, found);
  return found;
}

std::vector<Inexpressible> gemini_rules(const PlanFile& file, const std::string&) {
  return plugin_shard_rules(file);
}

// PluginArguments of a plugin, one on a line.
class PluginArguments {
 public:
  void add(const char* key, const std::string& value) { text_ += fmt::format("    {}={},\n", key, value); }
  void add(const char* key, const char* value) { add(key, std::string(value)); }
  void add(const char* key, std::int64_t value) { add(key, fmt::format("{}", value)); }
  void add_bool(const char* key, bool value) { add(key, python_bool(value)); }
  std::string text(const char* plugin) const {
    return fmt::format("PLUGIN = \"{}\"\nOPTIONS = dict(\n{})\n", plugin, text_);
  }

 private:
  std::string text_;
};

void add_common_arguments(PluginArguments& a, const PlanFile& file) {
  const TrainingSpec& t = file.training;
  a.add("precision", fmt::format("\"{}\"", name(t.parameter)));
  a.add_bool("use_fp8", t.compute == Dtype::fp8);
  a.add_bool("enable_flash_attention", true);
  a.add_bool("enable_fused_normalization", true);
  a.add_bool("enable_jit_fused", false);
  a.add("max_norm", "1.0");
}

std::string hybrid_arguments(const PlanFile& file) {
  const ParallelPlan& p = file.plan;
  const TrainingSpec& t = file.training;
  PluginArguments a;
  a.add("tp_size", p.tp);
  a.add("pp_size", p.pp);
  a.add("sp_size", p.cp);
  const bool split = p.tp > 1 && p.sequence_parallel;
  a.add_bool("enable_sequence_parallelism", split || p.cp > 1);
  a.add("sequence_parallelism_mode", p.cp > 1 ? "\"ring_attn\"" : split ? "\"split_gather\"" : "None");
  a.add_bool("dp_outside", !same_order(p, kMegatronOrder));
  a.add("zero_stage", p.zero_stage);
  const std::int64_t bucket = p.bucket_elements;
  a.add("zero_bucket_size_in_m", bucket > 0 && p.zero_stage > 0 ? bucket / kMi : kZeroBucket);
  a.add("ddp_bucket_cap_mb", bucket > 0 && by_ddp(p) ? bucket * bytes_of(t.gradient) / kMi : kDdpBucket);
  a.add_bool("overlap_communication", p.zero_stage > 0 && p.overlap_grad_reduce);
  a.add_bool("overlap_allgather", p.zero_stage > 0 && p.overlap_param_gather);
  if (p.zero_stage > 0)
    a.add("communication_dtype", t.reduction == Dtype::fp32   ? "\"float32\""
                                 : t.reduction == Dtype::bf16 ? "\"bfloat16\""
                                                              : "\"float16\"");
  a.add_bool("cpu_offload", p.optimizer_offload > 0);
  if (p.pp > 1) {
    a.add("pp_style", p.vp > 1 ? "\"interleaved\"" : "\"1f1b\"");
    a.add("num_model_chunks", p.vp);
    if (p.vp == 1) a.add("num_layers_per_stage", fmt::format("[{}]", fmt::join(layers_by_chunk(file), ", ")));
    a.add("num_microbatches", microbatches(p, t));
  }
  a.add("make_vocab_size_divisible_by", 64);
  add_common_arguments(a, file);
  return a.text("HybridParallelPlugin");
}

std::string gemini_arguments(const PlanFile& file) {
  const ParallelPlan& p = file.plan;
  PluginArguments a;
  a.add("tp_size", p.tp);
  a.add("extra_dp_size", 1);
  a.add("placement_policy", "\"static\"");
  a.add("shard_param_frac", "1.0");
  a.add("offload_optim_frac", decimal(p.optimizer_offload));
  a.add("offload_param_frac", p.parameter_offload ? "1.0" : "0.0");
  a.add_bool("enable_gradient_accumulation", microbatches(p, file.training) > 1);
  a.add_bool("enable_async_reduce", p.overlap_grad_reduce);
  a.add("max_prefetch", p.overlap_param_gather ? 1 : 0);
  a.add_bool("pin_memory", true);
  a.add_bool("master_weights", true);
  a.add("search_range_m", 32);
  a.add("min_chunk_size_m", 32);
  a.add("hidden_dim", file.model.hidden);
  add_common_arguments(a, file);
  return a.text("GeminiPlugin");
}

std::string plugin_settings(const PlanFile& file, const std::string& arguments) {
  const ParallelPlan& p = file.plan;
  std::string text = fmt::format("# The plan {}, as train.py reads it.\n", plan_key(p));
  text += python_model_settings(file.model);
  text += fmt::format("MAX_POSITIONS, BIASES = {}, {}\n", file.model.max_positions,
                      python_bool(file.model.linear_bias));
  text += fmt::format("SEQ_LEN, MICRO_BATCH, MICRO_BATCHES = {}, {}, {}\n", file.training.seq_len,
                      p.micro_batch, microbatches(p, file.training));
  text += fmt::format("RECOMPUTE = {}\n", python_bool(p.recompute.kind == RecomputeKind::full));
  text += "# Of each chunk of layers in the order of the model, how many are recomputed; None: all.\n";
  std::vector<int> some;
  if (p.recompute.kind == RecomputeKind::full && p.recompute.layers >= 0)
    for (const LayerRange& r : layer_ranges(p, file.model.n_layers))
      some.push_back(std::min(r.count, p.recompute.layers));
  text += fmt::format("RECOMPUTED_LAYERS = {}\n",
                      some.empty() ? "None" : fmt::format("[{}]", fmt::join(some, ", ")));
  return text + "# Of the booster's plugin; data parallelism takes the ranks that are left.\n" + arguments;
}

ExportContent colossal_content(const PlanFile& file, const std::string& version,
                               const std::string& arguments) {
  ExportContent out;
  out.files.push_back({"settings.py", plugin_settings(file, arguments)});
  out.copied = {{"colossalai_train.py", "train.py"}, {"check_rope.py", "check_rope.py"}};
  out.environment = {{"CUDA_DEVICE_MAX_CONNECTIONS", "1"}};  // as its own benchmarks set it
  out.program = "train.py";
  out.needs =
      fmt::format("colossalai {} (torch up to 2.5.1, transformers 4.51.3), flash-attn, apex", version);
  out.checker = "colossalai";
  out.notes.push_back(
      "weights and tokens are random: model() and batches() in train.py are yours, as are checkpoints");
  return out;
}

ExportContent write_hybrid(const PlanFile& file, const std::string& version) {
  return colossal_content(file, version, hybrid_arguments(file));
}

ExportContent write_gemini(const PlanFile& file, const std::string& version) {
  ExportContent out = colossal_content(file, version, gemini_arguments(file));
  out.notes.push_back("chunks are of 2^25 elements or more: GeminiPlugin searches the size itself");
  return out;
}

}  // namespace

ExportTarget colossalai_target() {
  return {.name = "colossalai",
          .title = "Colossal-AI",
          .versions = {"0.5"},
          .package = "colossalai",
          .stack = "colossal-ai",
          .features = hybrid_features,
          .rules = hybrid_rules,
          .write = write_hybrid};
}

ExportTarget colossalai_gemini_target() {
  return {.name = "colossalai-gemini",
          .title = "Colossal-AI with Gemini",
          .versions = {"0.5"},
          .package = "colossalai",
          .stack = "colossal-gemini",
          .features = gemini_features,
          .rules = gemini_rules,
          .write = write_gemini};
}

}  // namespace sextant

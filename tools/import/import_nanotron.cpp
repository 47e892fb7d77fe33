#include <fmt/format.h>

#include "core/base/words.hpp"
#include "core/model/model_files.hpp"
#include "tools/import/foreign_keys.hpp"
#include "tools/import/import_settings.hpp"

namespace sextant {

namespace {

const std::vector<std::string> kNanotronNoEffect = {"checkpoints",
                                                    "data_stages",
                                                    "general",
                                                    "lighteval",
                                                    "logging",
                                                    "profiler",
                                                    "tokenizer",
                                                    "s3_upload",
                                                    "data",
                                                    "metrics_logging",
                                                    "model.init_method",
                                                    "model.make_vocab_size_divisible_by",
                                                    "model.model_config",
                                                    "model.moe_config",
                                                    "optimizer.clip_grad",
                                                    "optimizer.learning_rate_scheduler",
                                                    "optimizer.optimizer_factory",
                                                    "optimizer.weight_decay*",
                                                    "optimizer.adam_*",
                                                    "optimizer.torch_adam_is_fused",
                                                    "doremi",
                                                    "tokens.train_steps",
                                                    "tokens.limit_*",
                                                    "tokens.val_check_interval",
                                                    "parallelism.tp_recompute_allgather",
                                                    "experiment_logger",
                                                    "kill_switch_path"};

// Keys that nanotron's model_config shares with Hugging Face's config.json.
constexpr const char* kModelKeys[] = {
    "hidden_size",         "intermediate_size", "num_hidden_layers",       "num_attention_heads",
    "num_key_value_heads", "vocab_size",        "max_position_embeddings", "rms_norm_eps",
    "rope_theta",          "rope_scaling",      "tie_word_embeddings",     "attention_bias",
    "hidden_act"};

ModelSpec nanotron_model(ForeignKeys& k) {
  const nlohmann::json* config = k.value("model.model_config");
  if (!config || !config->is_object())
    k.wrong("model.model_config", "a model as nanotron's LlamaConfig describes it");
  const auto said = [&](const char* key) { return config->contains(key) && config->at(key) == true; };
  if (config->contains("moe_config") && !config->at("moe_config").is_null())
    k.wrong("model.model_config.moe_config", "a mixture of experts", "null",
            "sextant plans no other models than decoders of equal dense layers");
  if (!said("is_llama_config") && !said("is_qwen2_config"))
    k.wrong("model.model_config", "neither is_llama_config nor is_qwen2_config", "is_llama_config: true", "");
  nlohmann::json hugging_face = {{"model_type", "llama"}};
  for (const char* key : kModelKeys)
    if (config->contains(key) && !config->at(key).is_null()) hugging_face[key] = config->at(key);
  try {
    return model_from_hugging_face(hugging_face, "nanotron model");
  } catch (const ConfigError& error) {
    auto problems = error.problems();
    for (Problem& p : problems) {
      p.file = k.file();
      p.key = "model.model_config." + p.key;
    }
    throw ConfigError(std::move(problems));
  }
}

}  // namespace

bool is_nanotron(const nlohmann::json& s) {
  if (!s.is_object() || !s.contains("parallelism") || !s["parallelism"].is_object()) return false;
  return s["parallelism"].contains("tp") || s["parallelism"].contains("dp") ||
         s["parallelism"].contains("tp_linear_async_communication");
}

ImportedRun import_nanotron(const nlohmann::json& settings, const ImportSource& source) {
  ForeignKeys k(settings, source.file, kNanotronNoEffect);
  ImportedRun run;
  run.file = source.file;
  run.what = "a nanotron configuration";
  run.stack = "nanotron";
  if (k.value("model.model_config")) run.model = nanotron_model(k);
  ParallelPlan& p = run.plan;
  p.tp = k.count("parallelism.tp").value_or(1);
  p.pp = k.count("parallelism.pp").value_or(1);
  p.cp = k.count("parallelism.context_parallel_size").value_or(1);
  run.dp = k.count("parallelism.dp");
  if (k.count("parallelism.expert_parallel_size").value_or(1) > 1)
    k.wrong("parallelism.expert_parallel_size", "1: sextant plans no mixtures of experts");
  const std::string engine = lower(k.text("parallelism.pp_engine").value_or("afab"));
  if (engine != "1f1b" && engine != "afab") k.wrong("parallelism.pp_engine", "1f1b or afab");
  if (p.pp > 1 && engine == "afab") p.schedule = PipelineSchedule::gpipe;
  const std::string mode = lower(k.text("parallelism.tp_mode").value_or("all_reduce"));
  if (mode != "all_reduce" && mode != "reduce_scatter")
    k.wrong("parallelism.tp_mode", "ALL_REDUCE or REDUCE_SCATTER");
  p.sequence_parallel = p.tp > 1 && mode == "reduce_scatter";
  const bool async = k.is("parallelism.tp_linear_async_communication");
  p.overlap_tp = p.tp > 1 && async;
  if (k.is("parallelism.recompute_layer")) p.recompute.kind = RecomputeKind::full;
  p.zero_stage = k.count("optimizer.zero_stage", 0).value_or(0);
  if (p.zero_stage > 1) k.wrong("optimizer.zero_stage", "0 or 1");
  p.micro_batch = k.count("tokens.micro_batch_size").value_or(1);
  run.accumulation = k.count("tokens.batch_accumulation_per_replica").value_or(1);
  run.seq_len = k.count("tokens.sequence_length");
  if (const double cap = k.real("model.ddp_bucket_cap_mb").value_or(25); cap != 25)
    run.unread.push_back(fmt::format("model.ddp_bucket_cap_mb {}: taken as 25", cap));
  const std::string dtype = k.text("model.dtype").value_or("bfloat16");
  if (dtype != "bfloat16" && dtype != "float16" && dtype != "float32")
    k.wrong("model.dtype", "bfloat16, float16 or float32");
  run.formats.parameter = run.formats.compute = dtype == "bfloat16"  ? Dtype::bf16
                                                : dtype == "float16" ? Dtype::fp16
                                                                     : Dtype::fp32;
  run.formats.gradient = run.formats.reduction =
      k.flag("optimizer.accumulate_grad_in_fp32").value_or(true) ? Dtype::fp32 : *run.formats.parameter;
  for (std::string& key : k.unread()) run.unread.push_back(std::move(key));
  return run;
}

}  // namespace sextant

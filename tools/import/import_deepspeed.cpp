#include <algorithm>

#include <fmt/format.h>

#include "core/base/decimal.hpp"
#include "core/base/words.hpp"
#include "core/model/model_files.hpp"
#include "tools/import/foreign_keys.hpp"
#include "tools/import/import_settings.hpp"
#include "tools/import/shell_variables.hpp"

namespace sextant {

namespace {

const std::vector<std::string> kDeepSpeedNoEffect = {
    "optimizer",
    "scheduler",
    "gradient_clipping",
    "steps_per_print",
    "wall_clock_breakdown",
    "dump_state",
    "prescale_gradients",
    "tensorboard",
    "wandb",
    "csv_monitor",
    "comet",
    "monitor_config",
    "flops_profiler",
    "autotuning",
    "checkpoint",
    "data_efficiency",
    "fp16.*scale*",
    "fp16.hysteresis",
    "fp16.auto_cast",
    "fp16.loss_scale_window",
    "comms_logger",
    "elasticity",
    "memory_breakdown",
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
    "gradient_predivide_factor",
    "activation_checkpointing.profile",
    "activation_checkpointing.number_checkpoints",
    "activation_checkpointing.contiguous_memory_optimization",
    "activation_checkpointing.synchronize_checkpoint_boundary",
    "zero_optimization.contiguous_gradients",
    "zero_optimization.reduce_scatter",
    "zero_optimization.allgather_partitions",
    "zero_optimization.round_robin_gradients",
    "zero_optimization.sub_group_size",
    "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    "zero_optimization.stage3_max_*",
    "zero_optimization.stage3_prefetch_bucket_size",
    "zero_optimization.stage3_param_persistence_threshold",
    "zero_optimization.allgather_bucket_size",
    "zero_optimization.memory_efficient_linear",
    "zero_optimization.ignore_unused_parameters",
    "zero_optimization.load_from_fp32_weights",
    "zero_optimization.elastic_checkpoint",
    "zero_optimization.offload_*.*",
    "zero_optimization.cpu_offload_use_pin_memory",
    "seed"};

// Options of Hugging Face's Trainer and of DeepSpeed-Chat, for what the configuration leaves to them.
struct TrainerOptions {
  const CommandFlags& command;
  std::optional<std::string> text(std::initializer_list<const char*> names) const {
    for (const char* name : names)
      if (const auto at = command.options.find(name);
          at != command.options.end() && !at->second.empty() && !has_unknown(at->second.front()))
        return at->second.front();
    return std::nullopt;
  }
  std::optional<int> count(std::initializer_list<const char*> names) const {
    const auto value = text(names);
    const auto n = value ? parse_count(*value, kMaxSeqLen) : std::nullopt;
    return n && *n > 0 ? std::optional(static_cast<int>(*n)) : std::nullopt;
  }
  bool on(std::initializer_list<const char*> names) const {
    return std::ranges::any_of(names, [&](const char* name) {
      const auto at = command.options.find(name);
      return at != command.options.end() && (at->second.empty() || lower(at->second.front()) == "true");
    });
  }
};

// `formerly`: names until 2021, true or false, which DeepSpeed takes to this day (runtime/zero/config.py, "deprecated").
bool on_host(ForeignKeys& k, const std::string& what, std::initializer_list<const char*> formerly,
             ImportedRun& run) {
  const std::string path = "zero_optimization." + what;
  bool as_before = false;
  for (const char* key : formerly) as_before = k.is(fmt::format("zero_optimization.{}", key)) || as_before;
  const nlohmann::json* section = k.value(path);
  if (!section) return as_before;
  if (!section->is_object()) k.wrong(path, "an object with device");
  const std::string device = lower(k.text(path + ".device").value_or("none"));
  if (device != "cpu" && device != "nvme" && device != "none") k.wrong(path + ".device", "none, cpu or nvme");
  if (device == "nvme") run.assumed.push_back(fmt::format("{} in host memory instead of NVMe", what));
  return device != "none";
}

void read_zero(ForeignKeys& k, const TrainerOptions& trainer, ImportedRun& run) {
  ParallelPlan& p = run.plan;
  const auto stage = k.count("zero_optimization.stage", 0);
  p.zero_stage = stage ? *stage : trainer.count({"--zero-stage"}).value_or(0);
  if (p.zero_stage > 3) k.wrong("zero_optimization.stage", "0, 1, 2 or 3");
  const bool parameters = on_host(k, "offload_param", {"cpu_offload_param", "cpu_offload_params"}, run);
  if (on_host(k, "offload_optimizer", {"cpu_offload"}, run) || trainer.on({"--offload"}))
    p.optimizer_offload = k.real("zero_optimization.offload_optimizer.ratio").value_or(1.0);
  if (p.optimizer_offload < 0 || p.optimizer_offload > 1)
    k.wrong("zero_optimization.offload_optimizer.ratio", "a share from 0 to 1");
  if (parameters && p.zero_stage < 3)
    k.wrong("zero_optimization.offload_param", fmt::format("offload at stage {}", p.zero_stage), "stage 3",
            "");
  p.parameter_offload = parameters || (trainer.on({"--offload"}) && p.zero_stage == 3);
  p.overlap_grad_reduce = k.flag("zero_optimization.overlap_comm").value_or(p.zero_stage == 3);
  run.shard_ranks = k.count("zero_optimization.mics_shard_size", -1).value_or(-1) > 0
                        ? *k.count("zero_optimization.mics_shard_size")
                        : 0;
  if (const double bucket = k.real("zero_optimization.reduce_bucket_size").value_or(0);
      bucket >= 1 && bucket < 1e15)
    p.bucket_elements = static_cast<std::int64_t>(bucket);
  for (const char* other : {"zero_hpz_partition_size", "zero_quantized_weights", "zero_quantized_gradients"})
    if (const nlohmann::json* value = k.value(std::string("zero_optimization.") + other);
        value && *value != false && *value != 1)
      run.unread.push_back(fmt::format("zero_optimization.{} {}", other, value->dump()));
}

void read_deepspeed_batch(ForeignKeys& k, const TrainerOptions& trainer, ImportedRun& run) {
  auto micro = k.count("train_micro_batch_size_per_gpu");
  if (!micro) micro = trainer.count({"--per-device-train-batch-size", "--micro-batch-size"});
  auto steps = k.count("gradient_accumulation_steps");
  if (!steps) steps = trainer.count({"--gradient-accumulation-steps"});
  run.global_batch = k.count("train_batch_size");
  if (micro)
    run.plan.micro_batch = *micro;
  else if (run.global_batch)
    run.micro_is_rest = true;
  else
    run.assumed.emplace_back("micro-batches of 1: the training program sets them");
  if (!run.global_batch || run.micro_is_rest) run.accumulation = steps.value_or(1);
  run.seq_len = trainer.count({"--max-seq-len", "--max-seq-length", "--block-size", "--model-max-length",
                               "--seq-length", "--cutoff-len"});
}

void read_deepspeed_formats(ForeignKeys& k, const TrainerOptions& trainer, ImportedRun& run) {
  ImportedFormats& f = run.formats;
  const bool bf16 = k.is("bf16.enabled") || k.is("bfloat16.enabled"), fp16 = k.is("fp16.enabled");
  const auto automatic = [&](const char* section) {  // "enabled": "auto" leaves it to the trainer
    const auto at = k.settings().find(section);
    return at != k.settings().end() && at->is_object() && at->value("enabled", nlohmann::json()) == "auto";
  };
  const std::string dtype = lower(trainer.text({"--dtype"}).value_or(""));
  const bool trainer_bf16 = trainer.on({"--bf16"}) || dtype == "bf16",
             trainer_fp16 = trainer.on({"--fp16"}) || dtype == "fp16";
  Dtype format = Dtype::fp32;
  if (bf16 || trainer_bf16 || (automatic("bf16") && !trainer_fp16)) format = Dtype::bf16;
  if (fp16 || (trainer_fp16 && !bf16)) format = Dtype::fp16;
  f.parameter = f.compute = format;
  const auto stated = [&](const char* key) -> std::optional<Dtype> {
    const auto name = k.text(key);
    if (!name) return std::nullopt;
    const auto known = dtype_from_name(*name);
    if (!known) k.wrong(key, "fp32, bf16 or fp16");
    return known;
  };
  f.gradient = stated("data_types.grad_accum_dtype");
  f.reduction = stated("communication_data_type");
  if (const std::string type = lower(k.text("optimizer.type").value_or("adamw"));
      type.find("adam") == std::string::npos)
    run.unread.push_back("optimizer.type " + type + ": taken as Adam");
}

}  // namespace

bool is_deepspeed(const nlohmann::json& s) {
  if (!s.is_object() || s.contains("schema")) return false;
  // GPT-NeoX writes DeepSpeed's keys among its own.
  for (const char* key : {"pipe-parallel-size", "pipe_parallel_size", "model-parallel-size", "num-layers"})
    if (s.contains(key)) return false;
  if (s.contains("zero_optimization") || s.contains("train_micro_batch_size_per_gpu")) return true;
  // A word of many trainers.
  return s.contains("train_batch_size") && std::ranges::none_of(s.items(), [](const auto& item) {
           return item.key().find("model") != std::string::npos || item.key().find("data") == 0 ||
                  item.key().find("learning_rate") != std::string::npos ||
                  item.key().find("epoch") != std::string::npos;
         });
}

ImportedRun import_deepspeed(const nlohmann::json& settings, const CommandFlags& command,
                             const ImportSource& source) {
  ForeignKeys k(settings, source.file, kDeepSpeedNoEffect);
  const TrainerOptions trainer{command};
  ImportedRun run;
  run.file = source.file;
  run.what = "a DeepSpeed configuration";
  run.stack = "deepspeed-zero";
  run.gpus = command.gpus;
  read_zero(k, trainer, run);
  read_deepspeed_batch(k, trainer, run);
  read_deepspeed_formats(k, trainer, run);
  run.plan.tp = k.count("tensor_parallel.autotp_size", 0).value_or(1);
  if (run.plan.tp == 0) run.plan.tp = 1;
  if (const int ulysses = k.count("sequence_parallel_size").value_or(1); ulysses > 1)
    run.unread.push_back(fmt::format("sequence_parallel_size {} (Ulysses)", ulysses));
  if (const nlohmann::json* stages = k.value("pipeline.stages");
      stages && stages->is_number_integer() && *stages > 1)
    run.plan.pp = *k.count("pipeline.stages");
  if (trainer.on({"--gradient-checkpointing"}))
    run.plan.recompute.kind = RecomputeKind::full;
  else
    run.assumed.emplace_back("no recomputation, unless --plan states full: the training program decides");
  if (k.is("activation_checkpointing.cpu_checkpointing"))
    run.unread.emplace_back("activation_checkpointing.cpu_checkpointing true");
  if (k.is("activation_checkpointing.partition_activations"))
    run.unread.emplace_back("activation_checkpointing.partition_activations true");
  if (const auto name = trainer.text({"--model-name-or-path", "--model-name", "--model"})) {
    run.model_name = preset_of_name(*name, source.presets);
    if (run.model_name.empty())
      run.unread.push_back("--model_name_or_path " + *name + ": no preset of this name");
  }
  for (std::string& key : k.unread()) run.unread.push_back(std::move(key));
  return run;
}

}  // namespace sextant

#include "planner/calibration/run_log.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.hpp"
#include "core/base/file_io.hpp"
#include "planner/calibration/launcher_tags.hpp"
#include "planner/calibration/log_deepspeed.hpp"
#include "planner/calibration/log_parameters.hpp"
#include "planner/calibration/log_steps.hpp"
#include "planner/calibration/log_text.hpp"
#include "planner/calibration/log_torchtitan.hpp"
#include "planner/calibration/unread_log.hpp"

namespace sextant {

namespace {

// A line, where it stands, and what reads steps.
struct Place {
  int line;
  StepLines& steps;
};

constexpr StepFormat step_format(LogFormat format) {
  switch (format) {
    case LogFormat::megatron_lm:
    case LogFormat::megatron_bridge:
      return {"elapsed time per iteration (ms):", "milliseconds above 0", 1e-3};
    case LogFormat::torchtitan:
      return {"tps:", "tokens per second above 0", 1, StepValue::tokens_per_s_of_gpu};
    case LogFormat::deepspeed:
      return {"CurrSamplesPerSec=", "sequences per second above 0", 1, StepValue::sequences_per_s};
    case LogFormat::nanotron:
      return {"time_per_iteration_ms:", "milliseconds above 0", 1e-3};  // until 2025 with "elapsed_" in front
    case LogFormat::nemo:
      return {"train_step_timing in s:", "seconds above 0", 1};
  }
  return {};
}

// Of the text: torchtitan counted words until the end of 2024, DeepSpeed's pipeline engine prints times, and NeMo's progress bar writes
// "=" where its lines have ":".
StepFormat step_format(LogFormat format, std::string_view text) {
  if (format == LogFormat::torchtitan && text.find("tps:") == std::string_view::npos)
    return {"wps:", "tokens per second above 0", 1, StepValue::tokens_per_s_of_gpu};
  if (format == LogFormat::deepspeed && text.find("iter time (s):") != std::string_view::npos)
    return {"iter time (s):", "seconds above 0", 1};
  if (format == LogFormat::nemo && text.find("train_step_timing in s:") == std::string_view::npos)
    return {"train_step_timing in s=", "seconds above 0", 1};
  return step_format(format);
}

// "  hidden_size ..................................... 4096", Megatron's print of its arguments.
struct Argument {
  std::string_view key;
  const char* column;
};
constexpr std::array kArguments = {
    Argument{"num_layers", "layers"},
    Argument{"hidden_size", "hidden"},
    Argument{"num_attention_heads", "heads"},
    Argument{"num_query_groups", "kv_heads"},
    Argument{"ffn_hidden_size", "ffn_hidden"},
    Argument{"seq_length", "seq_len"},
    Argument{"micro_batch_size", "micro_batch"},
    Argument{"global_batch_size", "global_batch"},
    Argument{"tensor_model_parallel_size", "tp"},
    Argument{"pipeline_model_parallel_size", "pp"},
    Argument{"context_parallel_size", "cp"},
    Argument{"data_parallel_size", "dp"},
    Argument{"world_size", "gpus"},
    Argument{"sequence_parallel", "sequence_parallel"},
    Argument{"use_distributed_optimizer", "zero_stage"},
    Argument{"num_layers_per_virtual_pipeline_stage", "layers_per_chunk"},
    Argument{"virtual_pipeline_model_parallel_size", "virtual_stages"},
    Argument{"num_virtual_stages_per_pipeline_rank", "virtual_stages"},
    Argument{"use_megatron_fsdp", "megatron_fsdp"},
    Argument{"use_custom_fsdp", "megatron_fsdp"},
    Argument{"use_torch_fsdp2", "torch_fsdp2"},
    Argument{"encoder_seq_length", "seq_len"},
    Argument{"padded_vocab_size", "vocab"},
    Argument{"num_experts", "experts"},
    Argument{"overlap_grad_reduce", "overlap_grad_reduce"},
    Argument{"overlap_param_gather", "overlap_param_gather"},
    Argument{"tp_comm_overlap", "overlap_tp"},
};

void read_setting(std::string_view key, std::string_view value, RunLog& log) {
  const bool yes = value == "True" || value == "true", no = value == "False" || value == "false";
  const auto known =
      std::find_if(kArguments.begin(), kArguments.end(), [&](const Argument& a) { return a.key == key; });
  if (known != kArguments.end()) {
    if (const auto x = whole_number(value))
      log.says[known->column] = *x;
    else if (yes || no)
      log.says[known->column] = yes ? 1 : 0;
  }
  if (key == "recompute_granularity")
    log.says["recompute"] = value == "full" ? 2 : value == "selective" ? 1 : 0;
  // "block": the first N layers of each chunk; "uniform": all of them, N at a time.
  if (key == "recompute_method") log.says["recompute_block"] = value == "block" ? 1 : 0;
  if (key == "recompute_num_layers")
    if (const auto n = whole_number(value)) log.says["recompute_layers"] = *n;
  if (key == "data_parallel_sharding_strategy")
    log.says["fsdp_stage"] = value == "optim_grads_params" ? 3
                             : value == "optim_grads"      ? 2
                             : value == "optim"            ? 1
                                                           : 0;
  // Megatron-DeepSpeed, whose stage counts where DeepSpeed is on.
  if (key == "deepspeed") log.says["deepspeed"] = yes ? 1 : 0;
  if (const auto on = log.says.find("deepspeed");
      key == "zero_stage" && on != log.says.end() && on->second == 1)
    if (const auto stage = number_after(value, "")) log.says["zero_stage"] = std::llround(*stage);
  if (key == "name" && value == "distributed_fused_adam") log.says["zero_stage"] = 1;  // NeMo's optim.name
  if (key == "devices" || key == "num_nodes")
    if (const auto n = whole_number(value)) log.says[key == "devices" ? "gpus_of_node" : "nodes"] = *n;
  if (key == "precision" ||
      key == "mixed_precision") {  // NeMo: "bf16-mixed", 16; Megatron-Bridge: "bf16_mixed"
    if (value.starts_with("bf16")) log.compute = Dtype::bf16;
    if (value.starts_with("16") || value.starts_with("fp16")) log.compute = Dtype::fp16;
  }
  // In the order that they are printed, by name: bf16, fp16, fp8, params_dtype.
  if (key == "params_dtype" && log.compute != Dtype::fp8) {
    if (value.ends_with("bfloat16")) log.compute = Dtype::bf16;
    if (value.ends_with("float16") && !value.ends_with("bfloat16")) log.compute = Dtype::fp16;
    if (value.ends_with("float32")) log.compute = Dtype::fp32;
  }
  if (key == "bf16" && yes) log.compute = Dtype::bf16;
  if (key == "fp16" && yes) log.compute = Dtype::fp16;
  if (key == "fp8" && (value == "hybrid" || value == "e4m3")) log.compute = Dtype::fp8;
  if (key == "accumulate_allreduce_grads_in_fp32" && yes) log.gradient = log.reduction = Dtype::fp32;
  if (key == "grad_reduce_in_bf16" && yes) log.reduction = Dtype::bf16;
  if (key == "optimizer_cpu_offload") log.says["optimizer_offload"] = yes ? 1 : 0;
  read_kernel_argument(key, value, log.kernels);
  if (key == "grad_reduce_in_fp32" && (yes || no))
    log.gradient = log.reduction = yes ? Dtype::fp32 : Dtype::bf16;
}

void read_argument(std::string_view line, RunLog& log) {
  const std::size_t dots = line.find(" ..");
  if (dots == std::string_view::npos) return;
  const std::size_t value = std::min(line.find_first_not_of('.', dots + 1), line.size());
  read_setting(last_word(line.substr(0, dots)), without_blanks(line.substr(value)), log);
}

// "  tensor_model_parallel_size: 2": Megatron-Bridge's configuration, printed as YAML.
void read_yaml_setting(std::string_view line, RunLog& log) {
  const std::size_t colon = line.find(": ");
  if (colon == std::string_view::npos || line.find('|') != std::string_view::npos) return;
  const std::string_view key = last_word(line.substr(0, colon));
  // Sections repeat names with other meanings.
  if (without_blanks(line.substr(0, colon)) == key)
    read_setting(key, without_blanks(line.substr(colon + 1)), log);
}

void read_megatron(std::string_view line, const Place& at, RunLog& log) {
  if (line.find("- arguments -") != std::string_view::npos) at.steps.starts();
  // "using world size: 64, data-parallel size: 16, tensor-model-parallel size: 2", until 2023 "data-parallel-size: 16".
  if (line.find("using world size:") != std::string_view::npos)
    for (const auto& [label, column] : {std::pair{"using world size:", "gpus"},
                                        {"data-parallel size:", "dp"},
                                        {"data-parallel-size:", "dp"},
                                        {"context-parallel size:", "cp"},
                                        {" tensor-model-parallel size:", "tp"},
                                        {" pipeline-model-parallel size:", "pp"}})
      if (const auto n = number_after(line, label); n && *n >= 1) log.says[column] = std::llround(*n);
  if (line.find("using torch.") != std::string_view::npos &&
      line.find("for parameters") != std::string_view::npos)
    log.compute = line.find("torch.bfloat16") != std::string_view::npos  ? Dtype::bf16
                  : line.find("torch.float16") != std::string_view::npos ? Dtype::fp16
                                                                         : Dtype::fp32;
  const auto number = step_of_total(line, "iteration ");
  if (number || line.find(step_format(log.format).label) != std::string_view::npos) {
    at.steps.read(line, at.line, number);
    if (const auto batch = number_after(line, "global batch size:"))
      log.says["global_batch"] = std::llround(*batch);
  }
  if (line.find("memory (MB)") != std::string_view::npos)
    if (const auto mb = number_after(line, "max allocated:")) {
      keep_largest(log.peak_memory_GiB, *mb / 1024);  // Megatron's MB are MiB
      log.memory_kind = "torch_allocated";
    }
  read_argument(line, log);
  if (log.format == LogFormat::megatron_bridge) read_yaml_setting(line, log);
}

void read_nanotron(std::string_view line, const Place& at, RunLog& log) {
  if (line.find("ParallelismArgs(") != std::string_view::npos) at.steps.starts();
  const auto number = step_of_total(line, "iteration:");
  if (number || line.find(step_format(log.format).label) != std::string_view::npos) {
    at.steps.read(line, at.line, number);
    // Printed with three digits: "1.02K" is any batch from 1015 to 1025.
    // In sequences beside "elapsed_time_per_iteration_ms", in tokens since that is "time_per_iteration_ms".
    if (const auto batch = number_after(line, "global_batch_size:")) {
      if (line.find("elapsed_time_per_iteration_ms:") == std::string_view::npos) {
        log.batch_tokens = *batch;
      } else {
        log.says["global_batch"] = std::llround(*batch);
        log.rounded_batch = *batch >= 1000;
      }
    }
  }
  if (const auto bytes = number_after(line, "cuda_max_memory_reserved:")) {
    keep_largest(log.peak_memory_GiB, *bytes / 1073741824.0);
    log.memory_kind = "torch_reserved";
  }
  // Its configuration as YAML or as a printed dataclass.
  for (const auto& [label, column] : {std::pair{"micro_batch_size", "micro_batch"},
                                      {"sequence_length", "seq_len"},
                                      {"zero_stage", "zero_stage"},
                                      {"num_hidden_layers", "layers"},
                                      {"num_attention_heads", "heads"},
                                      {"num_key_value_heads", "kv_heads"},
                                      {"hidden_size", "hidden"},
                                      {"intermediate_size", "ffn_hidden"},
                                      {"num_layers", "layers"},
                                      {"seq_len", "seq_len"},
                                      {" mbs", "micro_batch"},
                                      {"context_parallel_size", "cp"},
                                      {" cp", "cp"}})
    for (const char* sign : {":", "="})
      if (const auto n = number_after(line, fmt::format("{}{}", label, sign)))
        log.says[column] = std::llround(*n);
  for (const char* sign : {":", "="}) {
    for (const char* label : {"batch_accumulation_per_replica", "batch_accum"})
      if (const auto n = number_after(line, fmt::format("{}{}", label, sign)))
        log.accumulation = std::llround(*n);
    const auto says = [&](std::string_view key, std::string_view value) {
      const std::size_t key_at = line.find(fmt::format("{}{}", key, sign));
      return key_at != std::string_view::npos && line.find(value, key_at) < line.find(',', key_at);
    };
    for (const auto& [word, kind] : {std::pair{"True", 2}, {"true", 2}, {"False", 0}, {"false", 0}})
      for (const char* label : {"recompute_layer", "full_checkpointing"})
        if (says(label, word)) log.says["recompute"] = kind;
    for (const auto& [word, kind] : {std::pair{"bfloat16", Dtype::bf16}, {"float16", Dtype::fp16}})
      if (says("dtype", word) && !(kind == Dtype::fp16 && says("dtype", "bfloat16"))) log.compute = kind;
    for (const auto& [word, kind] : {std::pair{"True", Dtype::fp32}, {"true", Dtype::fp32}})
      if (says("accumulate_grad_in_fp32", word)) log.gradient = kind;
    if (says("tp_mode", "REDUCE_SCATTER")) log.says["sequence_parallel"] = 1;
    if (says("tp_mode", "ALL_REDUCE")) log.says["sequence_parallel"] = 0;
    for (const auto& [word, on] : {std::pair{"True", 1}, {"true", 1}, {"False", 0}, {"false", 0}})
      if (says("tp_linear_async_communication", word)) log.says["overlap_tp"] = on;
  }
  if (line.find("ParallelismArgs(") == std::string_view::npos && line.find(':') == std::string_view::npos &&
      line.find('=') == std::string_view::npos)
    return;
  const std::string spaced = " " + std::string(line);  // "tp: 4 | pp: 1 | dp: 2" begins a line
  for (const char* axis : {"dp", "pp", "tp"})
    for (const auto& form :
         {fmt::format("({}=", axis), fmt::format(" {}=", axis), fmt::format(" {}: ", axis)})
      if (const auto n = number_after(spaced, form); n && *n >= 1) log.says[axis] = std::llround(*n);
}

// "Training epoch 0, iteration 45/99 | ... | global_batch_size: 128 | global_step: 45 | max_memory_reserved: 127785762816 | ... |
// train_step_timing in s: 6.08 |", or "Epoch 0: :  47%|###   | 7/15 [06:19<07:13, ..., global_step=5.000, consumed_samples=12288.0,
// train_step_timing in s=49.50]". A bar repeats a step; one that is above 999 is rounded ("2e+3").
void read_nemo(std::string_view line, const Place& at, RunLog& log) {
  read_yaml_setting(line, log);
  if (log.says.contains("gpus_of_node") && log.says.contains("nodes"))
    log.says["gpus"] = log.says.at("gpus_of_node") * log.says.at("nodes");
  if (line.find("train_step_timing in s") == std::string_view::npos) return;
  const bool bar = line.find("global_step=") != std::string_view::npos;
  const auto number = number_after(line, bar ? "global_step=" : "global_step:");
  if (const auto batch = number_after(line, "global_batch_size:"))
    log.says["global_batch"] = std::llround(*batch);
  for (const char* label : {"max_memory_reserved:", "peak_memory_usage:"})
    if (const auto bytes = number_after(line, label)) {
      keep_largest(log.peak_memory_GiB, *bytes / 1073741824.0);
      log.memory_kind = "torch_reserved";
    }
  at.steps.read(line, at.line, number ? std::optional(std::llround(*number)) : std::nullopt);
}

LogFormat format_of(std::string_view text, const std::string& file) {
  if (const auto format = log_format_of(text)) return *format;
  throw ConfigError(unread_log(text, file));
}

// Where the log says what. What is stated before the first step holds for all: a value that another step was run with is another
// run's.
class OneRun {
 public:
  void check(RunLog& log, const Place& at) {
    const std::size_t steps = log.steps.size();
    if (log.says != last_) {
      for (const auto& [column, value] : log.says)
        if (const auto it = last_.find(column); it == last_.end() || it->second != value)
          log.lines[column] = at.line;
      last_ = log.says;
    }
    for (const auto& [key, said, was] : {std::tuple{"compute", log.compute, &compute_},
                                         {"gradient", log.gradient, &gradient_},
                                         {"reduction", log.reduction, &reduction_}})
      if (said != std::exchange(*was, said)) log.lines[key] = at.line;
    if (steps == steps_) return;
    steps_ = steps;
    if (first_.empty()) first_ = log.says;
    for (const auto& [column, value] : first_)
      if (log.says.at(column) != value)
        throw ConfigError(Problem{fmt::format("{}:{}", log.file, log.lines.at(column)), column,
                                  fmt::format("{}", log.says.at(column)),
                                  fmt::format("{}, as the steps before were run with", value),
                                  "two runs in one file, or a growing batch: one file for each"});
  }

 private:
  std::size_t steps_ = 0;
  std::map<std::string, std::int64_t> first_, last_;
  std::optional<Dtype> compute_, gradient_, reduction_;
};

}  // namespace

std::optional<LogFormat> log_format_of(std::string_view text) {
  const auto has = [&](std::string_view words) { return text.find(words) != std::string_view::npos; };
  if (has("elapsed time per iteration (ms):"))
    return has("MODEL_TFLOP/s/GPU") ? LogFormat::megatron_bridge : LogFormat::megatron_lm;
  if (has("time_per_iteration_ms:")) return LogFormat::nanotron;
  if (has("step:") && (has("tps:") || has("wps:"))) return LogFormat::torchtitan;
  if (has("CurrSamplesPerSec=") || (has("iter time (s):") && has("samples/sec:")))
    return LogFormat::deepspeed;
  if (has("train_step_timing in s:") || has("train_step_timing in s=")) return LogFormat::nemo;
  return std::nullopt;
}

RunLog parse_run_log(std::string_view bytes, const std::string& file) {
  RunLog log;
  const std::string as_written = in_utf8(bytes);
  log.file = file;
  const std::string plain = without_launcher_tags(
      as_written, [](std::string_view line) { return log_format_of(line).has_value(); });
  const std::string_view text = plain;
  log.machine = printed_machine(as_written);
  log.format = format_of(text, file);
  OneRun one_run;
  const StepFormat format = step_format(log.format, text);
  log.value = format.value;
  StepLines steps(log, format);
  const auto read = [&](std::string_view line, int number) {
    // Behind "31" at the end of a log that was cut, "190.2" may have stood: no number counts that nothing ends.
    if (line.data() + line.size() == text.data() + text.size())
      line = line.substr(0, line.find_last_not_of("0123456789.,") + 1);
    const Place at{number, steps};
    read_parameters(line, number, log);
    if (log.format == LogFormat::megatron_lm || log.format == LogFormat::megatron_bridge)
      read_megatron(line, at, log);
    if (log.format == LogFormat::deepspeed) read_deepspeed(line, number, steps, log);
    if (log.format == LogFormat::torchtitan) read_torchtitan(line, number, steps, log);
    if (log.format == LogFormat::nanotron) read_nanotron(line, at, log);
    if (log.format == LogFormat::nemo) read_nemo(line, at, log);
    one_run.check(log, at);
  };
  // A progress bar begins its line again with a carriage return.
  each_line(text, [&](std::string_view line, int number) {
    for (std::size_t end = line.find('\r'); end != line.npos && end + 1 < line.size();
         end = line.find('\r')) {
      read(line.substr(0, end), number);
      line.remove_prefix(end + 1);
    }
    read(line, number);
  });
  if (log.steps.empty() && !log.unread.empty()) {
    Problem first = log.unread.front();
    first.hint = "no step of this log can be read: let the run log more of them";
    throw ConfigError(std::move(first));
  }
  if (log.steps.empty())
    throw ConfigError(Problem{file, "", "no step time that can be read", "at least one logged step", ""});
  return log;
}

RunLog read_run_log(const std::filesystem::path& path) {
  return parse_run_log(read_text_file(path), path.string());
}

}  // namespace sextant

#include "planner/calibration/run_log.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "core/base/error.hpp"
#include "core/base/file_io.hpp"
#include "planner/calibration/launcher_tags.hpp"
#include "planner/calibration/log_deepspeed.hpp"
#include "planner/calibration/log_parameters.hpp"
#include "planner/calibration/log_steps.hpp"
#include "planner/calibration/log_text.hpp"
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
    Argument{"padded_vocab_size", "vocab"},
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
  // In the order that they are printed, by name: bf16, fp16, fp8.
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
  if (const auto gpus = number_after(line, "using world size:")) log.says["gpus"] = std::llround(*gpus);
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

// "[ 'dp_shard', 'tp'], [4, 2]" or "pp=1, dp_replicate=1, dp_shard=2, cp=1, tp=1".
void read_mesh(std::string_view line, RunLog& log) {
  std::map<std::string, std::int64_t> mesh;
  if (line.find("dp_shard=") != std::string_view::npos) {
    for (const char* axis : {"pp", "dp_replicate", "dp_shard", "cp", "tp"})
      if (const auto n = number_after(line, fmt::format("{}=", axis)); n && *n >= 1)
        mesh[axis] = std::llround(*n);
  } else {
    const std::size_t names = line.find('['), numbers = line.rfind('[');
    if (names == std::string_view::npos || numbers <= names) return;
    std::vector<std::string> axes;
    for (std::size_t at = line.find('\'', names); at < numbers;) {
      const std::size_t end = line.find('\'', at + 1);
      if (end == std::string_view::npos || end > numbers) break;
      axes.emplace_back(line.substr(at + 1, end - at - 1));
      at = line.find('\'', end + 1);
    }
    std::string_view rest = line.substr(numbers + 1);
    for (const std::string& axis : axes) {
      std::int64_t n = 0;
      rest.remove_prefix(std::min(rest.find_first_of("0123456789"), rest.size()));
      const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), n);
      if (error != std::errc()) return;
      rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
      mesh[axis] = n;
    }
  }
  const auto of = [&](const char* axis) { return mesh.contains(axis) ? mesh.at(axis) : 1; };
  log.says["tp"] = of("tp"), log.says["pp"] = of("pp"), log.says["cp"] = of("cp");
  log.says["dp"] = of("dp_shard") * of("dp_replicate") * of("dp");
  log.says["shard_degree"] = of("dp_shard") * of("dp");
  log.says["zero_stage"] = log.says["shard_degree"] > 1 ? 3 : 0;
  if (log.says["tp"] > 1) log.says["sequence_parallel"] = 1;
}

// "Applied full activation checkpointing to the model"; which layers or operations "selective" keeps is in the printed
// configuration, if that is printed.
void read_torchtitan_recompute(std::string_view line, RunLog& log) {
  const auto has = [&](std::string_view text) { return line.find(text) != std::string_view::npos; };
  if (has("activation checkpointing to the model")) {
    if (has("Applied full") || has("Applied FullAC")) log.says["recompute"] = 2;
    if (has("Applied selective") || has("Applied SelectiveAC")) log.says["recompute"] = 1;
    if (has("Applied SelectiveAC")) log.says["recompute_every"] = 0;  // from 2026 on by operation alone
  }
  if (const std::size_t option = line.find("selective_ac_option"); option != std::string_view::npos) {
    std::string_view value = line.substr(option + std::string_view("selective_ac_option").size());
    value.remove_prefix(std::min(value.find_first_not_of("\"': ="), value.size()));
    value = value.substr(0, value.find_first_of("\"', }\r"));
    if (const auto every = whole_number(value); every && *every > 0)
      log.says["recompute_every"] = *every;
    else if (value == "op")
      log.says["recompute_every"] = 0;
  }
}

void read_torchtitan(std::string_view line, const Place& at, RunLog& log) {
  // "CUDA capacity: NVIDIA H100 with 95.00GiB memory"
  constexpr std::string_view kCapacity = "CUDA capacity: ";
  if (const std::size_t device = line.find(kCapacity); device != std::string_view::npos) {
    const std::string_view rest = line.substr(device + kCapacity.size());
    log.device = std::string(rest.substr(0, rest.find(" with ")));
    if (const auto gib = number_after(rest, " with ")) log.device_GiB = *gib;
  }
  if (line.find("device mesh") != std::string_view::npos) read_mesh(line, log), at.steps.starts();
  read_torchtitan_recompute(line, log);
  read_torchtitan_kernels(line, log.kernels);
  if (line.find("Applied CPU Offloading to the model") != std::string_view::npos)
    log.says["optimizer_offload"] = log.says["parameter_offload"] = 1;
  if (line.find("Float8") != std::string_view::npos && line.find("training active") != std::string_view::npos)
    log.compute = Dtype::fp8;
  if (line.find("Tensor Parallelism to the model") != std::string_view::npos)
    log.says["overlap_tp"] = line.find("Async") != std::string_view::npos ? 1 : 0;
  if (const auto n = number_after(line, "gradient accumulation steps")) log.accumulation = std::llround(*n);
  for (const auto& [label, column] : {std::pair{"local batch size", "micro_batch"},
                                      {"global batch size", "global_batch"},
                                      {"sequence length", "seq_len"},
                                      {"maximum context length", "seq_len"}})
    if (const auto n = number_after(line, label)) log.says[column] = std::llround(*n);
  // From 2026 on: "initialized with 8192 tokens per DP rank, 65536 tokens per train step, ... maximum context length 8192".
  if (const auto n = number_after(line, "tokens per DP rank, ")) log.batch_tokens = *n;
  // With pipeline stages they are those of several micro-batches.
  const bool stages = log.says.contains("pp") && log.says.at("pp") > 1;
  if (line.find("tokens per DP rank") != std::string_view::npos && !stages && log.says.contains("seq_len"))
    if (const auto n = number_after(line, "initialized with "))
      log.says["micro_batch"] = std::max(1LL, std::llround(*n / static_cast<double>(log.says.at("seq_len"))));
  if (line.find("step:") == std::string_view::npos || line.find("validate step:") != std::string_view::npos)
    return;
  if (line.find("tps:") != std::string_view::npos || line.find("wps:") != std::string_view::npos ||
      line.find("loss:") != std::string_view::npos) {
    const auto number = number_after(line, "step:");
    at.steps.read(line, at.line, number ? std::optional(std::llround(*number)) : std::nullopt);
  }
  if (const auto gib = number_after(line, "memory:"); gib && line.find("GiB") != std::string_view::npos) {
    keep_largest(log.peak_memory_GiB, *gib);
    log.memory_kind = "torch_reserved";
  }
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

// What is stated before the first step holds for all: a value that another step was run with is another run's.
class OneRun {
 public:
  void check(const RunLog& log, const Place& at) {
    const std::size_t steps = log.steps.size();
    if (log.says != last_) {
      for (const auto& [column, value] : log.says)
        if (const auto it = last_.find(column); it == last_.end() || it->second != value)
          line_[column] = at.line;
      last_ = log.says;
    }
    if (steps == steps_) return;
    steps_ = steps;
    if (first_.empty()) first_ = log.says;
    for (const auto& [column, value] : first_)
      if (log.says.at(column) != value)
        throw ConfigError(Problem{fmt::format("{}:{}", log.file, line_.at(column)), column,
                                  fmt::format("{}", log.says.at(column)),
                                  fmt::format("{}, as the steps before were run with", value),
                                  "two runs in one file, or a growing batch: one file for each"});
  }

 private:
  std::size_t steps_ = 0;
  std::map<std::string, std::int64_t> first_, last_;
  std::map<std::string, int> line_;
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

RunLog parse_run_log(std::string_view as_written, const std::string& file) {
  RunLog log;
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
    if (log.format == LogFormat::torchtitan) read_torchtitan(line, at, log);
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

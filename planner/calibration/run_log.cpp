#include "planner/calibration/run_log.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.hpp"
#include "core/base/packed_text.hpp"
#include "planner/calibration/launcher_tags.hpp"
#include "planner/calibration/log_deepspeed.hpp"
#include "planner/calibration/log_megatron.hpp"
#include "planner/calibration/log_model.hpp"
#include "planner/calibration/log_nanotron.hpp"
#include "planner/calibration/log_parameters.hpp"
#include "planner/calibration/log_settled.hpp"
#include "planner/calibration/log_steps.hpp"
#include "planner/calibration/log_text.hpp"
#include "planner/calibration/log_torchtitan.hpp"
#include "planner/calibration/unread_log.hpp"

namespace sextant {

namespace {

// DeepSpeed until 0.7.6 (2022-12) printed the mean rate since its first steps alone: "0/40, SamplesPerSec=83.5, MemAllocated=".
constexpr std::string_view kSamplesOf2022 = " SamplesPerSec=";

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

// Of the text: torchtitan counted words until the end of 2024, bigscience's Megatron-DeepSpeed prints seconds,
// DeepSpeed's pipeline engine prints times, and NeMo's progress bar writes
// "=" where its lines have ":".
StepFormat step_format(LogFormat format, std::string_view text) {
  if (format == LogFormat::torchtitan && text.find("tps:") == std::string_view::npos)
    return {"wps:", "tokens per second above 0", 1, StepValue::tokens_per_s_of_gpu};
  if (format == LogFormat::megatron_lm &&
      text.find("elapsed time per iteration (ms):") == std::string_view::npos)
    return {"elapsed time per iteration (s):", "seconds above 0", 1};
  if (format == LogFormat::deepspeed && text.find("iter time (s):") != std::string_view::npos)
    return {"iter time (s):", "seconds above 0", 1};
  if (format == LogFormat::deepspeed && text.find("CurrSamplesPerSec=") == std::string_view::npos)
    return {kSamplesOf2022, "sequences per second above 0", 1, StepValue::sequences_per_s};
  if (format == LogFormat::nemo && text.find("train_step_timing in s:") == std::string_view::npos)
    return {"train_step_timing in s=", "seconds above 0", 1};
  return step_format(format);
}

// "Training epoch 0, iteration 45/99 | ... | global_batch_size: 128 | global_step: 45 | max_memory_reserved: 127785762816 | ... |
// train_step_timing in s: 6.08 |", or "Epoch 0: :  47%|###   | 7/15 [06:19<07:13, ..., global_step=5.000, consumed_samples=12288.0,
// train_step_timing in s=49.50]". A bar repeats a step; one that is above 999 is rounded ("2e+3").
void read_nemo(std::string_view line, int at, StepLines& steps, RunLog& log) {
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
  const auto samples = number_after(line, bar ? "consumed_samples=" : "consumed_samples:");
  // A bar rounds what is above 999: "2e+3".
  if (number && samples && line.find("e+") == std::string_view::npos)
    steps.consumed(std::llround(*number), *samples, std::nullopt, at);
  steps.read(line, at, number ? std::optional(std::llround(*number)) : std::nullopt);
}

LogFormat format_of(std::string_view text, const std::string& file) {
  if (const auto format = log_format_of(text)) return *format;
  throw ConfigError(unread_log(text, file));
}

// Where the log says what. What is stated before the first step holds for all: a value that another step was run with is another
// run's.
class OneRun {
 public:
  void check(RunLog& log, int at) {
    const std::size_t steps = log.steps.size();
    if (log.says != last_) {
      for (const auto& [column, value] : log.says)
        if (const auto it = last_.find(column); it == last_.end() || it->second != value)
          log.lines[column] = at;
      last_ = log.says;
    }
    for (const auto& [key, said, was] : {std::tuple{"compute", log.compute, &compute_},
                                         {"gradient", log.gradient, &gradient_},
                                         {"reduction", log.reduction, &reduction_}})
      if (said != std::exchange(*was, said)) log.lines[key] = at;
    if (steps == steps_) return;
    steps_ = steps;
    if (first_.empty()) first_ = log.says;
    for (const auto& [column, value] : first_)
      if (const auto now = log.says.find(column); now == log.says.end() || now->second != value)
        throw ConfigError(Problem{fmt::format("{}:{}", log.file, log.lines.at(column)), column,
                                  now == log.says.end() ? "nothing" : fmt::format("{}", now->second),
                                  fmt::format("{}, as the steps before were run with", value),
                                  "two runs in one file, or a growing batch: one file for each"});
  }

 private:
  std::size_t steps_ = 0;
  std::map<std::string, std::int64_t> first_, last_;
  std::optional<Dtype> compute_, gradient_, reduction_;
};

}  // namespace

std::optional<std::int64_t> RunLog::said(const std::string& column) const {
  const auto it = says.find(column);
  return it == says.end() ? std::nullopt : std::optional(it->second);
}

std::string RunLog::place_of(const std::string& column) const {
  const auto line = lines.find(column);
  return line == lines.end() ? file : fmt::format("{}:{}", file, line->second);
}

std::optional<LogFormat> log_format_of(std::string_view text) {
  const auto has = [&](std::string_view words) { return text.find(words) != std::string_view::npos; };
  if (has("elapsed time per iteration (ms):"))
    return has("MODEL_TFLOP/s/GPU") ? LogFormat::megatron_bridge : LogFormat::megatron_lm;
  if (has("elapsed time per iteration (s):"))
    return LogFormat::megatron_lm;  // bigscience's Megatron-DeepSpeed
  if (has("time_per_iteration_ms:")) return LogFormat::nanotron;
  if (has("step:") && (has("tps:") || has("wps:"))) return LogFormat::torchtitan;
  if (has("CurrSamplesPerSec=") || has(kSamplesOf2022) || (has("iter time (s):") && has("samples/sec:")))
    return LogFormat::deepspeed;
  if (has("train_step_timing in s:") || has("train_step_timing in s=")) return LogFormat::nemo;
  return std::nullopt;
}

RunLog parse_run_log(std::string_view bytes, const std::string& file) {
  RunLog log;
  const std::string as_written = in_utf8(bytes);
  log.file = file;
  std::vector<LineTag> tags;
  const std::string plain = without_launcher_tags(
      as_written, [](std::string_view line) { return log_format_of(line).has_value(); }, &tags);
  for (const LineTag& tag : tags) log.tasks = std::max(log.tasks, tag.task.value_or(-1) + 1);
  const std::string_view text = plain;
  log.machine = printed_machine(as_written);
  log.format = format_of(text, file);
  OneRun one_run;
  const StepFormat format = step_format(log.format, text);
  log.value = format.value;
  StepLines steps(log, format);
  DeepSpeedLines deepspeed;
  const auto read = [&](std::string_view line, int number) {
    // Behind "31" at the end of a log that was cut, "190.2" may have stood: no number counts that nothing ends.
    if (line.data() + line.size() == text.data() + text.size())
      line = line.substr(0, line.find_last_not_of("0123456789.,") + 1);
    const auto peak = std::exchange(log.peak_memory_GiB, std::nullopt);
    read_parameters(line, number, log);
    read_padded_vocabulary(line, log);
    if (log.format == LogFormat::megatron_lm || log.format == LogFormat::megatron_bridge)
      read_megatron(line, number, steps, log);
    if (log.format == LogFormat::megatron_lm) deepspeed.read_configuration(line, log);
    if (log.format == LogFormat::deepspeed) deepspeed.read(line, number, steps, log);
    if (log.format == LogFormat::torchtitan) read_torchtitan(line, number, steps, log);
    if (log.format == LogFormat::nanotron) read_nanotron(line, number, steps, log);
    if (log.format == LogFormat::nemo) read_nemo(line, number, steps, log);
    if (const auto at = static_cast<std::size_t>(number - 1);
        log.peak_memory_GiB && at < tags.size() && tags[at] != LineTag{})
      log.memory_tags.insert(tags[at]);
    if (peak) keep_largest(log.peak_memory_GiB, *peak);
    one_run.check(log, number);
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
  say_settled(log);
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
  return parse_run_log(read_packed_text(path), path.string());
}

}  // namespace sextant

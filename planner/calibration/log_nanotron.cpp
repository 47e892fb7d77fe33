#include "planner/calibration/log_nanotron.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "planner/calibration/log_settled.hpp"
#include "planner/calibration/log_text.hpp"

namespace sextant {

namespace {

// Of "[INFO|DP=0|PP=1|TP=0|ip-26-0-160-225]".
std::optional<int> tagged_rank(std::string_view line, std::string_view axis) {
  const std::size_t open = line.find("[INFO|"), close = line.find(']', std::min(open, line.size()));
  if (open == std::string_view::npos || close == std::string_view::npos) return std::nullopt;
  return count_after(line.substr(open, close - open), fmt::format("|{}=", axis));
}

// Steps are printed by the last stage, which computes the loss (trainer.py, logger_ranks); until March 2025 they had the batch in
// sequences, and so tokens over samples is the sequence length.
void read_arithmetic(std::string_view line, int at, RunLog& log) {
  constexpr int kDigits = 3;  // human_format
  const auto rate = range_after(line, "tokens_per_sec:", kDigits),
             of_gpu = range_after(line, "tokens_per_sec_per_gpu:", kDigits),
             ms = range_after(line, "elapsed_time_per_iteration_ms:", kDigits),
             batch = range_after(line, "global_batch_size:", kDigits);
  if (rate && of_gpu) settle(log, "gpus", quotient(*rate, *of_gpu), "tokens/s over tokens/s of a GPU", at);
  if (rate && ms && batch) {
    const PrintedRange tokens = product(*rate, {ms->low / 1000, ms->high / 1000});
    const auto exact = number_after(line, "global_batch_size:");
    const PrintedRange sequences = *exact < 1000 ? PrintedRange{*exact, *exact} : *batch;
    settle(log, "seq_len", quotient(tokens, sequences), "tokens over sequences of a step", at);
  }
  if (const auto stage = tagged_rank(line, "PP"))
    settle(log, "pp", {*stage + 1.0, *stage + 1.0}, "the last stage prints the steps: its tag", at);
}

// Printed with three digits: "1.02K" is any batch from 1015 to 1025.
// In sequences beside "elapsed_time_per_iteration_ms", in tokens since that is "time_per_iteration_ms".
void read_batch(std::string_view line, RunLog& log) {
  const auto batch = number_after(line, "global_batch_size:");
  if (!batch) return;
  if (line.find("elapsed_time_per_iteration_ms:") == std::string_view::npos) {
    log.batch_tokens = *batch;
  } else {
    log.says["global_batch"] = std::llround(*batch);
    log.rounded_batch = *batch >= 1000;
  }
}

// Sizes in its configuration, as YAML or as a printed dataclass.
void read_sizes(std::string_view line, RunLog& log) {
  for (const auto& [label, column] : {std::pair{"micro_batch_size", "micro_batch"},
                                      {"sequence_length", "seq_len"},
                                      {"zero_stage", "zero_stage"},
                                      {"num_hidden_layers", "layers"},
                                      {"num_attention_heads", "heads"},
                                      {"num_key_value_heads", "kv_heads"},
                                      {"hidden_size", "hidden"},
                                      {"intermediate_size", "ffn_hidden"},
                                      {"vocab_size", "plain_vocab"},
                                      {"num_layers", "layers"},
                                      {"seq_len", "seq_len"},
                                      {" mbs", "micro_batch"},
                                      {"context_parallel_size", "cp"},
                                      {" cp", "cp"}})
    for (const char* sign : {":", "="})
      if (const auto n = number_after(line, fmt::format("{}{}", label, sign)))
        log.says[column] = std::llround(*n);
}

// Words in the same; `sign` stands between a key and its value.
void read_words(std::string_view line, const char* sign, RunLog& log) {
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

}  // namespace

void read_nanotron(std::string_view line, int at, StepLines& steps, RunLog& log) {
  if (line.find("ParallelismArgs(") != std::string_view::npos) steps.starts();
  const auto number = step_of_total(line, "iteration:");
  if (number || line.find(steps.label()) != std::string_view::npos) {
    steps.read(line, at, number);
    read_arithmetic(line, at, log);
    read_batch(line, log);
  }
  if (const auto bytes = number_after(line, "cuda_max_memory_reserved:")) {
    keep_largest(log.peak_memory_GiB, *bytes / 1073741824.0);
    log.memory_kind = "torch_reserved";
    if (const auto stage = tagged_rank(line, "PP")) log.memory_stages.insert(*stage);
  }
  read_sizes(line, log);
  for (const char* sign : {":", "="}) read_words(line, sign, log);
  if (line.find("ParallelismArgs(") == std::string_view::npos && line.find(':') == std::string_view::npos &&
      line.find('=') == std::string_view::npos)
    return;
  const std::string spaced = " " + std::string(line);  // "tp: 4 | pp: 1 | dp: 2" begins a line
  for (const char* axis : {"dp", "pp", "tp"})
    for (const auto& form :
         {fmt::format("({}=", axis), fmt::format(" {}=", axis), fmt::format(" {}: ", axis)})
      if (const auto n = number_after(spaced, form); n && *n >= 1) log.says[axis] = std::llround(*n);
}

}  // namespace sextant

// What a fuzzer feeds: each function reads arbitrary text with one parser. Bad input may only throw
// ConfigError; accepted input must be read back the same from what it is written as. A violation throws
// std::logic_error.
#pragma once

#include <array>
#include <string_view>

namespace sextant::fuzz {

void plan_key(std::string_view text);
void plan_limits(std::string_view text);  // of --fix and --limit
void work_key(std::string_view text);
void model_json(std::string_view text);  // Hugging Face, Meta and own form
void plan_json(std::string_view text);   // plan and training spec
void cluster_json(std::string_view text);
void stack_json(std::string_view text);
void plan_file(std::string_view text);
void runs_csv(std::string_view text);
void manifest(std::string_view text);  // of a checkpoint, behind its digest
void tokenizer_json(std::string_view text);
void tiktoken_ranks(std::string_view text);
void data_index(std::string_view text);
void safetensors(std::string_view bytes);     // a whole file
void sentencepiece(std::string_view bytes);   // a tokenizer.model
void token_shard(std::string_view bytes);     // a byte: how many documents; their ends; tokens
void text_documents(std::string_view bytes);  // a byte: unit, JSONL, --bad-text; then a file of text
void weight_index(std::string_view text);     // of a sharded checkpoint
void set_path(std::string_view text);         // KEY=VALUE of --set, on a cluster
void work_profile(std::string_view text);
void calibration_file(std::string_view text);
void run_log(std::string_view text);     // of training frameworks
void nccl_table(std::string_view text);  // printed, and as JSON
void cluster_events(std::string_view text);
void kineto_trace(std::string_view text);
void foreign_file(std::string_view text);  // a byte: the ending of its name; then the file of --from
void shell_script(std::string_view text);
void python_module(std::string_view text);

struct Target {
  std::string_view name;
  void (*run)(std::string_view);
};
inline constexpr std::array kTargets = {
    Target{"plan_key", plan_key},
    Target{"plan_limits", plan_limits},
    Target{"work_key", work_key},
    Target{"model_json", model_json},
    Target{"plan_json", plan_json},
    Target{"cluster_json", cluster_json},
    Target{"stack_json", stack_json},
    Target{"plan_file", plan_file},
    Target{"runs_csv", runs_csv},
    Target{"set_path", set_path},
    Target{"tokenizer_json", tokenizer_json},
    Target{"tiktoken_ranks", tiktoken_ranks},
    Target{"data_index", data_index},
    Target{"safetensors", safetensors},
    Target{"sentencepiece", sentencepiece},
    Target{"token_shard", token_shard},
    Target{"text_documents", text_documents},
    Target{"manifest", manifest},
    Target{"weight_index", weight_index},
    Target{"work_profile", work_profile},
    Target{"calibration_file", calibration_file},
    Target{"run_log", run_log},
    Target{"nccl_table", nccl_table},
    Target{"cluster_events", cluster_events},
    Target{"kineto_trace", kineto_trace},
    Target{"foreign_file", foreign_file},
    Target{"shell_script", shell_script},
    Target{"python_module", python_module},
};

}  // namespace sextant::fuzz

#include "tools/import/other_trainers.hpp"

#include <array>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/decimal.hpp"
#include "core/base/shallow_json.hpp"
#include "tools/import/config_text.hpp"
#include "tools/import/import_file.hpp"

namespace sextant {

namespace {

using nlohmann::json;

// The first value of that name, in whatever section; dashes and underscores are one. As text; empty: nothing, null or a section.
std::string value_of(const json& j, std::string_view name, int depth = 0) {
  const auto alike = [&](std::string_view key) {
    if (key.size() != name.size()) return false;
    for (std::size_t i = 0; i < key.size(); ++i)
      if (key[i] != name[i] && !(key[i] == '-' && name[i] == '_')) return false;
    return true;
  };
  if (!j.is_object() || depth > 6) return "";
  for (const auto& [key, value] : j.items())
    if (alike(key) && !value.is_structured() && !value.is_null())
      return value.is_string() ? value.get<std::string>() : value.dump();
  for (const auto& [key, value] : j.items())
    if (auto inner = value_of(value, name, depth + 1); !inner.empty()) return inner;
  return "";
}

bool has(const json& j, std::string_view path) {
  const json* at = &j;
  while (!path.empty()) {
    const std::size_t dot = std::min(path.find('.'), path.size());
    if (!at->is_object() || !at->contains(std::string(path.substr(0, dot)))) return false;
    at = &at->at(std::string(path.substr(0, dot)));
    path.remove_prefix(std::min(dot + 1, path.size()));
  }
  return true;
}

std::optional<long long> degree(const json& j, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names)
    if (const auto n = parse_count(value_of(j, name), 1 << 20); n && *n > 0) return n;
  return std::nullopt;
}

// Degrees under the names that trainers give them, as a key; `stage`: where nothing states it.
std::string key_of(const json& j, int stage) {
  std::string key;
  const auto add = [&](std::string_view part, std::optional<long long> n) {
    if (n) key += fmt::format("{}{}{}", key.empty() ? "" : ".", part, *n);
  };
  add("tp", degree(j, {"tensor_model_parallel_size", "tensor_parallel_degree", "tensor_parallel_size",
                       "model_parallel_size", "tp_size"}));
  add("pp", degree(j, {"pipeline_model_parallel_size", "pipeline_parallel_degree", "pipe_parallel_size",
                       "pp_size"}));
  add("cp", degree(j, {"context_parallel_size", "context_parallel_degree", "cp_size"}));
  if (const auto said = parse_count(value_of(j, "stage"), 3)) stage = static_cast<int>(*said);
  add("z", stage);
  add("mbs", degree(j, {"train_micro_batch_size_per_gpu", "micro_batch_size", "per_device_train_batch_size",
                        "device_train_microbatch_size"})
                 .value_or(1));
  return key;
}

struct Known {
  const char* what;
  bool (*is)(const json&);
  int stage;
};
constexpr std::array kKnown = {
    // DeepSpeed's keys stand in it beside its own.
    Known{"a GPT-NeoX configuration",
          [](const json& j) {
            return has(j, "pipe-parallel-size") || has(j, "pipe_parallel_size") ||
                   has(j, "model-parallel-size");
          },
          1},
    Known{"a NeMo 2 (NeMo-Run) recipe",
          [](const json& j) { return value_of(j, "_target_").starts_with("nemo"); }, 1},
    Known{"a torchtune configuration",
          [](const json& j) { return value_of(j, "_component_").starts_with("torchtune"); }, 3},
    Known{"a PaddleNLP configuration",
          [](const json& j) {
            return has(j, "per_device_train_batch_size") &&
                   (has(j, "tensor_parallel_degree") || has(j, "pipeline_parallel_degree") ||
                    has(j, "sharding"));
          },
          1},
    Known{"a LLaMA-Factory configuration", [](const json& j) { return has(j, "finetuning_type"); }, 3},
    Known{"an axolotl configuration",
          [](const json& j) {
            return has(j, "base_model") && (has(j, "sequence_len") || has(j, "micro_batch_size"));
          },
          3},
    Known{"an OLMo configuration",
          [](const json& j) { return has(j, "device_train_microbatch_size") && has(j, "model.d_model"); }, 3},
    Known{"an llm-foundry configuration",
          [](const json& j) {
            return has(j, "device_train_microbatch_size") ||
                   (has(j, "max_seq_len") && has(j, "fsdp_config")) || has(j, "variables.max_seq_len");
          },
          3},
    Known{"a MaxText configuration",
          [](const json& j) {
            return has(j, "ici_fsdp_parallelism") || has(j, "ici_tensor_parallelism") ||
                   has(j, "dcn_data_parallelism");
          },
          3},
    Known{"a Levanter configuration",
          [](const json& j) {
            return has(j, "trainer.train_batch_size") || has(j, "trainer.mp") ||
                   has(j, "trainer.tensor_parallel_axes");
          },
          3},
    Known{"a veRL configuration", [](const json& j) { return has(j, "actor_rollout_ref"); }, 3},
    Known{"a LitGPT configuration",
          [](const json& j) {
            return has(j, "train.micro_batch_size") && !has(j, "model.tensor_model_parallel_size");
          },
          3},
    Known{"a Lightning configuration",
          [](const json& j) {
            return has(j, "trainer.strategy") && has(j, "trainer.devices") && !has(j, "model.optim");
          },
          3},
    Known{"a SageMaker model-parallel configuration",
          [](const json& j) { return has(j, "hybrid_shard_degree"); }, 3},
    Known{"an FSDP section of accelerate or of transformers' Trainer",
          [](const json& j) {
            return has(j, "fsdp_sharding_strategy") || has(j, "fsdp_auto_wrap_policy") ||
                   has(j, "fsdp_transformer_layer_cls_to_wrap") || has(j, "transformer_layer_cls_to_wrap");
          },
          3},
    Known{"arguments of transformers' Trainer",
          [](const json& j) { return has(j, "per_device_train_batch_size") || has(j, "_n_gpu"); }, 3},
};

struct KnownText {
  const char* what;
  std::array<std::string_view, 2> words;  // both stand in it
};
constexpr std::array kKnownTexts = {
    KnownText{"a NeMo 2 (NeMo-Run) recipe", {"nemo_run", "nemo.collections"}},
    KnownText{"a NeMo 2 (NeMo-Run) recipe", {"MegatronStrategy(", "nemo"}},
    KnownText{"an InternEvo configuration", {"parallel = dict(", "zero1"}},
    KnownText{"a Colossal-AI program", {"HybridParallelPlugin(", "colossalai"}},
    KnownText{"a program of transformers' Trainer", {"TrainingArguments(", "transformers"}},
    KnownText{"a program of trl", {"SFTConfig(", "trl"}},
    KnownText{"a program of Lightning", {"FSDPStrategy(", "lightning"}}};

std::string how_to_state(const std::string& key, const std::string& deepspeed) {
  if (deepspeed.ends_with(".json"))
    return fmt::format("its layout is in the DeepSpeed configuration that it names: --from {} takes that",
                       deepspeed);
  return fmt::format(
      "it is not read: state its layout as a key, --plan {}, with --model, --seq-len and --global-batch",
      key);
}

}  // namespace

std::optional<OtherTrainer> other_trainer(const std::string& text) {
  if (text.size() > kLongestFile) return std::nullopt;
  std::vector<json> readings;
  if (json j = json_or_discarded(text); j.is_object()) readings.push_back(std::move(j));
  if (readings.empty())
    if (auto yaml = yaml_settings(text)) readings.push_back(*std::move(yaml));
  for (const json& j : readings)
    for (const Known& known : kKnown)
      if (known.is(j))
        return OtherTrainer{known.what, how_to_state(key_of(j, known.stage), value_of(j, "deepspeed"))};
  const std::string_view head = std::string_view(text).substr(0, 1 << 16);
  for (const KnownText& known : kKnownTexts)
    if (head.find(known.words[0]) != head.npos && head.find(known.words[1]) != head.npos)
      return OtherTrainer{known.what, how_to_state("tp2.pp2.z1.mbs1, say", "")};
  return std::nullopt;
}

}  // namespace sextant

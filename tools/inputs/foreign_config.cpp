#include "tools/inputs/foreign_config.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.hpp"
#include "core/base/file_io.hpp"
#include "core/plan/parallel_plan.hpp"
#include "tools/import/import_megatron.hpp"
#include "tools/import/shell_script.hpp"

namespace sextant {

namespace {

// DeepSpeed's ds_config.json (runtime/config.py, zero/config.py): what of it a key says.
std::string key_of_deepspeed(const nlohmann::json& j) {
  std::string key;
  const nlohmann::json zero = j.value("zero_optimization", nlohmann::json::object());
  if (zero.is_object() && zero.contains("stage") && zero["stage"].is_number_integer())
    key += fmt::format("z{}", zero["stage"].get<int>());
  if (const auto micro = j.find("train_micro_batch_size_per_gpu");
      micro != j.end() && micro->is_number_integer())
    key += fmt::format("{}mbs{}", key.empty() ? "" : ".", micro->get<int>());
  const auto on_host = [&](const char* what) {
    if (!zero.is_object() || !zero.contains(what) || !zero[what].is_object()) return false;
    const nlohmann::json& device = zero[what].value("device", nlohmann::json());
    return device == "cpu" || device == "nvme";
  };
  if (on_host("offload_optimizer")) key += ".oo100";
  if (on_host("offload_param")) key += ".po";
  return key.starts_with('.') ? key.substr(1) : key;
}

std::string sentence(std::string_view what, const std::string& key) {
  return fmt::format("it looks like {}; state it as a key{}", what,
                     key.empty() ? ", such as tp4.pp2.z1.mbs1" : ": " + key);
}

struct Sign {
  std::string_view text, what;
  bool imported = false;  // --from reads it
};
// Words that stand in no plan file; the first that is found counts.
constexpr std::array kSigns = {
    Sign{"--tensor-model-parallel-size", "a Megatron-LM command line", true},
    Sign{"--pipeline-model-parallel-size", "a Megatron-LM command line", true},
    Sign{"data_parallel_shard_degree", "a torchtitan configuration"},
    Sign{"[parallelism]", "a torchtitan configuration"},
    Sign{"[activation_checkpoint]", "a torchtitan configuration"},
    Sign{"tp_linear_async_communication", "a nanotron configuration"},
    Sign{"batch_accumulation_per_replica", "a nanotron configuration"},
    Sign{"distributed_type:", "an accelerate configuration"},
    Sign{"fsdp_config:", "an accelerate configuration"},
    Sign{"tensor_model_parallel_size:", "a NeMo configuration"},
};

}  // namespace

std::optional<std::string> foreign_config(const std::filesystem::path& path) {
  std::string text;
  try {
    text = read_text_file(path);
  } catch (const ConfigError&) {
    return std::nullopt;  // whoever reads it as a plan says why
  }
  const nlohmann::json j = nlohmann::json::parse(text, nullptr, false, true);
  if (j.is_object()) {
    if (j.contains("schema")) return std::nullopt;
    if (j.contains("zero_optimization") || j.contains("train_micro_batch_size_per_gpu") ||
        j.contains("train_batch_size"))
      return sentence("a DeepSpeed configuration", key_of_deepspeed(j));
    if (j.contains("model_type") && j.contains("hidden_size"))
      return "it looks like a model: --model takes it";
    if (j.contains("device") && j.contains("node")) return "it looks like a cluster: --cluster takes it";
    return std::nullopt;
  }
  for (const Sign& sign : kSigns)
    if (text.find(sign.text) != std::string::npos)
      return sign.imported ? fmt::format("it looks like {}: --from takes it", sign.what)
                           : sentence(sign.what, "");
  if (is_megatron_command(training_command(read_shell_script(text, path, {}))))
    return "it looks like a Megatron-LM command line: --from takes it";
  return std::nullopt;
}

std::optional<std::string> key_of_assignments(const std::string& text) {
  if (text.find('=') == std::string::npos) return std::nullopt;
  std::string key;
  for (const char c : text) {
    if (c == '=' || c == ' ') continue;
    key += c == ',' ? '.' : c;
  }
  try {
    parse_plan_key(key);
  } catch (const ConfigError&) {
    return std::nullopt;
  }
  return key;
}

}  // namespace sextant

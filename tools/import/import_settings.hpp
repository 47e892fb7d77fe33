// Configurations of each framework as training runs. Each takes the settings as JSON, whatever language they were written in, and
// throws ConfigError, naming `file`, for values that cannot be.
#pragma once

#include <filesystem>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "tools/import/command_flags.hpp"
#include "tools/import/imported_run.hpp"

namespace sextant {

struct ImportSource {
  std::string file;               // for messages
  std::filesystem::path presets;  // where models that a file names by a word are found
  int layers = 0;  // of the model that is named beside the file, and wins over its own; 0: none is
};

// torchtitan: sections of its TOML up to v0.2.2 (torchtitan/config/job_config.py), and what python_settings() makes of a
// function that returns Trainer.Config (b5bcd76, torchtitan/config/configs.py).
bool is_torchtitan(const nlohmann::json& settings);
ImportedRun import_torchtitan(const nlohmann::json& settings, const ImportSource&);

// nanotron 2411b02, src/nanotron/config.
bool is_nanotron(const nlohmann::json& settings);
ImportedRun import_nanotron(const nlohmann::json& settings, const ImportSource&);

// DeepSpeed edaa722, deepspeed/runtime/config.py and zero/config.py; `command`: the program that is started with it, whose options
// (of Hugging Face's Trainer and DeepSpeed-Chat) say what the file leaves to it. Both may be empty.
bool is_deepspeed(const nlohmann::json& settings);
ImportedRun import_deepspeed(const nlohmann::json& settings, const CommandFlags& command,
                             const ImportSource&);

// accelerate 16cb6eb, the file of `accelerate config`.
bool is_accelerate(const nlohmann::json& settings);
ImportedRun import_accelerate(const nlohmann::json& settings, const ImportSource&);

// Megatron-Bridge 067f987: ConfigContainer.print_yaml().
bool is_bridge(const nlohmann::json& settings);
ImportedRun import_bridge(const nlohmann::json& settings, const ImportSource&);

// NeMo 1 (v1.23 to v2.0): conf/megatron_gpt_config.yaml and its likes.
bool is_nemo(const nlohmann::json& settings);
ImportedRun import_nemo(const nlohmann::json& settings, const ImportSource&);

// Megatron-LM's --yaml-cfg: examples/gpt3/gpt_config.yaml.
bool is_megatron_yaml(const nlohmann::json& settings);
ImportedRun import_megatron_yaml(const nlohmann::json& settings, const ImportSource&);

// "meta-llama/Llama-2-7b-hf" as the preset llama-2-7b; empty where there is none of that name.
std::string preset_of_name(const std::string& name, const std::filesystem::path& presets);

}  // namespace sextant

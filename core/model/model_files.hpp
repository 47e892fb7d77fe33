// A model from what its user has: a preset name, a Hugging Face config.json or checkpoint folder, Meta's
// params.json, or our own JSON. What is not known is refused with the list of what is; nothing is guessed.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/model/model_spec.hpp"

namespace sextant {

// `presets` is the folder that holds models/*.json. A word that names a preset means the preset; write ./word
// for a folder of that name. The weights' total size, where a checkpoint folder states it, must fit the
// shape. `notes`: what was taken for granted, each "KEY: text".
ModelSpec load_model(std::string_view name_or_path, const std::filesystem::path& presets,
                     std::vector<std::string>* notes = nullptr);

// Any of the three file forms, told apart by their keys. `name` is used when the file has none.
ModelSpec model_from_json(const nlohmann::json&, const std::string& name,
                          std::vector<std::string>* notes = nullptr);

// Hugging Face config.json of model_type llama, gpt2 or bloom; v4 and v5 spellings; absent llama fields have
// the defaults of transformers' LlamaConfig. Keys that make another architecture of it are refused.
ModelSpec model_from_hugging_face(const nlohmann::json&, const std::string& name,
                                  std::vector<std::string>* notes = nullptr);

// Meta's params.json of LLaMA 1, 2, 3, 3.1, 3.2 (text) checkpoints.
ModelSpec model_from_meta(const nlohmann::json&, const std::string& name,
                          std::vector<std::string>* notes = nullptr);

}  // namespace sextant

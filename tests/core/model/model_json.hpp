// A config.json of LLaMA's to change, and what is said of it.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/base/error.hpp"
#include "core/model/model_files.hpp"

namespace sextant {

namespace fs = std::filesystem;

using nlohmann::json;

inline const fs::path kPresets = fs::path(SEXTANT_SOURCE_DIR) / "tools/presets";

inline ModelSpec preset(const char* name) { return load_model(name, kPresets); }

// Names, and how a checkpoint is called, are beside the point of these tests.
inline ModelSpec named(ModelSpec m, std::string name) {
  m.name = std::move(name);
  return m;
}

inline std::string error_of(const json& j) {
  try {
    model_from_json(j, "m");
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "accepted";
}

inline std::vector<std::string> notes_of(const json& j) {
  std::vector<std::string> notes;
  model_from_json(j, "m", &notes);
  return notes;
}

inline bool has(const std::string& text, std::string_view part) { return text.find(part) != text.npos; }

// Llama-3.1-8B as transformers 4 wrote it.
inline json v4() {
  return json::parse(
      R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 128000, "eos_token_id": 128001, "hidden_act": "silu", "hidden_size": 4096,
    "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": false,
    "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "transformers_version": "4.43.0.dev0", "use_cache": true, "vocab_size": 128256})");
}

// The same as transformers 5 writes it.
inline json v5() {
  json j = v4();
  j["rope_parameters"] = j["rope_scaling"];
  j["rope_parameters"]["rope_theta"] = j["rope_theta"];
  j["dtype"] = j["torch_dtype"];
  j["head_dim"] = 128;
  for (const char* old : {"rope_scaling", "rope_theta", "torch_dtype"}) j.erase(old);
  return j;
}

}  // namespace sextant

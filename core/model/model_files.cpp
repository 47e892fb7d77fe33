#include "core/model/model_files.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/annotated.hpp"
#include "core/base/dtype.hpp"
#include "core/base/json_io.hpp"
#include "core/base/preset_path.hpp"
#include "core/model/model_names.hpp"

namespace sextant {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kForms =
    "a preset (sextant presets lists them), a Hugging Face config.json or checkpoint folder, Meta's "
    "params.json, or "
    "a model file of ours";

// Bytes of one element of the checkpoint, from config.json; 0 when it does not say, or is quantized.
int element_bytes(const json& config) {
  if (config.contains("quantization_config")) return 0;
  for (const char* key : {"dtype", "torch_dtype"})
    if (const auto at = config.find(key); at != config.end() && at->is_string()) {
      const std::string& dtype = at->get_ref<const std::string&>();
      if (dtype == "float16" || dtype == "bfloat16") return 2;
      if (dtype == "float32") return 4;
      if (dtype == "float64") return 8;
    }
  return 0;
}

// model.safetensors.index.json states the bytes of all tensors. Old checkpoints also hold the inverse
// frequencies of the rotary embedding of each layer, and some hold a tied head twice.
void check_total_size(const fs::path& folder, const json& config, const ModelSpec& model) {
  const fs::path index = folder / "model.safetensors.index.json";
  if (!fs::exists(index)) return;
  const json content = read_json_file(index);
  const json::json_pointer where("/metadata/total_size");
  if (!content.contains(where) || !content[where].is_number()) return;
  const auto found = content[where].get<double>();
  const int bytes = element_bytes(config);
  if (bytes == 0) return;
  const auto expected = static_cast<double>(parameter_counts(model).total) * bytes;
  const int pairs = model.head_dim / 2;  // that are rotated
  const double rotary = model.position == PositionKind::rope ? 4.0 * model.n_layers * pairs : 0;
  const double head =
      model.tied_embeddings ? static_cast<double>(model.vocab_size) * model.hidden * bytes : 0;
  const auto fits = [&](double base) { return found >= base && found <= base + rotary; };
  if (!fits(expected) && !fits(expected + head))
    throw ConfigError(Problem{index.string(), "metadata.total_size", fmt::format("{:.0f}", found),
                              fmt::format("{:.0f}: the {} parameters of config.json at {} bytes", expected,
                                          parameter_counts(model).total, bytes),
                              "the configuration does not describe these weights"});
}

using Notes = std::vector<std::string>;

ModelSpec load_file(const fs::path& file, const std::string& name, Notes* notes) {
  ModelSpec model;
  with_file(file.string(), [&] { model = model_from_json(read_json_file(file), name, notes); });
  return model;
}

ModelSpec load_folder(const fs::path& folder, Notes* notes) {
  const std::string name = fs::weakly_canonical(folder).filename().string();
  if (const fs::path file = folder / "config.json"; fs::exists(file)) {
    ModelSpec model = load_file(file, name, notes);
    check_total_size(folder, read_json_file(file), model);
    return model;
  }
  if (const fs::path file = folder / "params.json"; fs::exists(file)) return load_file(file, name, notes);
  throw ConfigError(Problem{folder.string(), "", "", "", "holds neither config.json nor params.json"});
}

bool looks_like_path(std::string_view text) {
  return text.starts_with('.') || text.starts_with('/') || text.starts_with('~') || text.ends_with(".json");
}

}  // namespace

ModelSpec model_from_json(const json& j, const std::string& name, Notes* notes) {
  if (!j.is_object()) throw ConfigError(Problem{"", "", "", "", "is not a JSON object"});
  refuse_plan_file(j);
  if (j.contains("model_type") || j.contains("architectures")) return model_from_hugging_face(j, name, notes);
  if (j.contains("dim")) return model_from_meta(j, name, notes);
  if (j.contains("hidden") || j.contains("n_layers") || j.contains("ffn_hidden")) {
    auto model = j.get<ModelSpec>();
    if (model.name.empty()) model.name = name;
    return model;
  }
  throw ConfigError(Problem{"", "", "", "",
                            "is not a model: expected model_type (Hugging Face), dim (Meta) or hidden (ours) "
                            "among its fields"});
}

ModelSpec load_model(std::string_view name_or_path, const fs::path& presets, Notes* notes) {
  const std::string text(name_or_path);
  if (text.empty()) throw ConfigError(Problem{"", "", "nothing", kForms, ""});
  if (!looks_like_path(text))
    if (const auto preset = find_preset(presets, "models", text))
      return load_file(*preset, preset->stem().string(), notes);
  const fs::path path(text);
  std::error_code none;
  if (fs::is_directory(path, none)) return load_folder(path, notes);
  if (looks_like_path(text) || fs::exists(path, none)) {
    const bool generic = path.filename() == "config.json" || path.filename() == "params.json";
    const fs::path named = generic ? fs::weakly_canonical(path).parent_path().filename() : path.stem();
    return load_file(path, named.string(), notes);
  }
  const UnknownModel unknown = unknown_model(text, presets);
  throw ConfigError(Problem{"", "", fmt::format("'{}'{}", text, unknown.what), kForms, unknown.hint});
}

}  // namespace sextant

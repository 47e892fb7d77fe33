#include "core/model/model_files.hpp"

#include <algorithm>
#include <cmath>
#include <regex>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/annotated.hpp"
#include "core/base/decimal.hpp"
#include "core/base/dtype.hpp"
#include "core/base/json_io.hpp"
#include "core/base/preset_path.hpp"
#include "core/base/words.hpp"

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

// Parameters that a name states, "llama-300b" and "1.3B", in billions; nothing of "llama-3" or "b200".
std::optional<double> billions_in(const std::string& name) {
  static const std::regex size("(^|[^a-z0-9.])([0-9]+(\\.[0-9]+)?)([bmt])($|[^a-z0-9])");
  std::smatch found;
  const std::string word = lower(name);
  if (!std::regex_search(word, found, size)) return std::nullopt;
  const auto number = parse_decimal(found[2].str());
  if (!number || *number <= 0) return std::nullopt;
  return *number * (found[4] == "t" ? 1e3 : found[4] == "m" ? 1e-3 : 1);
}

struct Sized {
  std::string name;
  ModelSpec model;
  double billions = 0;
};

std::vector<Sized> sized_presets(const fs::path& presets) {
  std::vector<Sized> all;
  for (const std::string& name : preset_names(presets, "models"))
    if (const auto file = find_preset(presets, "models", name)) {
      ModelSpec model = load_file(*file, name, nullptr);
      const double billions = 1e-9 * static_cast<double>(parameter_counts(model).total);
      all.push_back({name, std::move(model), billions});
    }
  return all;
}

// A size of which no preset is: those that come near, or how to describe such a model by the nearest one with more or fewer layers.
std::string model_of_size(double billions, const fs::path& presets) {
  const std::vector<Sized> all = sized_presets(presets);
  if (all.empty()) return "";
  constexpr double kAlike = 0.12;
  constexpr std::size_t kMost = 6;
  const auto apart = [&](const Sized& s) { return std::abs(std::log(s.billions / billions)); };
  std::vector<std::string> alike;
  for (const Sized& s : all)
    if (apart(s) < kAlike && alike.size() < kMost) alike.push_back(s.name);
  if (!alike.empty()) return fmt::format("did you mean {}?", any_of_words(alike));
  const Sized& near = *std::ranges::min_element(all, {}, apart);
  ModelSpec model = near.model;
  const ParameterCounts counts = parameter_counts(model);
  const double layer = static_cast<double>(counts.attention + counts.mlp) * 1e-9;
  const int layers = static_cast<int>(
      std::clamp(std::round(model.n_layers + (billions - near.billions) / layer), 1.0, 100000.0));
  model.n_layers = layers;
  const double makes = 1e-9 * static_cast<double>(parameter_counts(model).total);
  const bool shape = makes / billions > 1.2 || makes / billions < 1 / 1.2 || layers > 2 * near.model.n_layers;
  return fmt::format(
      "no preset has about {:g} billion parameters; the nearest is {} ({:.3g} billion). {}; the model's own "
      "config.json "
      "(--model FILE) is better, or --set model.hidden, model.n_heads, model.ffn_hidden and model.n_layers",
      billions, near.name, near.billions,
      shape ? "State its shape"
            : fmt::format("With {} layers it has {:.3g}: --model {} --set model.n_layers={}", layers, makes,
                          near.name, layers));
}

// What may have been meant by a name that is none: a slip of one of its size, a size, or a part of a name.
std::string hint_for(const std::string& name, const fs::path& presets) {
  const auto asked = billions_in(name);
  if (const std::string around = names_around(name, preset_names(presets, "models"));
      !asked && !around.empty())
    return fmt::format("did you mean {}?", around);
  const std::string near = nearest_preset(presets, {"models"}, name);
  const auto found = billions_in(near);
  const bool one_size = !asked || (found && std::abs(*found / *asked - 1) < 1e-9);
  if (!near.empty() && one_size) return fmt::format("did you mean {}?", near);
  if (!asked) return "";
  // A generation that has no such size has one near it.
  constexpr double kNear = 0.25;
  const std::string of_size = model_of_size(*asked, presets);
  return found && std::abs(std::log(*found / *asked)) < kNear
             ? fmt::format("did you mean {}? By its size: {}", near, of_size)
             : of_size;
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
  // Mixtures of experts, by what people call them: no dense model is meant.
  for (const char* experts : {"mixtral", "deepseek-v2", "deepseek-v3", "deepseek-r1", "dbrx", "grok",
                              "gpt-oss", "-a3b", "-a22b", "llama-4", "kimi", "moe", "switch-"})
    if (lower(text).find(experts) != std::string::npos)
      throw ConfigError(Problem{"", "", fmt::format("'{}', a mixture of experts", text), kForms,
                                "only dense models are planned (docs/models-and-limits.md)"});
  throw ConfigError(Problem{"", "", fmt::format("'{}'", text), kForms, hint_for(text, presets)});
}

}  // namespace sextant

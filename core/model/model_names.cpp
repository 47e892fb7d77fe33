#include "core/model/model_names.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <optional>
#include <regex>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/base/decimal.hpp"
#include "core/base/preset_path.hpp"
#include "core/base/words.hpp"
#include "core/model/hugging_face_families.hpp"
#include "core/model/model_files.hpp"

namespace sextant {
namespace {

namespace fs = std::filesystem;

// "llama-3-8b" of "meta-llama/Meta-Llama-3-8B": names of the hub have an owner.
std::string without_owner(const std::string& name) {
  const std::string word = lower(name.substr(name.find_last_of('/') + 1));
  constexpr std::string_view kMaker = "meta-";
  return word.starts_with(kMaker) ? word.substr(kMaker.size()) : word;
}

// The letters that a name begins with: "llama" of "Llama-2-7b".
std::string family_in(const std::string& name) {
  const std::string word = without_owner(name);
  return word.substr(
      0, static_cast<std::size_t>(
             std::ranges::find_if_not(word, [](unsigned char c) { return std::isalpha(c); }) - word.begin()));
}

// Without what training behind the first adds to a name, before its version or behind it; it leaves the shape.
std::string untuned(const std::string& name) {
  static const std::regex tuned("[-_](instruct|chat|base|hf|it)([-_]v0\\.[0-9])?$", std::regex::icase);
  std::string word = name;
  for (std::string shorter;; word = shorter)
    if (shorter = std::regex_replace(word, tuned, "$2"); shorter == word) return word;
}

// Without its version too, which may have another shape: Mistral's 0.3 has more words than 0.2.
std::string unversioned(const std::string& name) {
  static const std::regex version("[-_]v0\\.[0-9]$", std::regex::icase);
  return std::regex_replace(untuned(name), version, "");
}

// Mixtures of experts, by what people call them: no dense model is meant.
constexpr std::array kExpertNames = {"mixtral", "deepseek-v2", "deepseek-v3", "deepseek-r1", "dbrx",
                                     "grok",    "gpt-oss",     "-a3b",        "-a22b",       "llama-4",
                                     "kimi",    "moe",         "switch-"};

// Families whose names say what they are: the model_type of their config.json. Its parts that no ModelSpec can say are told; the
// others are read. Without one it has presets, which a slip or a size finds.
struct NamedFamily {
  std::string_view begins, model_type;
};
constexpr std::array kFamilies = {NamedFamily{"gemma3n", "gemma3n"},
                                  NamedFamily{"gemma3", "gemma3_text"},
                                  NamedFamily{"gemma2", "gemma2"},
                                  NamedFamily{"gemma", "gemma"},
                                  NamedFamily{"falcon", "falcon"},
                                  NamedFamily{"gptneox", "gpt_neox"},
                                  NamedFamily{"pythia", "gpt_neox"},
                                  NamedFamily{"gptj", "gptj"},
                                  NamedFamily{"opt", "opt"},
                                  NamedFamily{"starcoder2", "starcoder2"},
                                  NamedFamily{"starcoder", "gpt_bigcode"},
                                  NamedFamily{"mpt", "mpt"},
                                  NamedFamily{"chatglm", "chatglm"},
                                  NamedFamily{"glm4", "glm4"},
                                  NamedFamily{"stablelm", "stablelm"},
                                  NamedFamily{"granite", "granite"},
                                  NamedFamily{"smollm3", "smollm3"},
                                  NamedFamily{"commandr", "cohere"},
                                  NamedFamily{"nemotron", "nemotron"},
                                  NamedFamily{"mamba", "mamba"},
                                  NamedFamily{"jamba", "jamba"},
                                  NamedFamily{"exaone", "exaone4"},
                                  NamedFamily{"minicpm", "minicpm"},
                                  NamedFamily{"olmo3", "olmo3"},
                                  NamedFamily{"ministral", "ministral"},
                                  NamedFamily{"apertus", "apertus"},
                                  NamedFamily{"phi2", "phi"},
                                  NamedFamily{"phi1", "phi"},
                                  NamedFamily{"t5", "t5"},
                                  NamedFamily{"bert", "bert"},
                                  NamedFamily{"gpt2", "gpt2"},
                                  NamedFamily{"phi4", "phi3"},
                                  NamedFamily{"codellama", "llama"},
                                  NamedFamily{"tinyllama", "llama"},
                                  NamedFamily{"smollm", "llama"},
                                  NamedFamily{"vicuna", "llama"},
                                  NamedFamily{"openllama", "llama"},
                                  NamedFamily{"deepseekllm", "llama"},
                                  NamedFamily{"qwen25", ""},
                                  NamedFamily{"qwen2", "qwen2"},
                                  NamedFamily{"qwen15", "qwen2"},
                                  NamedFamily{"deepseekcoder", "llama"},
                                  NamedFamily{"solar", "llama"},
                                  NamedFamily{"codestral", "mistral"},
                                  NamedFamily{"seedoss", "seed_oss"}};

// What is known of the family that a name begins with; nothing of one that is not listed.
std::optional<UnknownModel> of_known_family(const std::string& name) {
  const std::string word = plain_word(without_owner(name));
  constexpr std::size_t kShort = 3;  // "opt" begins other words, too
  const auto family = std::ranges::find_if(kFamilies, [&](const NamedFamily& f) {
    return word.starts_with(f.begins) && (f.begins.size() > kShort || word.size() == f.begins.size() ||
                                          std::isdigit(static_cast<unsigned char>(word[f.begins.size()])));
  });
  if (family == kFamilies.end() || family->model_type.empty()) return std::nullopt;
  const MissingFeatures missing = missing_for(family->model_type);
  if (missing.what.empty())
    return UnknownModel{
        "", fmt::format("no preset has this model; its config.json is read (model_type {}): --model FILE",
                        family->model_type)};
  return UnknownModel{
      ", of a family that is not modelled",
      fmt::format("it needs {}{}", missing.what,
                  missing.costs_like_llama ? ". Nearly free: to plan it, state its sizes in a config.json of "
                                             "model_type llama, which has the same parameters"
                                           : "")};
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
  for (const std::string& name : preset_names(presets, "models")) {
    ModelSpec model = load_model(name, presets);
    const double billions = 1e-9 * static_cast<double>(parameter_counts(model).total);
    all.push_back({name, std::move(model), billions});
  }
  return all;
}

// A size of which no preset is: those that come near, or how to describe such a model by the nearest one with more or fewer layers.
// Another product's name is no suggestion: only presets of the family asked for may have been meant.
std::string model_of_size(const std::string& name, double billions, const fs::path& presets) {
  const std::vector<Sized> all = sized_presets(presets);
  if (all.empty()) return "";
  constexpr double kAlike = 0.12;
  constexpr std::size_t kMost = 6;
  const auto apart = [&](const Sized& s) { return std::abs(std::log(s.billions / billions)); };
  std::vector<std::string> alike;
  for (const Sized& s : all)
    if (apart(s) < kAlike && alike.size() < kMost) alike.push_back(s.name);
  const std::string family = family_in(name);
  std::vector<std::string> kin;
  for (const std::string& one : alike)
    if (family.empty() || family_in(one) == family) kin.push_back(one);
  if (!kin.empty()) return fmt::format("did you mean {}?", any_of_words(kin));
  if (!alike.empty())
    return fmt::format("its own config.json is exact: --model FILE. Of about its size: {}",
                       any_of_words(alike));
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
  if (const std::string same = untuned(name); same != name)
    for (const std::string& one : {same, without_owner(same)})
      if (const auto preset = find_preset(presets, "models", one))
        return fmt::format("did you mean {}? It has the same shape", preset->stem().string());
  if (const std::string other = unversioned(name); other != name)
    for (const std::string& one : {other, without_owner(other)})
      if (const auto preset = find_preset(presets, "models", one))
        return fmt::format(
            "did you mean {}? It is of another version, whose shape may differ: the model's own config.json "
            "(--model FILE) is exact",
            preset->stem().string());
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
  const std::string of_size = model_of_size(name, *asked, presets);
  return found && std::abs(std::log(*found / *asked)) < kNear
             ? fmt::format("did you mean {}? By its size: {}", near, of_size)
             : of_size;
}

}  // namespace

UnknownModel unknown_model(const std::string& name, const fs::path& presets) {
  for (const char* experts : kExpertNames)
    if (lower(name).find(experts) != std::string::npos)
      return {", a mixture of experts", "only dense models are planned (docs/models-and-limits.md)"};
  // A slip in a preset's name says more than how it begins: "qwen2-7b" is no preset, "qwen25-7b" is one's.
  if (auto known = of_known_family(name)) return *std::move(known);
  return {"", hint_for(name, presets)};
}

}  // namespace sextant

#include "tests/reference/fixtures.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>

#include <nlohmann/json.hpp>

namespace sextant::testing {

std::optional<std::filesystem::path> reference_folder() {
  if (const char* elsewhere = std::getenv("SEXTANT_REFERENCE"))
    if (std::filesystem::exists(std::filesystem::path(elsewhere) / "README.md")) return elsewhere;
  const std::filesystem::path source = SEXTANT_SOURCE_DIR;
  for (const char* up : {"../shared/reference", "../../shared/reference"})
    if (std::filesystem::exists(source / up / "README.md")) return source / up;
  return {};
}

ModelSpec read_hugging_face_config(const std::filesystem::path& path) {
  std::ifstream stream(path);
  const nlohmann::json j = nlohmann::json::parse(stream);
  ModelSpec m;
  m.n_layers = j.at("num_hidden_layers");
  m.hidden = j.at("hidden_size");
  m.n_heads = j.at("num_attention_heads");
  m.n_kv_heads = j.at("num_key_value_heads");
  m.head_dim = j.at("head_dim");
  m.ffn_hidden = j.at("intermediate_size");
  m.vocab_size = j.at("vocab_size");
  m.tied_embeddings = j.at("tie_word_embeddings");
  m.rope_theta = j.at("rope_theta");
  m.norm_eps = j.at("rms_norm_eps");
  if (const auto& s = j.at("rope_scaling"); !s.is_null())
    m.rope_scaling = RopeScaling{s.at("rope_type"), s.at("factor"), s.at("low_freq_factor"),
                                 s.at("high_freq_factor"), s.at("original_max_position_embeddings")};
  return m;
}

std::vector<double> read_doubles(const SafetensorsFile& file, const std::string& tensor) {
  const StoredTensor& t = file.require(tensor);
  const auto bytes = file.bytes(t);
  const auto dtype = dtype_of(t.type);
  SEXTANT_CHECK(dtype == Dtype::fp64 || dtype == Dtype::fp32, "a reference tensor of another format");
  const Matrix aligned(*dtype, 1, t.elements());
  std::memcpy(aligned.view().data, bytes.data(), bytes.size());
  return to_doubles(aligned.view());
}

std::vector<std::int32_t> read_tokens(const SafetensorsFile& file, const std::string& tensor) {
  const StoredTensor& t = file.require(tensor, StoredType::i64);
  std::vector<std::int64_t> wide(static_cast<std::size_t>(t.elements()));
  std::memcpy(wide.data(), file.bytes(t).data(), file.bytes(t).size());
  return {wide.begin(), wide.end()};
}

NamedTensors read_all(const SafetensorsFile& file, const std::string& prefix) {
  NamedTensors all;
  for (const StoredTensor& t : file.tensors())
    if (t.name.starts_with(prefix)) all[t.name.substr(prefix.size())] = read_doubles(file, t.name);
  return all;
}

GradientCase::GradientCase(const std::string& name) {
  const std::filesystem::path folder = *reference_folder() / name;
  model = read_hugging_face_config(folder / "config.json");
  weights = read_all(SafetensorsFile(folder / "model.safetensors"));
  const SafetensorsFile given(folder / "batch.safetensors"), expected(folder / "expected.safetensors");
  ids = read_tokens(given, "input_ids");
  targets = read_tokens(given, "targets");
  const auto& shape = given.require("input_ids").shape;
  batch = static_cast<int>(shape[0]);
  seq = static_cast<int>(shape[1]);
  gradients = read_all(expected, "grad.");
  logits = read_doubles(expected, "logits");
  loss = read_doubles(expected, "loss");
}

std::pair<double, std::string> furthest(const GradientCase& c, const StepResult& got) {
  constexpr double kMissing = std::numeric_limits<double>::infinity();
  std::pair<double, std::string> worst{relative_distance(std::vector{got.loss}, c.loss), "loss"};
  const auto take = [&](double distance, const std::string& what) {
    worst = std::max(worst, std::pair(distance, what));
  };
  if (!got.logits.empty()) take(relative_distance(got.logits, c.logits), "logits");
  for (const auto& [name, expected] : c.gradients) {
    const auto found = got.gradients.find(name);
    take(found == got.gradients.end() ? kMissing : relative_distance(found->second, expected), name);
  }
  for (const auto& [name, values] : got.gradients)
    if (!c.gradients.contains(name)) take(kMissing, name + ", which the reference does not have");
  return worst;
}

}  // namespace sextant::testing

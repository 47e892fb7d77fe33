// Key names and defaults: transformers' configuration_llama.py, configuration_gpt2.py and configuration_bloom.py (v4 and
// v5); those of LLaMA's family stand in hugging_face_families.cpp.
#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/json_io.hpp"
#include "core/model/hugging_face_families.hpp"
#include "core/model/hugging_face_keys.hpp"
#include "core/model/model_files.hpp"
#include "core/model/rope_hugging_face.hpp"

namespace sextant {
namespace {

using nlohmann::json;

struct Architecture {
  std::string_view model_type;
  std::vector<std::string_view> classes;  // of "architectures" that have exactly the shape counted here
  std::function<ModelSpec(const json&)> read;
  const ModelFamily* family = nullptr;
};

// A size that every config.json states, under the first of several spellings; `such_as` is LLaMA-2-7B's.
void size(JsonReader& io, std::initializer_list<std::string_view> keys, int& out, int such_as) {
  bool found = false;
  for (const auto key : keys) {
    found = found || io.has(key);
    io.optional(key, out);
  }
  if (!found)
    io.fail({"", std::string(*keys.begin()), "", "",
             fmt::format("is missing: a whole number, such as \"{}\": {}, in the config.json of the model",
                         *keys.begin(), such_as)});
}

void require_activation(JsonReader& io, std::string_view key, std::string found,
                        std::initializer_list<std::string_view> known) {
  io.optional(key, found);
  if (std::find(known.begin(), known.end(), found) == known.end())
    io.fail({"", std::string(key), fmt::format("\"{}\"", found),
             fmt::format("one of {}", fmt::join(known.begin(), known.end(), ", ")), ""});
}

constexpr const char* kExpertKeys[] = {"num_local_experts", "num_experts", "n_routed_experts",
                                       "moe_num_experts"};

bool has_experts(const json& config) {
  return std::ranges::any_of(kExpertKeys, [&](const char* key) {
    const auto at = config.find(key);
    return at != config.end() && at->is_number() && at->get<double>() > 1;
  });
}

// Layers of experts would be read as dense ones.
void require_dense(JsonReader& io) {
  for (const char* key : kExpertKeys) {
    int experts = 0;
    io.optional(key, experts);
    if (experts > 1)
      io.fail({"", key, fmt::format("{}", experts), "nothing, or 1", "mixtures of experts are not known"});
  }
}

void refuse_others(JsonReader& io, const json& config) {
  for (Problem& p : other_architecture(config)) io.fail(std::move(p));
}

// The window that all layers have; keys of it that were understood are taken out of `j`, so that nobody refuses them.
void read_window(JsonReader& io, json& j, const ModelFamily& family, ModelSpec& m) {
  if (family.window == FamilyWindow::never) return;
  bool on = family.window == FamilyWindow::as_stated;
  int width = j.contains("sliding_window") ? 0 : family.window_default, first_layer = 28;
  if (!on) io.optional("use_sliding_window", on);
  io.optional("sliding_window", width);
  if (on && width > 0 && family.window == FamilyWindow::switched) {
    // Layers below it see everything. transformers' default is 28.
    io.optional("max_window_layers", first_layer);
    if (first_layer >= m.n_layers)
      width = 0;
    else if (first_layer > 0)
      io.fail(
          {"", "max_window_layers", fmt::format("{}", first_layer),
           fmt::format("0, or all {} layers", m.n_layers),
           "layers with a window beside layers without are not modelled; use_sliding_window false plans them "
           "all without, which takes a little longer"});
  }
  m.window = on && width > 0 && width < m.max_positions ? width : 0;
  for (const char* key : {"use_sliding_window", "sliding_window", "max_window_layers"}) {
    io.ignored(key);
    j.erase(key);
  }
  const auto layers = j.find("layer_types");
  const char* const all = m.window > 0 ? "sliding_attention" : "full_attention";
  if (layers != j.end() && layers->is_array() &&
      std::ranges::count(*layers, json(all)) == std::ssize(*layers))
    j.erase(layers);
}

// The configuration with LLaMA's keys in the place of the family's own.
json with_llamas_keys(const ModelFamily& family, const json& config) {
  json j = config;
  for (const auto& [theirs, llamas] : family.keys)
    if (const auto at = j.find(theirs); at != j.end()) {
      j[std::string(llamas)] = json(*at);
      j.erase(std::string(theirs));
    }
  return j;
}

void read_heads(JsonReader& io, const ModelFamily& family, ModelSpec& m) {
  size(io, {"num_attention_heads"}, m.n_heads, 32);
  m.n_kv_heads =
      family.n_kv_heads_default > 0 && !io.has("num_key_value_heads") ? family.n_kv_heads_default : m.n_heads;
  io.optional("num_key_value_heads", m.n_kv_heads);
  m.head_dim = m.n_heads > 0 ? m.hidden / m.n_heads : 0;
  if (family.head_dim_default > 0) m.head_dim = family.head_dim_default;
  if (!io.has("head_dim") && family.head_dim_default == 0 && m.n_heads > 0 && m.hidden > 0 &&
      m.hidden % m.n_heads != 0)
    io.fail({"", "num_attention_heads", fmt::format("{}", m.n_heads),
             fmt::format("a divisor of hidden_size {}", m.hidden), "or state head_dim"});
  io.optional("head_dim", m.head_dim);
}

void read_biases(JsonReader& io, const ModelFamily& family, ModelSpec& m) {
  if (family.bias == FamilyBias::as_stated) {
    bool attention_bias = false;
    io.optional("attention_bias", attention_bias);  // on q, k, v and o
    m.qkv_bias = m.output_bias = attention_bias;
  }
  if (family.bias == FamilyBias::apart) {
    m.qkv_bias = true;
    io.optional("attention_bias", m.qkv_bias);
    io.optional("attention_out_bias", m.output_bias);
  }
  if (family.mlp_bias) io.optional("mlp_bias", m.mlp_bias);
  if (family.bias == FamilyBias::of_qkv) m.qkv_bias = true;
}

ModelSpec read_decoder(const ModelFamily& family, const json& config) {
  const json j = with_llamas_keys(family, config);
  JsonReader io(j);
  ModelSpec m;
  m.max_positions = 2048;
  m.norm_eps = family.norm_eps_default;
  m.qk_norm = family.qk_norm;
  m.norm_placement = family.norms;
  size(io, {"vocab_size"}, m.vocab_size, 32000);
  size(io, {"hidden_size"}, m.hidden, 4096);
  size(io, {"intermediate_size"}, m.ffn_hidden, 11008);
  size(io, {"num_hidden_layers"}, m.n_layers, 32);
  read_heads(io, family, m);
  io.optional("max_position_embeddings", m.max_positions);
  io.optional("rms_norm_eps", m.norm_eps);
  if (const auto epsilon = j.find("rms_norm_eps"); epsilon != j.end() && epsilon->is_null())
    io.fail(
        {"", "rms_norm_eps", "null", "a number above 0",
         fmt::format("transformers takes null for no number; left out it is {}", family.norm_eps_default)});
  io.optional("tie_word_embeddings", m.tied_embeddings);
  read_biases(io, family, m);
  require_activation(io, "hidden_act", "silu", {"silu", "swish"});
  io.ignored("original_max_position_embeddings");
  read_rope(io, j, family, m);
  if (family.alibi_from_hidden > 0 && m.hidden >= family.alibi_from_hidden) {
    m.position = PositionKind::alibi;
    m.rope_scaling.reset();
  }
  m.normalized_head =
      normalizes_head(family, j.contains(std::string(family.normalized_head_key)), m.vocab_size);
  json rest = j;
  read_window(io, rest, family, m);
  for (const auto key : family.ignored) rest.erase(std::string(key));
  require_dense(io);
  refuse_others(io, rest);
  io.others_allowed();
  io.finish();
  return m;
}

// What gpt2 and bloom share: layer norms, biases everywhere, two MLP matrices, tied unless it says otherwise.
ModelSpec gpt_style(JsonReader& io, const json& j, std::initializer_list<std::string_view> hidden,
                    std::initializer_list<std::string_view> layers,
                    std::initializer_list<std::string_view> heads) {
  ModelSpec m;
  m.gated_mlp = false;
  m.linear_bias = true;
  m.tied_embeddings = true;
  m.norm = NormKind::layer;
  size(io, {"vocab_size"}, m.vocab_size, 32000);
  size(io, hidden, m.hidden, 4096);
  size(io, layers, m.n_layers, 32);
  size(io, heads, m.n_heads, 32);
  m.n_kv_heads = m.n_heads;
  m.head_dim = m.n_heads > 0 ? m.hidden / m.n_heads : 0;
  if (m.n_heads > 0 && m.hidden > 0 && m.hidden % m.n_heads != 0)
    io.fail({"", std::string(*heads.begin()), fmt::format("{}", m.n_heads),
             fmt::format("a divisor of {} {}", *hidden.begin(), m.hidden), ""});
  m.ffn_hidden = m.hidden > 0 && m.hidden <= 1 << 28 ? 4 * m.hidden : 0;
  io.optional("n_inner", m.ffn_hidden);
  io.optional("layer_norm_epsilon", m.norm_eps);
  io.optional("tie_word_embeddings", m.tied_embeddings);
  refuse_others(io, j);
  io.others_allowed();
  return m;
}

ModelSpec read_gpt2(const json& j) {
  JsonReader io(j);
  ModelSpec m = gpt_style(io, j, {"n_embd", "hidden_size"}, {"n_layer", "num_hidden_layers"},
                          {"n_head", "num_attention_heads"});
  m.position = PositionKind::learned;
  size(io, {"n_positions", "max_position_embeddings"}, m.max_positions, 4096);
  require_activation(io, "activation_function", "gelu_new",
                     {"gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh"});
  io.finish();
  return m;
}

ModelSpec read_bloom(const json& j) {
  JsonReader io(j);
  ModelSpec m = gpt_style(io, j, {"hidden_size", "n_embed"}, {"n_layer", "num_hidden_layers"},
                          {"n_head", "num_attention_heads"});
  m.position = PositionKind::alibi;
  m.embedding_norm = true;
  io.optional("seq_length", m.max_positions);  // ALiBi has no table; 2048 is what BLOOM was trained on
  io.finish();
  return m;
}

const std::vector<Architecture>& architectures() {
  static const std::vector<Architecture> known = [] {
    std::vector<Architecture> all;
    for (const ModelFamily& family : families())
      all.push_back({family.model_type, family.classes,
                     [&family](const json& j) { return read_decoder(family, j); }, &family});
    all.push_back({"gpt2", {"GPT2LMHeadModel", "GPT2Model"}, read_gpt2});
    all.push_back({"bloom", {"BloomForCausalLM", "BloomModel"}, read_bloom});
    return all;
  }();
  return known;
}

const Architecture& architecture_of(const json& j) {
  std::string model_type, first_class, known;
  std::vector<std::string> classes;
  if (const auto at = j.find("model_type"); at != j.end() && at->is_string()) model_type = *at;
  if (const auto at = j.find("architectures"); at != j.end() && at->is_array())
    for (const auto& c : *at)
      if (c.is_string()) classes.push_back(c);
  const std::string found = classes.empty() ? "" : classes.front();
  for (const auto& a : architectures()) {
    known += fmt::format("{}{} ({})", known.empty() ? "" : ", ", a.model_type, a.classes.front());
    const bool same_type = model_type.empty() ? !classes.empty() : model_type == a.model_type;
    const bool same_class =
        classes.empty() || std::find(a.classes.begin(), a.classes.end(), found) != a.classes.end();
    if (same_type && same_class) return a;
  }
  MissingFeatures missing = missing_for(model_type);
  if (missing.what.empty()) missing = missing_for(found);
  const std::string hint =
      missing.what.empty() && has_experts(j)
          ? fmt::format("not known here; by its keys it needs {}", missing_for("mixtral").what)
      : missing.what.empty()
          ? "not known here; only if its layers are LLaMA's in all (RMS norms before each half-layer, "
            "SwiGLU, "
            "rotary positions) state it as model_type llama, LlamaForCausalLM"
          : fmt::format("it is known, but not modelled: it needs {}{}", missing.what,
                        missing.costs_like_llama
                            ? ". Nearly free: to plan it, state its sizes as model_type llama, "
                              "LlamaForCausalLM, which has the same parameters"
                            : "");
  throw ConfigError(Problem{"", model_type.empty() ? "architectures" : "model_type",
                            fmt::format("\"{}\"{}", model_type.empty() ? found : model_type,
                                        model_type.empty() || found.empty() ? "" : " of " + found),
                            fmt::format("one of {}", known), hint});
}

// What a ModelSpec's fields are called in a config.json, by architecture.
struct Spelled {
  std::string_view field;
  std::vector<std::string_view> keys;
};
const std::array<Spelled, 8> kSpelled = {
    {{"n_layers", {"num_hidden_layers", "n_layer"}},
     {"hidden", {"hidden_size", "n_embd", "n_embed"}},
     {"n_heads", {"num_attention_heads", "n_head"}},
     {"n_kv_heads", {"num_key_value_heads"}},
     {"ffn_hidden", {"intermediate_size", "n_inner"}},
     {"max_positions", {"max_position_embeddings", "n_positions", "seq_length"}},
     {"norm_eps", {"rms_norm_eps", "layer_norm_epsilon"}},
     {"head_dim", {"head_dim"}}}};

// By the names of the file; what follows from another field's mistake is not one of its own.
std::vector<Problem> as_spelled(std::vector<Problem> problems, const json& config) {
  const auto is_stated = [&](const Problem& p) { return config.contains(p.key.substr(0, p.key.find('.'))); };
  for (Problem& p : problems)
    for (const auto& [field, keys] : kSpelled) {
      if (p.key != field) continue;
      const auto found = std::ranges::find_if(keys, [&](auto key) { return config.contains(key); });
      p.key = found == keys.end() ? keys.front() : *found;
      break;
    }
  if (std::ranges::any_of(problems, is_stated)) std::erase_if(problems, std::not_fn(is_stated));
  return problems;
}

}  // namespace

const ModelFamily* family_of_config(const json& config) { return architecture_of(config).family; }

ModelSpec model_from_hugging_face(const json& j, const std::string& name, std::vector<std::string>* notes) {
  const Architecture& architecture = architecture_of(j);
  ModelSpec m = architecture.read(j);
  if (notes)
    for (std::string& note : config_notes(j, architecture.family)) notes->push_back(std::move(note));
  const auto at = j.find("_name_or_path");
  const bool named = at != j.end() && at->is_string() && !at->get_ref<const std::string&>().empty();
  m.name = named && name.empty() ? at->get<std::string>() : name;
  if (auto problems = as_spelled(validate(m), j); !problems.empty()) throw ConfigError(std::move(problems));
  return m;
}

}  // namespace sextant

// Key names and defaults: transformers' configuration_llama.py, configuration_gpt2.py and
// configuration_bloom.py (v4 and v5).
#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/json_io.hpp"
#include "core/model/hugging_face_keys.hpp"
#include "core/model/model_files.hpp"

namespace sextant {
namespace {

using nlohmann::json;

struct Architecture {
  std::string_view model_type;
  std::vector<std::string_view> classes;  // of "architectures" that have exactly the shape counted here
  ModelSpec (*read)(const json&);
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

// Layers of experts would be read as dense ones.
void require_dense(JsonReader& io) {
  for (const char* key : {"num_local_experts", "num_experts", "n_routed_experts"}) {
    int experts = 0;
    io.optional(key, experts);
    if (experts > 1)
      io.fail({"", key, fmt::format("{}", experts), "nothing, or 1", "mixtures of experts are not known"});
  }
}

// rope_scaling of v4 ({"rope_type" or "type": ..., "factor": ...}) or rope_parameters of v5, which holds
// rope_theta as well. "default" means no scaling.
void read_rope(JsonReader& io, const json& j, ModelSpec& m) {
  io.optional("rope_theta", m.rope_theta);
  const double stated = m.rope_theta;
  io.ignored("rope_scaling");
  io.ignored("rope_parameters");
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!io.has(key)) continue;
    try {
      JsonReader rope(j.at(key));
      RopeScaling s;
      s.type = "default";
      s.original_max_positions = m.max_positions;
      rope.optional("rope_theta", m.rope_theta);
      if (io.has("rope_theta") && m.rope_theta != stated)
        rope.fail({"", "rope_theta", fmt::format("{}", m.rope_theta),
                   fmt::format("the rope_theta of {} that stands beside it", stated), "state it once"});
      rope.optional("type", s.type);
      rope.optional("rope_type", s.type);
      const bool scaled = s.type != "default";
      const bool llama3 = s.type == "llama3";
      const bool known = !scaled || std::ranges::count(kRopeTypes, s.type) > 0;
      if (!known)
        rope.fail({"", rope.has("rope_type") ? "rope_type" : "type", s.type,
                   fmt::format("one of {}, default", fmt::join(kRopeTypes, ", ")), ""});
      else if (scaled && s.type != "longrope")  // which states a factor for each frequency instead
        rope.required("factor", s.factor);
      else if (scaled)
        rope.optional("factor", s.factor), s.factor = std::max(1.0, s.factor);
      if (llama3) {
        rope.required("low_freq_factor", s.low_freq_factor);
        rope.required("high_freq_factor", s.high_freq_factor);
        rope.required("original_max_position_embeddings", s.original_max_positions);
      } else {
        rope.optional("original_max_position_embeddings", s.original_max_positions);
      }
      rope.others_allowed();  // attention_factor, beta_fast, ... of yarn
      rope.finish();
      if (scaled) m.rope_scaling = s;
    } catch (const ConfigError& e) {
      for (Problem p : e.problems()) {
        p.key = p.key.empty() ? key : fmt::format("{}.{}", key, p.key);
        io.fail(std::move(p));
      }
    }
  }
}

void refuse_others(JsonReader& io, const json& config) {
  for (Problem& p : other_architecture(config)) io.fail(std::move(p));
}

ModelSpec read_llama(const json& j) {
  JsonReader io(j);
  ModelSpec m;
  m.max_positions = 2048, m.norm_eps = 1e-6;
  size(io, {"vocab_size"}, m.vocab_size, 32000);
  size(io, {"hidden_size"}, m.hidden, 4096);
  size(io, {"intermediate_size"}, m.ffn_hidden, 11008);
  size(io, {"num_hidden_layers"}, m.n_layers, 32);
  size(io, {"num_attention_heads"}, m.n_heads, 32);
  m.n_kv_heads = m.n_heads;
  io.optional("num_key_value_heads", m.n_kv_heads);
  m.head_dim = m.n_heads > 0 ? m.hidden / m.n_heads : 0;
  if (!io.has("head_dim") && m.n_heads > 0 && m.hidden > 0 && m.hidden % m.n_heads != 0)
    io.fail({"", "num_attention_heads", fmt::format("{}", m.n_heads),
             fmt::format("a divisor of hidden_size {}", m.hidden), "or state head_dim"});
  io.optional("head_dim", m.head_dim);
  io.optional("max_position_embeddings", m.max_positions);
  io.optional("rms_norm_eps", m.norm_eps);
  if (const auto epsilon = j.find("rms_norm_eps"); epsilon != j.end() && epsilon->is_null())
    io.fail({"", "rms_norm_eps", "null", "a number above 0",
             "transformers takes null for no number; left out it is 1e-06"});
  io.optional("tie_word_embeddings", m.tied_embeddings);
  bool attention_bias = false;
  io.optional("attention_bias", attention_bias);  // on q, k, v and o
  m.qkv_bias = m.output_bias = attention_bias;
  io.optional("mlp_bias", m.mlp_bias);
  require_activation(io, "hidden_act", "silu", {"silu", "swish"});
  read_rope(io, j, m);
  require_dense(io);
  refuse_others(io, j);
  io.others_allowed();
  io.finish();
  return m;
}

// What gpt2 and bloom share: layer norms, biases everywhere, two MLP matrices, tied unless it says otherwise.
ModelSpec gpt_style(JsonReader& io, const json& j, std::initializer_list<std::string_view> hidden,
                    std::initializer_list<std::string_view> layers,
                    std::initializer_list<std::string_view> heads) {
  ModelSpec m;
  m.gated_mlp = false, m.linear_bias = true, m.tied_embeddings = true, m.norm = NormKind::layer;
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

// LLaMA with biases on q, k and v (transformers, configuration_qwen2.py).
ModelSpec read_qwen2(const json& j) {
  ModelSpec m = read_llama(j);
  m.qkv_bias = true;
  return m;
}

// LLaMA; `bias` stands for all of attention (InternLM2's configuration_internlm2.py). q, k and v lie in one matrix.
ModelSpec read_internlm2(const json& j) {
  json llama = j;
  if (const auto bias = llama.find("bias"); bias != llama.end())
    llama["attention_bias"] = *bias, llama.erase("bias");
  return read_llama(llama);
}

// LLaMA whose 7B rotates and whose 13B (hidden size 5120) adds ALiBi: their code differs, their configurations do not say so
// (modeling_baichuan.py of both). The normalised head of Baichuan 2 has no parameters of its own.
ModelSpec read_baichuan(const json& j) {
  json llama = j;
  if (const auto longest = llama.find("model_max_length"); longest != llama.end())
    llama["max_position_embeddings"] = *longest, llama.erase("model_max_length");
  llama.erase("z_loss_weight");
  ModelSpec m = read_llama(llama);
  if (m.hidden >= 5120) m.position = PositionKind::alibi, m.rope_scaling.reset();
  return m;
}

const std::vector<Architecture>& architectures() {
  static const std::vector<Architecture> known = {
      {"llama", {"LlamaForCausalLM"}, read_llama},
      {"mistral", {"MistralForCausalLM"}, read_llama},
      {"qwen2", {"Qwen2ForCausalLM"}, read_qwen2},
      {"phi3", {"Phi3ForCausalLM"}, read_llama},
      {"internlm2", {"InternLM2ForCausalLM"}, read_internlm2},
      {"baichuan", {"BaichuanForCausalLM", "BaiChuanForCausalLM"}, read_baichuan},
      {"gpt2", {"GPT2LMHeadModel", "GPT2Model"}, read_gpt2},
      {"bloom", {"BloomForCausalLM", "BloomModel"}, read_bloom},
  };
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
  throw ConfigError(Problem{"", model_type.empty() ? "architectures" : "model_type",
                            fmt::format("\"{}\"{}", model_type.empty() ? found : model_type,
                                        model_type.empty() || found.empty() ? "" : " of " + found),
                            fmt::format("one of {}", known),
                            "a model of LLaMA's shape can be stated as model_type llama, LlamaForCausalLM"});
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

ModelSpec model_from_hugging_face(const json& j, const std::string& name, std::vector<std::string>* notes) {
  ModelSpec m = architecture_of(j).read(j);
  if (notes)
    for (std::string& note : config_notes(j)) notes->push_back(std::move(note));
  const auto at = j.find("_name_or_path");
  const bool named = at != j.end() && at->is_string() && !at->get_ref<const std::string&>().empty();
  m.name = named && name.empty() ? at->get<std::string>() : name;
  if (auto problems = as_spelled(validate(m), j); !problems.empty()) throw ConfigError(std::move(problems));
  return m;
}

}  // namespace sextant

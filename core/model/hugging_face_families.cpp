#include "core/model/hugging_face_families.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "core/base/words.hpp"

namespace sextant {
namespace {

constexpr std::string_view kLayers = "model.layers.";

std::vector<FamilyTensors> internlm2_tensors() {
  return {{"model.tok_embeddings", {"model.embed_tokens"}},
          {"output", {"lm_head"}},
          {"attention_norm", {"input_layernorm"}},
          {"ffn_norm", {"post_attention_layernorm"}},
          {"attention.wqkv",
           {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
           TensorPacking::by_key_head},
          {"attention.wo", {"self_attn.o_proj"}},
          {"feed_forward.w1", {"mlp.gate_proj"}},
          {"feed_forward.w3", {"mlp.up_proj"}},
          {"feed_forward.w2", {"mlp.down_proj"}}};
}

// NOLINTNEXTLINE(readability-function-size): one table, an entry for each family.
std::vector<ModelFamily> make_families() {
  std::vector<ModelFamily> all;
  all.push_back({.model_type = "llama",
                 .classes = {"LlamaForCausalLM"},
                 .bias = FamilyBias::as_stated,
                 .mlp_bias = true});
  all.push_back({.model_type = "mistral",
                 .classes = {"MistralForCausalLM"},
                 .window = FamilyWindow::as_stated,
                 .window_default = 4096,
                 .n_kv_heads_default = 8});
  all.push_back({.model_type = "qwen2",
                 .classes = {"Qwen2ForCausalLM"},
                 .bias = FamilyBias::of_qkv,
                 .window = FamilyWindow::switched,
                 .window_default = 4096,
                 .n_kv_heads_default = 32});
  all.push_back({.model_type = "qwen3",
                 .classes = {"Qwen3ForCausalLM"},
                 .bias = FamilyBias::as_stated,
                 .window = FamilyWindow::switched,
                 .qk_norm = QkNorm::head,
                 .window_default = 4096,
                 .n_kv_heads_default = 32,
                 .head_dim_default = 128});
  all.push_back({.model_type = "olmo2",
                 .classes = {"Olmo2ForCausalLM"},
                 .bias = FamilyBias::as_stated,
                 .qk_norm = QkNorm::whole,
                 .norms = NormPlacement::after,
                 .norm_eps_default = 1e-5,
                 .tensors = {{"post_attention_layernorm", {"input_layernorm"}},
                             {"post_feedforward_layernorm", {"post_attention_layernorm"}}}});
  all.push_back(
      {.model_type = "phi3",
       .classes = {"Phi3ForCausalLM"},
       .window = FamilyWindow::as_stated,
       .original_positions_default = 4096,
       .norm_eps_default = 1e-5,
       .tensors = {{"self_attn.qkv_proj",
                    {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
                    TensorPacking::stacked},
                   {"mlp.gate_up_proj", {"mlp.gate_proj", "mlp.up_proj"}, TensorPacking::stacked}}});
  all.push_back({.model_type = "internlm2",
                 .classes = {"InternLM2ForCausalLM"},
                 .keys = {{"bias", "attention_bias"}},
                 .bias = FamilyBias::as_stated,
                 .tensors = internlm2_tensors()});
  // InternLM 3 has LLaMA's tensors; transformers runs it as one. Biases, which no checkpoint has, are as transformers' names say,
  // not as those of the code beside the checkpoints (qkv_bias, bias), which has them elsewhere.
  all.push_back({.model_type = "internlm3",
                 .classes = {"InternLM3ForCausalLM", "LlamaForCausalLM"},
                 .bias = FamilyBias::as_stated,
                 .mlp_bias = true,
                 .n_kv_heads_default = 2,
                 .head_dim_default = 128,
                 .norm_eps_default = 1e-5});
  all.push_back({.model_type = "seed_oss",
                 .classes = {"SeedOssForCausalLM"},
                 .bias = FamilyBias::apart,
                 .mlp_bias = true,
                 .n_kv_heads_default = 8,
                 .head_dim_default = 128});
  // Their 7B rotates, their 13B (hidden size 5120) adds ALiBi: the code differs, the configurations do not say so. Baichuan 2
  // divides the rows of its head by their length, and is told from the first Baichuan by the weight of its z-loss, which not every
  // file states, or by its vocabulary, as vLLM, SGLang and TGI do.
  all.push_back({.model_type = "baichuan",
                 .classes = {"BaichuanForCausalLM", "BaiChuanForCausalLM"},
                 .keys = {{"model_max_length", "max_position_embeddings"}},
                 .ignored = {"z_loss_weight"},
                 .alibi_from_hidden = 5120,
                 .normalized_head_key = "z_loss_weight",
                 .normalized_head_vocab = 125696,
                 .tensors = {{"self_attn.W_pack",
                              {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
                              TensorPacking::stacked}}});
  return all;
}

struct Missing {
  std::string_view model_type, what;
  bool costs_like_llama =
      false;            // of the same shape: parameters, and for all that a plan counts, time and memory
  bool images = false;  // and an encoder of images
};
constexpr std::string_view kExperts = "a mixture of experts: a router, and an MLP for each expert";
constexpr std::string_view kGemma3 =
    "norms on both sides of a half-layer, windows in five of six layers, two rotary bases, scores scaled by "
    "a number of their own, scaled embeddings, a GELU gate, and norms (those of q and k too) whose weights "
    "count from one";
constexpr std::string_view kLlama4 =
    "a mixture of experts beside a shared one, attention over chunks in three of four layers, layers without "
    "positions, norms of q and k without weights, scores scaled by position, and rotary pairs that lie side "
    "by side";
constexpr std::string_view kParallel = "parallel attention and MLP on one norm, and layer norms without RMS";
constexpr std::string_view kImages = "an encoder of images (decoders of text alone are known)";
constexpr std::array kLacking = {
    Missing{"mixtral", kExperts},
    Missing{"qwen2_moe", kExperts},
    Missing{"qwen3_moe", kExperts},
    Missing{"qwen3_next", "a mixture of experts, and linear attention in most layers"},
    Missing{"olmoe", kExperts},
    Missing{"phimoe", kExperts},
    Missing{"granitemoe", kExperts},
    Missing{"dbrx", kExperts},
    Missing{"deepseek", kExperts},
    Missing{"glm4_moe", kExperts},
    Missing{"ernie4_5_moe", kExperts},
    Missing{"gpt_oss", "a mixture of experts, windows in every second layer, and attention sinks"},
    Missing{"deepseek_v2", "a mixture of experts, and latent attention"},
    Missing{"deepseek_v3", "a mixture of experts, and latent attention"},
    Missing{"minicpm3", "latent attention, and scaled embeddings, residuals and logits"},
    Missing{.model_type = "llama4", .what = kLlama4, .images = true},
    Missing{"llama4_text", kLlama4},
    Missing{"gemma", "scaled embeddings, a GELU gate, and norms whose weights count from one"},
    Missing{"gemma2",
            "norms on both sides of a half-layer, windows in every second layer, capped scores and logits, "
            "scores "
            "scaled by a number of their own, scaled embeddings, a GELU gate, and norms whose weights count "
            "from one"},
    Missing{.model_type = "gemma3", .what = kGemma3, .images = true},
    Missing{"gemma3_text", kGemma3},
    Missing{"gemma3n",
            "embeddings of each layer, streams that predict each other (AltUp), low-rank residuals (LAuReL), "
            "keys "
            "and values shared by layers, and sparse activations"},
    Missing{"smollm3", "layers without positions (every fourth)", true},
    Missing{"granite", "scaled embeddings, residuals, scores and logits", true},
    Missing{"minicpm", "scaled embeddings, residuals and logits", true},
    Missing{"exaone4", "norms behind the blocks with norms of q and k by head, and windows in most layers"},
    Missing{"olmo", "layer norms without weights"},
    Missing{"olmo3", "windows in three of four layers"},
    Missing{"ministral", "windows in some layers"},
    Missing{"glm", "heads that are rotated in part, in pairs that lie side by side"},
    Missing{"glm4", "heads that are rotated in part, and norms on both sides of a half-layer"},
    Missing{"chatglm", "heads that are rotated in part, in pairs that lie side by side"},
    Missing{"stablelm", "heads that are rotated in part, and layer norms with a gated MLP"},
    Missing{"persimmon", "heads that are rotated in part, layer norms, and a squared ReLU"},
    Missing{"nemotron",
            "heads that are rotated in part, layer norms that count from one, and a squared ReLU"},
    Missing{"arcee", "a squared ReLU in place of the gate"},
    Missing{"apertus", "an MLP without a gate, with an activation of its own (xIELU)"},
    Missing{"cohere", kParallel},
    Missing{"cohere2",
            "parallel attention and MLP, windows in three of four layers, and layers without "
            "positions"},
    Missing{"falcon", kParallel},
    Missing{"phi", "parallel attention and MLP, heads that are rotated in part, and layer norms"},
    Missing{"phi3small", "block-sparse attention in every second layer, layer norms, and a gated GELU"},
    Missing{"gpt_neox", "parallel attention and MLP, heads that are rotated in part, and layer norms"},
    Missing{"gptj", "parallel attention and MLP, heads that are rotated in part, and layer norms"},
    Missing{"starcoder2", "layer norms and biases with rotary positions"},
    Missing{"gpt_bigcode", "one key head with learned positions"},
    Missing{"mpt", "ALiBi with layer norms without biases"},
    Missing{"opt", "learned positions that begin at two, and a ReLU"},
    Missing{"qwen",
            "its own names of keys and tensors, and an intermediate_size of both halves (Qwen 1.5 and "
            "later are known)"},
    Missing{"mamba", "a state-space layer in place of attention"},
    Missing{"mamba2", "a state-space layer in place of attention"},
    Missing{"jamba", "a mixture of experts, and state-space layers"},
    Missing{"falcon_h1", "state-space layers beside attention"},
    Missing{"qwen2_vl", kImages},
    Missing{"qwen2_5_vl", kImages},
    Missing{"qwen3_vl", kImages},
    Missing{"mistral3", kImages},
    Missing{"mllama", kImages},
    Missing{"llava", kImages},
    Missing{"idefics3", kImages},
    Missing{"t5", "an encoder (decoders alone are known)"},
    Missing{"bert", "attention to both sides (decoders alone are known)"},
};

// Rows of q, k or v, gate or up, of the whole model.
std::int64_t rows_of(const ModelSpec& m, std::string_view ours) {
  if (ours == "self_attn.q_proj") return std::int64_t{m.n_heads} * m.head_dim;
  if (ours == "self_attn.k_proj" || ours == "self_attn.v_proj")
    return std::int64_t{m.n_kv_heads} * m.head_dim;
  return m.ffn_hidden;
}

// "model.layers.3.", "self_attn.q_proj", ".weight"
struct ModelName {
  std::string_view layer, module, what;
};
ModelName split_name(std::string_view name) {
  ModelName p;
  p.what = name.substr(name.rfind('.'));
  name.remove_suffix(p.what.size());
  if (name.starts_with(kLayers)) p.layer = name.substr(0, name.find('.', kLayers.size()) + 1);
  p.module = name.substr(p.layer.size());
  return p;
}

}  // namespace

const std::vector<ModelFamily>& families() {
  static const std::vector<ModelFamily> all = make_families();
  return all;
}

bool normalizes_head(const ModelFamily& f, bool has_key, int vocab_size) {
  return !f.normalized_head_key.empty() && (has_key || vocab_size == f.normalized_head_vocab);
}

bool reads_key(const ModelFamily& f, std::string_view key) {
  return key == f.normalized_head_key || std::ranges::count(f.ignored, key) > 0 ||
         std::ranges::any_of(f.keys, [&](const auto& pair) { return pair.first == key; });
}

const ModelFamily* family_of(const ModelSpec& m) {
  if (m.norm != NormKind::rms || !m.gated_mlp || m.linear_bias || m.embedding_norm) return nullptr;
  for (const ModelFamily& f : families()) {
    const bool biases =
        f.bias == FamilyBias::apart ||
        (f.bias == FamilyBias::as_stated ? m.qkv_bias == m.output_bias
                                         : m.qkv_bias == (f.bias == FamilyBias::of_qkv) && !m.output_bias);
    const bool mlp_biases = !m.mlp_bias || f.mlp_bias;
    const bool positions =
        m.position == PositionKind::rope
            ? f.alibi_from_hidden == 0 || m.hidden < f.alibi_from_hidden
            : m.position == PositionKind::alibi && f.alibi_from_hidden > 0 && m.hidden >= f.alibi_from_hidden;
    if (biases && mlp_biases && positions && m.qk_norm == f.qk_norm && m.norm_placement == f.norms &&
        (m.window == 0 || f.window != FamilyWindow::never) &&
        m.normalized_head == normalizes_head(f, m.normalized_head, m.vocab_size))
      return &f;
  }
  return nullptr;
}

TensorPlace place_of(const ModelFamily& family, const ModelSpec& m, std::string_view name,
                     std::int64_t rows) {
  const ModelName p = split_name(name);
  TensorPlace place{std::string(name), rows, std::max<std::int64_t>(1, rows), rows, 0};
  for (const FamilyTensors& t : family.tensors) {
    const auto part = std::ranges::find(t.parts, p.module);
    if (part == t.parts.end()) continue;
    place.tensor = fmt::format("{}{}{}", p.layer, t.stored, p.what);
    if (t.packing == TensorPacking::alone) return place;
    place.rows = 0;
    for (auto it = t.parts.begin(); it != t.parts.end(); ++it) {
      if (it == part) place.offset = place.rows;
      place.rows += rows_of(m, *it);
    }
    if (t.packing == TensorPacking::by_key_head) {
      const std::int64_t d = m.head_dim, queries = m.n_heads / m.n_kv_heads;
      const auto index = part - t.parts.begin();  // q, k, v
      place.block = index == 0 ? queries * d : d;
      place.stride = (queries + 2) * d;
      place.offset = index == 0 ? 0 : (queries + index - 1) * d;
    }
    return place;
  }
  return place;
}

MissingFeatures missing_for(std::string_view model_type) {
  // A class, "Gemma2ForCausalLM", is called after its type.
  const auto plain = [](std::string_view name) {
    std::string word = lower(std::string(name.substr(0, name.find("For"))));
    std::erase(word, '_');
    return word;
  };
  auto found = std::ranges::find(kLacking, model_type, &Missing::model_type);
  if (found == kLacking.end())
    found = std::ranges::find_if(kLacking, [&, wanted = plain(model_type)](const Missing& m) {
      return plain(m.model_type) == wanted;
    });
  if (found == kLacking.end()) return {};
  return {fmt::format("{}{}", found->what, found->images ? ", and an encoder of images" : ""),
          found->costs_like_llama};
}

}  // namespace sextant

// Sources: transformers' PretrainedConfig and configuration_{llama,gpt2,bloom,mistral,qwen2,granite,deepseek_v3}.py.
#include "core/model/hugging_face_keys.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace sextant {
namespace {

using nlohmann::json;

// Null, false, 0, "", [] and {}: the key stands there and asks for nothing.
bool asks_for_nothing(const json& value, const json&) {
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_number()) return value.get<double>() == 0;
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  return value.empty();
}

bool is_one(const json& value, const json&) {
  return value.is_null() || (value.is_number() && value.get<double>() == 1);
}

bool is_true(const json& value, const json&) {
  return value.is_null() || (value.is_boolean() && value.get<bool>());
}

// Switched off, or as wide as the longest sequence.
bool sees_everything(const json& value, const json& config) {
  const auto on = config.find("use_sliding_window"), longest = config.find("max_position_embeddings");
  if (asks_for_nothing(value, config) || (on != config.end() && asks_for_nothing(*on, config))) return true;
  return value.is_number() && longest != config.end() && longest->is_number() &&
         value.get<double>() >= longest->get<double>();
}

bool all_full(const json& value, const json&) {
  return value.is_null() || (value.is_array() && std::ranges::all_of(value, [](const json& layer) {
                               return layer == "full_attention";
                             }));
}

// SmolLM3's list: 1 for a layer that rotates, 0 for one that has no positions.
bool all_rotated(const json& value, const json&) {
  return value.is_null() ||
         (value.is_array() && std::ranges::all_of(value, [](const json& layer) { return layer == 1; }));
}

struct OtherKey {
  std::string_view key;
  bool (*harmless)(const json& value, const json& config);
  std::string_view expected, what;
};
constexpr OtherKey kOtherKeys[] = {
    {"sliding_window", sees_everything, "null", "attention over a window is not modelled"},
    {"attention_chunk_size", asks_for_nothing, "null", "attention over chunks is not modelled"},
    {"layer_types", all_full, "full_attention for every layer", "other layers are not modelled"},
    {"use_parallel_residual", asks_for_nothing, "false", "layers are modelled one part after the other"},
    {"parallel_attn", asks_for_nothing, "false", "layers are modelled one part after the other"},
    {"qk_norm", asks_for_nothing, "false", "norms of queries and keys are not modelled"},
    {"use_qk_norm", asks_for_nothing, "false", "norms of queries and keys are not modelled"},
    {"qk_layernorm", asks_for_nothing, "false", "norms of queries and keys are not modelled"},
    {"qkv_bias", asks_for_nothing, "false", "biases of these layers are not modelled in this family"},
    {"bias", asks_for_nothing, "false", "biases of these layers are not modelled in this family"},
    {"no_rope_layers", all_rotated, "1 for every layer", "layers without positions are not modelled"},
    {"q_lora_rank", asks_for_nothing, "null", "latent attention is not modelled"},
    {"kv_lora_rank", asks_for_nothing, "null", "latent attention is not modelled"},
    {"n_shared_experts", asks_for_nothing, "nothing", "mixtures of experts are not known"},
    {"moe_intermediate_size", asks_for_nothing, "nothing", "mixtures of experts are not known"},
    {"num_nextn_predict_layers", asks_for_nothing, "0", "layers that predict more tokens are not modelled"},
    {"attn_logit_softcapping", asks_for_nothing, "null", "capped scores are not modelled"},
    {"final_logit_softcapping", asks_for_nothing, "null", "capped logits are not modelled"},
    {"embedding_multiplier", is_one, "1", "scaled embeddings are not modelled"},
    {"residual_multiplier", is_one, "1", "scaled residuals are not modelled"},
    {"logits_scaling", is_one, "1", "scaled logits are not modelled"},
    {"use_mrope", asks_for_nothing, "false", "positions of images beside text are not modelled"},
    {"pruned_heads", asks_for_nothing, "{}", "every layer is modelled with all its heads"},
    {"vision_config", asks_for_nothing, "nothing", "decoders of text alone are known"},
    {"audio_config", asks_for_nothing, "nothing", "decoders of text alone are known"},
    {"cross_attention_layers", asks_for_nothing, "nothing", "decoders of text alone are known"},
    {"add_cross_attention", asks_for_nothing, "false", "decoders alone are known"},
    {"is_encoder_decoder", asks_for_nothing, "false", "decoders alone are known"},
    {"scale_attn_by_inverse_layer_idx", asks_for_nothing, "false",
     "scores scaled by the layer are not modelled"},
    {"scale_attn_weights", is_true, "true", "scores are modelled scaled by the width of a head"},
    {"apply_residual_connection_post_layernorm", asks_for_nothing, "false",
     "residuals are modelled as taken before the norm"},
};

// The keys that are fine, in words between blanks. First what the readers of core/model/model_hugging_face.cpp read.
constexpr std::string_view kShape =
    " vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads"
    " num_key_value_heads head_dim max_position_embeddings rms_norm_eps tie_word_embeddings"
    " attention_bias mlp_bias hidden_act rope_theta rope_scaling rope_parameters partial_rotary_factor "
    "num_local_experts"
    " num_experts n_routed_experts moe_num_experts n_embd n_embed n_layer n_head n_inner n_positions"
    " layer_norm_epsilon activation_function seq_length original_max_position_embeddings ";

// Of a part that is switched off, or of numerics and checkpoints.
constexpr std::string_view kKeysOfNoShape =
    " use_sliding_window max_window_layers num_experts_per_tok n_ctx reorder_and_upcast_attn"
    " attention_softmax_in_fp32 masked_softmax_fusion bias_dropout_fusion skip_bias_add"
    " skip_bias_add_qkv slow_but_exact offset_alibi pretraining_tp quantization_config"
    " rope_interleaved attention_out_bias is_llama_config full_attn_mod interpolate_factor ";

// Of every transformers model: where it comes from, its tokens, how it begins, drops out, generates and is served.
constexpr std::string_view kBookkeeping =
    " architectures model_type transformers_version torch_dtype dtype use_cache auto_map"
    " attn_implementation use_flash_attn tokenizer_class prefix name_or_path task_specific_params"
    " problem_type id2label label2id num_labels finetuning_task bos_token_id eos_token_id pad_token_id"
    " unk_token_id sep_token_id cls_token_id decoder_start_token_id initializer_range"
    " attention_dropout residual_dropout hidden_dropout mlp_dropout attn_pdrop embd_pdrop resid_pdrop"
    " summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj"
    " gradient_checkpointing return_dict output_hidden_states output_attentions torchscript"
    " use_bfloat16 tie_encoder_decoder cross_attention_hidden_size is_decoder chunk_size_feed_forward"
    " tf_legacy_loss keys_to_ignore_at_inference max_length min_length max_new_tokens do_sample"
    " early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p typical_p"
    " repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size"
    " bad_words_ids num_return_sequences output_scores return_dict_in_generate forced_bos_token_id"
    " forced_eos_token_id remove_invalid_values exponential_decay_length_penalty suppress_tokens"
    " begin_suppress_tokens max_sequence_length unsloth_version unsloth_fixed transformers.js_config"
    " layer_norm_eps ";

// `list` has blanks around its words.
bool key_holds(std::string_view list, std::string_view key) {
  return list.find(fmt::format(" {} ", key)) != list.npos;
}

bool is_known(std::string_view key) {
  return key.starts_with('_') || key_holds(kShape, key) || key_holds(kKeysOfNoShape, key) ||
         key_holds(kBookkeeping, key) ||
         std::ranges::find(kOtherKeys, key, &OtherKey::key) != std::end(kOtherKeys);
}

constexpr std::size_t kNamed = 12, kLongestKey = 60;

std::string printable(const json& value) {
  return value.dump(-1, ' ', true, json::error_handler_t::replace).substr(0, kLongestKey);
}

// A terminal would obey control characters.
std::string shown_key(const std::string& key) {
  const std::string quoted = printable(key);
  return quoted == fmt::format("\"{}\"", key) ? key : quoted;
}

}  // namespace

std::vector<Problem> other_architecture(const json& config) {
  std::vector<Problem> problems;
  for (const OtherKey& other : kOtherKeys) {
    const auto at = config.find(other.key);
    if (at == config.end() || other.harmless(*at, config)) continue;
    problems.push_back(
        {"", std::string(other.key), printable(*at), std::string(other.expected), std::string(other.what)});
  }
  return problems;
}

std::vector<std::string> config_notes(const json& config, const ModelFamily* family) {
  std::vector<std::string> notes, unknown;
  if (const auto at = config.find("quantization_config");
      at != config.end() && !asks_for_nothing(*at, config))
    notes.emplace_back(
        "quantization_config: the checkpoint is quantized; a step is counted in the formats of the training "
        "(--set training.parameter=...)");
  std::size_t left_out = 0;
  for (const auto& [key, value] : config.items()) {
    if (value.is_null() || is_known(key) || (family && reads_key(*family, key))) continue;
    if (unknown.size() < kNamed)
      unknown.push_back(shown_key(key));
    else
      ++left_out;
  }
  if (!unknown.empty())
    notes.push_back(fmt::format("config.json: not known here, and not used: {}{}", fmt::join(unknown, ", "),
                                left_out > 0 ? fmt::format(" and {} more", left_out) : ""));
  return notes;
}

}  // namespace sextant

// GPT-2 and BLOOM by their config.json: counted exactly, or refused where theirs is another computation.
#include <map>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/model/model_files.hpp"
#include "tests/core/model/model_json.hpp"

namespace sextant {
namespace {

TEST(HuggingFace, Gpt2OfAnotherKindIsRefused) {
  const json gpt2 =
      json::parse(R"({"model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12,
    "n_positions": 1024, "vocab_size": 50257, "scale_attn_weights": true, "scale_attn_by_inverse_layer_idx": false,
    "resid_pdrop": 0.1, "summary_type": "cls_index", "reorder_and_upcast_attn": false})");
  EXPECT_TRUE(notes_of(gpt2).empty());
  for (const auto& [key, value] : std::map<std::string, json>{{"activation_function", "relu"},
                                                              {"scale_attn_by_inverse_layer_idx", true},
                                                              {"scale_attn_weights", false},
                                                              {"add_cross_attention", true}}) {
    json j = gpt2;
    j[key] = value;
    EXPECT_TRUE(has(error_of(j), key + ": found ")) << key << ": " << error_of(j);
  }
}

TEST(HuggingFace, Gpt2IsCountedExactly) {
  const json j = json::parse(R"({"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024,
    "layer_norm_epsilon": 1e-05, "vocab_size": 50257})");
  EXPECT_EQ(parameter_counts(model_from_json(j, "gpt2")).total, 124'439'808);
  json xl = j;
  xl["n_embd"] = 1600;
  xl["n_head"] = 25;
  xl["n_layer"] = 48;
  EXPECT_EQ(parameter_counts(model_from_json(xl, "gpt2-xl")).total, 1'557'611'200);
  json incomplete = j;
  incomplete.erase("n_layer");
  EXPECT_TRUE(has(error_of(incomplete), "n_layer: is missing"));
}

TEST(HuggingFace, BloomIsCountedExactly) {
  const json j = json::parse(R"({"apply_residual_connection_post_layernorm": false,
    "architectures": ["BloomForCausalLM"], "model_type": "bloom", "n_embed": 14336, "n_layer": 70, "n_inner": null,
    "num_attention_heads": 112, "layer_norm_epsilon": 1e-05, "pretraining_tp": 4, "seq_length": 2048,
    "offset_alibi": 100, "vocab_size": 250880})");
  EXPECT_EQ(model_from_json(j, "bloom-176b"), preset("bloom-176b"));
  const json small = json::parse(R"({"model_type": "bloom", "hidden_size": 1024, "n_layer": 24, "n_head": 16,
                                     "vocab_size": 250880})");
  EXPECT_EQ(parameter_counts(model_from_json(small, "bloom-560m")).total, 559'214'592);
}

}  // namespace
}  // namespace sextant

// Families beside LLaMA by their config.json: read as their presets, counted exactly, or refused with what is missing.
#include <algorithm>
#include <map>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/model/hugging_face_families.hpp"
#include "core/model/model_files.hpp"
#include "core/model/model_names.hpp"
#include "tests/core/model/model_json.hpp"

namespace sextant {
namespace {

// config.json as published, against the preset of its numbers.
// NOLINTNEXTLINE(readability-function-size): a table of published files
TEST(Families, ConfigurationsReadAsTheirPresets) {
  const auto same = [](const char* preset, const char* config) {
    ModelSpec read = model_from_json(json::parse(config), preset), expected = load_model(preset, kPresets);
    EXPECT_EQ(json(read), json(expected)) << preset;
  };
  same(
      "qwen3-8b",
      R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 4096, "intermediate_size": 12288, "max_position_embeddings": 40960, "max_window_layers": 36,
    "model_type": "qwen3", "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
    "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": false,
    "use_sliding_window": false, "vocab_size": 151936})");
  same(
      "olmo2-7b",
      R"({"architectures": ["Olmo2ForCausalLM"], "attention_bias": false, "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 11008, "max_position_embeddings": 4096, "model_type": "olmo2", "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 32, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 500000,
    "tie_word_embeddings": false, "vocab_size": 100352})");
  same("mistral-7b-v0.1",
       R"({"architectures": ["MistralForCausalLM"], "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096,
    "tie_word_embeddings": false, "vocab_size": 32000})");
  same("baichuan2-7b",
       R"({"architectures": ["BaichuanForCausalLM"], "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 11008, "max_position_embeddings": 4096, "model_max_length": 4096, "model_type": "baichuan",
    "num_attention_heads": 32, "num_hidden_layers": 32, "rms_norm_eps": 1e-06, "tie_word_embeddings": false,
    "vocab_size": 125696, "z_loss_weight": 0})");
  same(
      "mistral-7b",
      R"({"architectures": ["MistralForCausalLM"], "hidden_act": "silu", "model_type": "mistral", "rms_norm_eps": 1e-05,
    "tie_word_embeddings": false, "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "rope_theta": 1000000.0,
    "sliding_window": null, "vocab_size": 32768})");
  same(
      "mistral-nemo-12b",
      R"({"architectures": ["MistralForCausalLM"], "hidden_act": "silu", "model_type": "mistral", "rms_norm_eps": 1e-05,
    "tie_word_embeddings": false, "head_dim": 128, "hidden_size": 5120, "intermediate_size": 14336,
    "max_position_embeddings": 131072, "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8,
    "rope_theta": 1000000.0, "sliding_window": null, "vocab_size": 131072})");
  same(
      "mistral-large-123b",
      R"({"architectures": ["MistralForCausalLM"], "hidden_act": "silu", "model_type": "mistral", "rms_norm_eps": 1e-05,
    "tie_word_embeddings": false, "hidden_size": 12288, "intermediate_size": 28672,
    "max_position_embeddings": 131072, "num_attention_heads": 96, "num_hidden_layers": 88, "num_key_value_heads": 8,
    "rope_theta": 1000000.0, "sliding_window": null, "vocab_size": 32768})");
  same(
      "qwen2.5-0.5b",
      R"({"architectures": ["Qwen2ForCausalLM"], "hidden_act": "silu", "model_type": "qwen2", "rope_theta": 1000000.0,
    "use_mrope": false, "use_sliding_window": false, "hidden_size": 896, "intermediate_size": 4864,
    "max_position_embeddings": 32768, "max_window_layers": 24, "num_attention_heads": 14, "num_hidden_layers": 24,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "sliding_window": 32768, "tie_word_embeddings": true,
    "vocab_size": 151936})");
  same(
      "qwen2.5-7b",
      R"({"architectures": ["Qwen2ForCausalLM"], "hidden_act": "silu", "model_type": "qwen2", "rope_theta": 1000000.0,
    "use_mrope": false, "use_sliding_window": false, "hidden_size": 3584, "intermediate_size": 18944,
    "max_position_embeddings": 131072, "max_window_layers": 28, "num_attention_heads": 28, "num_hidden_layers": 28,
    "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "sliding_window": 131072, "tie_word_embeddings": false,
    "vocab_size": 152064})");
  same(
      "qwen1.5-110b",
      R"({"architectures": ["Qwen2ForCausalLM"], "hidden_act": "silu", "model_type": "qwen2", "rope_theta": 1000000.0,
    "use_sliding_window": false, "hidden_size": 8192, "intermediate_size": 49152, "max_position_embeddings": 32768,
    "max_window_layers": 70, "num_attention_heads": 64, "num_hidden_layers": 80, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06, "sliding_window": 32768, "tie_word_embeddings": false, "vocab_size": 152064})");
  same(
      "qwen3-0.6b",
      R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "head_dim": 128, "hidden_act": "silu",
    "max_position_embeddings": 40960, "model_type": "qwen3", "rms_norm_eps": 1e-06, "rope_scaling": null,
    "rope_theta": 1000000, "sliding_window": null, "use_sliding_window": false, "vocab_size": 151936,
    "hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16, "num_hidden_layers": 28,
    "num_key_value_heads": 8, "tie_word_embeddings": true, "max_window_layers": 28})");
  same("internlm2-7b", R"({"architectures": ["InternLM2ForCausalLM"], "bias": false, "hidden_act": "silu",
    "max_position_embeddings": 32768, "model_type": "internlm2", "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
    "rope_theta": 1000000, "tie_word_embeddings": false, "vocab_size": 92544, "hidden_size": 4096,
    "intermediate_size": 14336, "num_attention_heads": 32, "num_hidden_layers": 32, "rope_scaling": null})");
  same("internlm3-8b",
       R"({"architectures": ["InternLM3ForCausalLM"], "bias": false, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 4096, "intermediate_size": 10240, "max_position_embeddings": 32768, "model_type": "internlm3",
    "num_attention_heads": 32, "num_hidden_layers": 48, "num_key_value_heads": 2, "qkv_bias": false,
    "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 6.0, "rope_type": "dynamic"}, "rope_theta": 50000000,
    "tie_word_embeddings": false, "vocab_size": 128512})");
  same(
      "baichuan-7b",
      R"({"architectures": ["BaiChuanForCausalLM"], "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 11008,
    "max_position_embeddings": 4096, "model_type": "baichuan", "num_attention_heads": 32, "num_hidden_layers": 32,
    "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "vocab_size": 64000})");
  same(
      "baichuan-13b",
      R"({"architectures": ["BaichuanForCausalLM"], "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 13696,
    "model_max_length": 4096, "model_type": "baichuan", "num_attention_heads": 40, "num_hidden_layers": 40,
    "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "vocab_size": 64000})");
  same(
      "baichuan2-13b",
      R"({"architectures": ["BaichuanForCausalLM"], "tokenizer_class": "BaichuanTokenizer", "hidden_act": "silu",
    "hidden_size": 5120, "intermediate_size": 13696, "model_max_length": 4096, "model_type": "baichuan",
    "num_attention_heads": 40, "num_hidden_layers": 40, "rms_norm_eps": 1e-06, "tie_word_embeddings": false,
    "vocab_size": 125696, "z_loss_weight": 0})");
  same(
      "phi3-mini",
      R"({"architectures": ["Phi3ForCausalLM"], "attention_bias": false, "hidden_act": "silu", "model_type": "phi3",
    "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
    "tie_word_embeddings": false, "hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 4096,
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "rope_scaling": null,
    "sliding_window": 2047, "vocab_size": 32064})");
  same(
      "phi4",
      R"({"architectures": ["Phi3ForCausalLM"], "attention_bias": false, "hidden_act": "silu", "model_type": "phi3",
    "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "hidden_size": 5120, "intermediate_size": 17920,
    "max_position_embeddings": 16384, "num_attention_heads": 40, "num_hidden_layers": 40, "num_key_value_heads": 10,
    "original_max_position_embeddings": 16384, "rope_scaling": null, "rope_theta": 250000, "sliding_window": null,
    "vocab_size": 100352})");
  same(
      "seed-oss-36b",
      R"({"architectures": ["SeedOssForCausalLM"], "attention_bias": true, "attention_out_bias": false, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 27648, "max_position_embeddings": 524288,
    "mlp_bias": false, "model_type": "seed_oss", "num_attention_heads": 80, "num_hidden_layers": 64,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": {"rope_type": "default"},
    "rope_theta": 10000000.0, "tie_word_embeddings": false, "vocab_size": 155136})");
}

// Names of the hub, with their owner or without, in any spelling of blanks; another owner's are not taken.
TEST(Families, NamesOfTheHubNeedNoOwner) {
  for (const char* name : {"mistralai/Mistral-7B-v0.3", "Mistral-7B-v0.3", "mistral-7b-v0.3"})
    EXPECT_EQ(load_model(name, kPresets).name, "mistral-7b") << name;
  EXPECT_EQ(load_model("OLMo-2-1124-7B", kPresets).name, "olmo2-7b");
  EXPECT_EQ(load_model("phi-4", kPresets).name, "phi4");
  EXPECT_THROW(load_model("somebody/Mistral-7B-v0.3", kPresets), ConfigError);
}

// What was tuned has the shape of its first training, in the version that it names: Mistral's 0.2 has fewer words than 0.3.
TEST(Families, TunedNamesLeadToTheShapeOfTheirVersion) {
  const auto hint = [](const char* name) { return unknown_model(name, kPresets).hint; };
  EXPECT_EQ(hint("Mistral-7B-Instruct-v0.1"), "did you mean mistral-7b-v0.1? It has the same shape");
  EXPECT_EQ(hint("mistralai/Mistral-7B-Instruct-v0.3"), "did you mean mistral-7b? It has the same shape");
  EXPECT_EQ(hint("qwen3-8b-base"), "did you mean qwen3-8b? It has the same shape");
  for (const char* name : {"mistral-7b-instruct-v0.2", "mistral-7b-v0.2"}) {
    EXPECT_TRUE(has(hint(name), "did you mean mistral-7b? It is of another version")) << hint(name);
    EXPECT_FALSE(has(hint(name), "same shape")) << hint(name);
  }
}

TEST(Families, WindowsOfSomeLayersAreRefused) {
  json j = v4();
  j["model_type"] = "qwen2";
  j["architectures"] = {"Qwen2ForCausalLM"};
  j["sliding_window"] = 4096;
  j["max_window_layers"] = 3;
  EXPECT_EQ(model_from_json(j, "m").window, 0) << "it is off";
  j["use_sliding_window"] = true;
  EXPECT_TRUE(has(error_of(j), "max_window_layers: found 3, expected 0, or all 32 layers")) << error_of(j);
  j["max_window_layers"] = 0;
  EXPECT_EQ(model_from_json(j, "m").window, 4096);
  j["max_window_layers"] = 32;
  EXPECT_EQ(model_from_json(j, "m").window, 0);
  j["max_window_layers"] = 0;
  j["layer_types"] = {"full_attention", "sliding_attention"};
  EXPECT_TRUE(has(error_of(j), "layer_types: found ")) << error_of(j);
}

TEST(Families, WhatIsKnownButNotModelledSaysWhatIsMissing) {
  for (const auto& [type, what] : std::map<std::string, const char*>{{"mixtral", "a mixture of experts"},
                                                                     {"qwen3_moe", "a mixture of experts"},
                                                                     {"llama4", "attention over chunks"},
                                                                     {"gemma2", "norms on both sides"},
                                                                     {"deepseek_v3", "latent attention"}}) {
    json j = v4();
    j["model_type"] = type;
    j.erase("architectures");
    EXPECT_TRUE(has(error_of(j), what)) << type << ": " << error_of(j);
  }
}

// A mixture of experts whose type nobody here knows is told by its keys, whatever it calls their number.
TEST(Families, MixturesOfExpertsOfUnknownTypesAreToldByTheirKeys) {
  for (const char* key : {"num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"}) {
    json j = v4();
    j["model_type"] = "nobodys";
    j["architectures"] = {"NobodysForCausalLM"};
    j[key] = 64;
    EXPECT_TRUE(has(error_of(j), "not known here; by its keys it needs a mixture of experts"))
        << key << ": " << error_of(j);
    j[key] = 1;
    EXPECT_FALSE(has(error_of(j), "a mixture of experts")) << key << ": " << error_of(j);
  }
}

// A file without model_type, and a type that another's class runs: the class tells.
TEST(Families, WhatIsMissingIsToldByTheClassToo) {
  json j = v4();
  j.erase("model_type");
  j["architectures"] = {"Gemma2ForCausalLM"};
  EXPECT_TRUE(has(error_of(j), "it needs norms on both sides of a half-layer")) << error_of(j);
  j["model_type"] = "kimi_k2";
  j["architectures"] = {"DeepseekV3ForCausalLM"};
  EXPECT_TRUE(has(error_of(j), "it needs a mixture of experts, and latent attention")) << error_of(j);
  j["model_type"] = "nobodys";
  j["architectures"] = {"NobodysForCausalLM"};
  EXPECT_FALSE(has(error_of(j), "it needs")) << error_of(j);
}

// Not every file of Baichuan 2 states its z-loss: then its vocabulary tells. What the family reads is not called unknown.
TEST(Families, ANormalizedHeadIsToldByItsKeyOrItsVocabulary) {
  json j = v4();
  j["model_type"] = "baichuan";
  j["architectures"] = {"BaichuanForCausalLM"};
  j["model_max_length"] = 4096;
  const auto normalized = [&](int vocabulary, bool key) {
    j["vocab_size"] = vocabulary;
    j.erase("z_loss_weight");
    if (key) j["z_loss_weight"] = 0;
    std::vector<std::string> notes;
    const ModelSpec m = model_from_hugging_face(j, "m", &notes);
    EXPECT_EQ(notes, std::vector<std::string>());
    // A file that is written of it says the same.
    const ModelFamily* family = family_of(m);
    EXPECT_EQ(family && family->model_type == "baichuan", m.normalized_head);
    return m.normalized_head;
  };
  EXPECT_TRUE(normalized(125696, true));
  EXPECT_TRUE(normalized(125696, false));
  EXPECT_TRUE(normalized(125697, true));
  EXPECT_FALSE(normalized(64000, false));
  ModelSpec plain;  // an ALiBi model that no file of the family can say
  j["vocab_size"] = 64000;
  j["hidden_size"] = 5120;
  j["num_attention_heads"] = 40;
  plain = model_from_json(j, "m");
  ASSERT_EQ(plain.position, PositionKind::alibi);
  EXPECT_NE(family_of(plain), nullptr);
  plain.vocab_size = 125696;
  EXPECT_EQ(family_of(plain), nullptr);
}

// Each piece that Gemma's decoders need beside LLaMA's, by its configuration and code in transformers.
TEST(Families, GemmasAreRefusedWithEachMissingPiece) {
  const auto refusal = [](const char* type) {
    json j = v4();
    j["model_type"] = type;
    j.erase("architectures");
    return error_of(j);
  };
  const char* const all[] = {"norms on both sides of a half-layer", "scores scaled by a number of their own",
                             "scaled embeddings", "a GELU gate", "whose weights count from one"};
  EXPECT_TRUE(has(refusal("gemma3"), "and an encoder of images"));
  EXPECT_FALSE(has(refusal("gemma3_text"), "encoder of images"));
  for (const char* type : {"gemma2", "gemma3_text", "gemma3"})
    for (const char* piece : all) EXPECT_TRUE(has(refusal(type), piece)) << type << ": " << refusal(type);
  EXPECT_TRUE(has(refusal("gemma2"), "windows in every second layer, capped scores and logits"));
  EXPECT_TRUE(has(refusal("gemma3_text"), "windows in five of six layers, two rotary bases"));
  EXPECT_FALSE(has(refusal("gemma3_text"), "capped")) << "it has no caps";
}

// Of what is known the words say what is missing; a shape that LLaMA's costs cover is named, others are not sent there.
TEST(Families, HintsLeadToLlamaOnlyWhereItsPlanIsTheirs) {
  const auto refusal = [](const char* type) {
    json j = v4();
    j["model_type"] = type;
    j.erase("architectures");
    return error_of(j);
  };
  for (const char* type :
       {"falcon", "cohere", "glm", "stablelm", "olmo3", "qwen2_5_vl", "mpt", "gemma3_text"}) {
    EXPECT_TRUE(has(refusal(type), "known, but not modelled: it needs ")) << refusal(type);
    EXPECT_FALSE(has(refusal(type), "LlamaForCausalLM, which")) << refusal(type);
  }
  for (const char* type : {"granite", "smollm3"})
    EXPECT_TRUE(has(refusal(type), "state its sizes as model_type llama")) << refusal(type);
  EXPECT_TRUE(has(refusal("nobodys"), "not known here; only if its layers are LLaMA's in all"));
}

// Counts: the modules of transformers 5.24, built without storage.
TEST(Families, OfOtherNamesAreCountedExactly) {
  const json seed = json::parse(
      R"({"architectures": ["SeedOssForCausalLM"], "model_type": "seed_oss", "attention_bias": true,
    "attention_out_bias": false, "attention_dropout": 0.1, "residual_dropout": 0.1, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 5120, "intermediate_size": 27648, "max_position_embeddings": 524288, "mlp_bias": false,
    "num_attention_heads": 80, "num_hidden_layers": 64, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
    "rope_scaling": {"rope_type": "default"}, "rope_theta": 10000000.0, "tie_word_embeddings": false,
    "vocab_size": 155136})");
  EXPECT_EQ(parameter_counts(model_from_json(seed, "m")).total, 36'151'104'512);
  json absent = seed;
  absent.erase("attention_bias");
  EXPECT_EQ(model_from_json(absent, "m"), model_from_json(seed, "m"))
      << "biases of q, k and v are the default";
  json other = seed;
  other["attention_out_bias"] = true;
  EXPECT_EQ(parameter_counts(model_from_json(other, "m")).total, 36'151'104'512 + 64 * 5120);
  const json internlm3 =
      json::parse(R"({"architectures": ["InternLM3ForCausalLM"], "model_type": "internlm3", "bias": false,
    "qkv_bias": false, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 10240,
    "max_position_embeddings": 32768, "num_attention_heads": 32, "num_hidden_layers": 48, "num_key_value_heads": 2,
    "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 6.0, "rope_type": "dynamic"}, "rope_theta": 50000000,
    "tie_word_embeddings": false, "vocab_size": 128512})");
  EXPECT_EQ(parameter_counts(model_from_json(internlm3, "m")).total, 8'804'241'408);
  json biased = internlm3;
  biased["qkv_bias"] = true;
  EXPECT_TRUE(has(error_of(biased), "qkv_bias: found true")) << error_of(biased);
}

// Phi-3's files say the length of the first training beside the scaling, whose own word transformers does not hear.
TEST(Families, LongropeIsReadWithItsTables) {
  json j = v4();
  j["head_dim"] = 4;
  j["max_position_embeddings"] = 131072;
  j["rope_scaling"] = {{"type", "longrope"}, {"short_factor", {1.0, 1.5}}, {"long_factor", {1.0, 40.0}}};
  j["rope_scaling"]["original_max_position_embeddings"] = 8192;
  const RopeScaling llama = model_from_json(j, "m").rope_scaling.value();
  EXPECT_EQ(llama.type, "longrope");
  EXPECT_EQ(llama.factor, 16) << "131072 / 8192, where no factor is stated";
  EXPECT_EQ(llama.short_factor, (std::vector<double>{1.0, 1.5}));
  EXPECT_EQ(llama.long_factor, (std::vector<double>{1.0, 40.0}));

  json phi = j;
  phi["model_type"] = "phi3";
  phi["architectures"] = {"Phi3ForCausalLM"};
  const auto not_run = [](const json& config) {
    return *rope_not_run(*model_from_json(config, "m").rope_scaling);
  };
  EXPECT_TRUE(has(not_run(phi), "original_max_position_embeddings is 8192, and 4096 in this family"))
      << not_run(phi);
  phi["original_max_position_embeddings"] = 8192;
  EXPECT_EQ(model_from_json(phi, "m").rope_scaling, llama);
  phi["rope_scaling"].erase("original_max_position_embeddings");
  phi["rope_scaling"]["type"] = "su";
  EXPECT_EQ(model_from_json(phi, "m").rope_scaling, llama);
  phi.erase("original_max_position_embeddings");
  EXPECT_EQ(model_from_json(phi, "m").rope_scaling->factor, 32);

  json wrong = j;
  wrong["rope_scaling"]["long_factor"] = {1.0};
  EXPECT_TRUE(has(not_run(wrong), "long_factor has 1 numbers for 2 pairs of a head")) << not_run(wrong);
  wrong["rope_scaling"]["long_factor"] = {1.0, 0.0};
  EXPECT_TRUE(has(not_run(wrong), "long_factor has numbers that are not above 0")) << not_run(wrong);
  wrong["rope_scaling"].erase("long_factor");
  EXPECT_TRUE(has(not_run(wrong), "long_factor is missing")) << not_run(wrong);
}

TEST(Families, LayersWithoutPositionsAreRefused) {
  json j = v4();
  j["no_rope_layers"] = {1, 1, 1, 1};
  EXPECT_EQ(error_of(j), "accepted");
  j["no_rope_layers"] = {1, 1, 1, 0};
  EXPECT_TRUE(has(error_of(j), "no_rope_layers: found [1,1,1,0]")) << error_of(j);
}

// The first family that has all of a model, and what the rows of packed tensors are.
TEST(Families, SayWhereTensorsLie) {
  const auto first = [](const char* preset) { return family_of(load_model(preset, kPresets))->model_type; };
  EXPECT_EQ(first("llama-3-8b"), "llama");
  EXPECT_EQ(first("qwen2.5-7b"), "qwen2");
  EXPECT_EQ(first("qwen3-8b"), "qwen3");
  EXPECT_EQ(first("olmo2-7b"), "olmo2");
  EXPECT_EQ(first("mistral-7b-v0.1"), "mistral");
  EXPECT_EQ(first("baichuan2-13b"), "baichuan");
  EXPECT_EQ(family_of(load_model("bloom-176b", kPresets)), nullptr);
  const ModelSpec m = load_model("internlm2-7b", kPresets);  // four queries of 128 rows for each key
  const auto family = std::ranges::find(families(), "internlm2", &ModelFamily::model_type);
  const TensorPlace k = place_of(*family, m, "model.layers.3.self_attn.k_proj.weight", 8 * 128);
  EXPECT_EQ(k.tensor, "model.layers.3.attention.wqkv.weight");
  EXPECT_EQ(k.rows, 6144);
  EXPECT_EQ(k.row(0), 512);
  EXPECT_EQ(k.row(127), 639);
  EXPECT_EQ(k.row(128), 768 + 512);
}

}  // namespace
}  // namespace sextant

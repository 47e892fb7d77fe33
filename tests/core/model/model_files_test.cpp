// Models as their users have them: Hugging Face v4 and v5, checkpoint folders, our own JSON.
#include "core/model/model_files.hpp"

#include <map>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/core/model/model_json.hpp"
#include "tests/support/temp_dir.hpp"

namespace sextant {
namespace {

TEST(HuggingFace, BothGenerationsOfKeysGiveThePreset) {
  EXPECT_EQ(model_from_json(v4(), "llama-3.1-8b"), preset("llama-3.1-8b"));
  EXPECT_EQ(model_from_json(v5(), "llama-3.1-8b"), preset("llama-3.1-8b"));
  json other = v5();  // negative control: rope_theta inside rope_parameters is read
  other["rope_parameters"]["rope_theta"] = 10000.0;
  EXPECT_NE(model_from_json(other, "llama-3.1-8b"), preset("llama-3.1-8b"));
}

TEST(HuggingFace, AbsentAndNullFieldsHaveLlamaConfigsDefaults) {
  const json j = json::parse(R"({"model_type": "llama", "vocab_size": 32000, "hidden_size": 4096,
                                 "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
                                 "num_key_value_heads": null, "head_dim": null, "rope_scaling": null,
                                 "torch_dtype": null})");
  ModelSpec expected = named(preset("llama-7b"), "m");
  EXPECT_EQ(model_from_json(j, "m"), expected);
  // The sizes that make the model are not guessed.
  for (const char* size :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}) {
    json without = j;
    without.erase(size);
    EXPECT_THROW(model_from_json(without, "m"), ConfigError) << size;
  }
}

TEST(HuggingFace, WhatIsMissingIsDescribed) {
  json j = v4();
  j.erase("hidden_size");
  EXPECT_TRUE(has(error_of(j),
                  "hidden_size: is missing: a whole number, such as \"hidden_size\": 4096, in the "
                  "config.json of the model"))
      << error_of(j);
}

// transformers adds it to a tensor, and fails with null.
TEST(HuggingFace, AnEpsilonOfNullIsRefused) {
  json j = v4();
  j["rms_norm_eps"] = nullptr;
  EXPECT_TRUE(has(error_of(j), "rms_norm_eps: found null, expected a number above 0")) << error_of(j);
  j.erase("rms_norm_eps");
  EXPECT_EQ(model_from_json(j, "m").norm_eps, 1e-6);
}

TEST(HuggingFace, HeadDimIsAFieldOfItsOwn) {
  json j = v4();
  j["head_dim"] = 64;
  const ModelSpec m = model_from_json(j, "m");
  EXPECT_EQ(m.head_dim, 64);
  EXPECT_EQ(parameter_counts(m).attention, 2 * 4096 * (32 + 8) * 64);
}

TEST(HuggingFace, TyingAndBiasesAreRead) {
  json j = v4();
  j["tie_word_embeddings"] = true;
  j["attention_bias"] = true;
  ModelSpec m = model_from_json(j, "m");
  EXPECT_TRUE(m.tied_embeddings && m.qkv_bias && m.output_bias && !m.mlp_bias && !m.linear_bias);
  j["attention_bias"] = false;
  j["mlp_bias"] = true;
  m = model_from_json(j, "m");
  EXPECT_TRUE(!m.qkv_bias && !m.output_bias && m.mlp_bias);
}

TEST(HuggingFace, RopeForms) {
  json j = v4();
  j["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  const ModelSpec linear = model_from_json(j, "m");
  ASSERT_TRUE(linear.rope_scaling);
  EXPECT_EQ(linear.rope_scaling->type, "linear");
  EXPECT_EQ(linear.rope_scaling->original_max_positions, 131072);
  j["rope_scaling"] = {{"rope_type", "default"}};
  EXPECT_FALSE(model_from_json(j, "m").rope_scaling);
  j["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}, {"beta_fast", 32}};
  EXPECT_EQ(model_from_json(j, "m").rope_scaling->type, "yarn");
}

// Heads that are rotated in part cost what whole ones do: planned, and refused by name where they are trained.
TEST(HuggingFace, HeadsRotatedInPartArePlannedAndNotRun) {
  const auto model = [](const json& more) {
    json j = v4();
    j.erase("rope_scaling");
    j.update(more);
    return model_from_json(j, "m");
  };
  const std::string why = "partial_rotary_factor is 0.75, and heads are rotated whole here";
  const ModelSpec partial = model({{"partial_rotary_factor", 0.75}});
  ASSERT_TRUE(partial.rope_scaling);
  EXPECT_EQ(rope_not_run(*partial.rope_scaling), why);
  EXPECT_EQ(parameter_counts(partial).total, parameter_counts(model(json::object())).total);
  EXPECT_EQ(json(partial).get<ModelSpec>(), partial);
  const ModelSpec v5 =
      model({{"rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", 0.75}}}});
  EXPECT_EQ(rope_not_run(v5.rope_scaling.value()), why);
  // Beside a scaling that is run, and one that is not.
  const json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}};
  EXPECT_EQ(
      rope_not_run(model({{"partial_rotary_factor", 0.75}, {"rope_scaling", yarn}}).rope_scaling.value()),
      why);
  EXPECT_EQ(rope_not_run(model({{"partial_rotary_factor", 0.75}, {"rope_scaling", {{"type", "mrope"}}}})
                             .rope_scaling.value()),
            "mrope is not known; " + why);
  // Phi-4-mini: a table of longrope has a number for each pair that is rotated.
  const auto long_rope = [&](std::size_t pairs) {
    const std::vector<double> factors(pairs, 1.0);
    return rope_not_run(
        model({{"head_dim", 128},
               {"partial_rotary_factor", 0.75},
               {"rope_scaling", {{"type", "longrope"}, {"short_factor", factors}, {"long_factor", factors}}}})
            .rope_scaling.value());
  };
  EXPECT_EQ(long_rope(48), why);
  EXPECT_NE(long_rope(64), why);
  // A whole head is no news, and more than a head is a slip.
  EXPECT_FALSE(model({{"partial_rotary_factor", 1.0}}).rope_scaling);
  EXPECT_FALSE(
      rope_not_run(model({{"partial_rotary_factor", 1}, {"rope_scaling", yarn}}).rope_scaling.value()));
  EXPECT_THROW(model({{"partial_rotary_factor", 1.5}}), ConfigError);
  EXPECT_THROW(model({{"partial_rotary_factor", "half"}}), ConfigError);
}

// No plan depends on how rotary positions are scaled: what is not known here is read, and marked as what the runtime refuses.
TEST(HuggingFace, RopeScalingsThatAreNotKnownArePlannedAndNotRun) {
  const auto not_run = [](const json& scaling, const char* key = "rope_scaling") -> std::string {
    json j = v4();
    j.erase("rope_scaling");
    j[key] = scaling;
    const ModelSpec m = model_from_json(j, "m");
    EXPECT_EQ(parameter_counts(m).total, parameter_counts(model_from_json(v4(), "m")).total);
    return m.rope_scaling ? rope_not_run(*m.rope_scaling).value_or("runs") : "none";
  };
  EXPECT_EQ(not_run({{"type", "su"}}), "longrope: short_factor is missing, long_factor is missing");
  for (const char* type : {"mrope", "ntk", "proportional", "anything"}) {
    EXPECT_EQ(not_run({{"type", type}, {"factor", 0.5}, {"mrope_section", {16, 24, 24}}}),
              std::string(type) + " is not known");
    EXPECT_EQ(not_run({{"rope_type", type}}, "rope_parameters"), std::string(type) + " is not known");
  }
  EXPECT_EQ(not_run({{"rope_type", "llama3"}, {"factor", 8.0}, {"high_freq_factor", 0.5}}),
            "llama3: low_freq_factor is missing, original_max_position_embeddings is missing");
  EXPECT_EQ(not_run({{"rope_type", "yarn"}}), "yarn: factor is missing");
  EXPECT_EQ(not_run({{"rope_type", "yarn"}, {"factor", 4.0}, {"mscale", 1.0}}),
            "yarn: mscale is not known; attention_factor is");
  EXPECT_EQ(not_run({{"factor", 8.0}}), "default: rope_type is missing, and a factor is stated");
  EXPECT_EQ(not_run({{"full_attention", {{"rope_type", "default"}}}}, "rope_parameters"),
            "default: full_attention scales by kind of layer");
  // And as they should be:
  EXPECT_EQ(not_run({{"rope_type", "llama3"},
                     {"factor", 8.0},
                     {"low_freq_factor", 1.0},
                     {"high_freq_factor", 4.0},
                     {"original_max_position_embeddings", 8192}}),
            "runs");
  EXPECT_EQ(not_run({{"rope_type", "yarn"}, {"factor", 4.0}}), "runs");
  EXPECT_EQ(not_run({{"rope_type", "default"}}), "none");
  EXPECT_EQ(not_run(json::object()), "none");
}

TEST(HuggingFace, WhatARopeScalingLacksSurvivesAPlanFile) {
  json j = v4();
  j["rope_scaling"] = {{"rope_type", "llama3"}};
  const ModelSpec m = model_from_json(j, "m");
  EXPECT_EQ(json(m).get<ModelSpec>(), m);
  EXPECT_NE(m, model_from_json(v4(), "m"));
  EXPECT_FALSE(json(model_from_json(v4(), "m"))["rope_scaling"].contains("not_run"));
}

TEST(HuggingFace, UnknownArchitecturesAreRefusedWithTheKnownOnes) {
  json j = v4();
  j["model_type"] = "mixtral";
  j["architectures"] = {"MixtralForCausalLM"};
  EXPECT_TRUE(has(error_of(j), "model_type: found \"mixtral\" of MixtralForCausalLM, expected one of llama"))
      << error_of(j);
  EXPECT_TRUE(has(error_of(j), "gpt2 (GPT2LMHeadModel), bloom (BloomForCausalLM)"));
  j = v4();
  j["architectures"] = {"LlamaForSequenceClassification"};
  EXPECT_NE(error_of(j), "accepted");
  j = v4();
  j.erase("model_type");  // the class alone says it too
  EXPECT_EQ(error_of(j), "accepted");
  EXPECT_TRUE(has(error_of(json::object()), "is not a model"));
  EXPECT_NE(error_of(json::parse(R"({"architectures": [], "model_type": 3})")), "accepted");
}

TEST(HuggingFace, SlipsInKeysAreSeenThoughOtherKeysMayStand) {
  json j = v4();
  j["num_hiden_layers"] = j["num_hidden_layers"];
  j.erase("num_hidden_layers");
  EXPECT_TRUE(has(error_of(j), "num_hiden_layers: unknown field, did you mean num_hidden_layers?"))
      << error_of(j);
}

TEST(HuggingFace, EveryProblemIsReported) {
  json j = v4();
  j["hidden_size"] = 4097;
  j["vocab_size"] = "many";
  j["hidden_act"] = "gelu";
  j["num_key_value_heads"] = 5;
  const std::string all = error_of(j);
  for (const char* part :
       {"num_attention_heads: found 32, expected a divisor of hidden_size 4097", "vocab_size: found \"many\"",
        "hidden_act: found \"gelu\", expected one of silu, swish"})
    EXPECT_TRUE(has(all, part)) << part << "\nin\n" << all;
}

TEST(HuggingFace, AMistakeIsBlamedOnTheKeyThatHasIt) {
  for (const auto& [key, value] : std::vector<std::pair<std::string, int>>{
           {"hidden_size", -1}, {"num_attention_heads", 0}, {"num_attention_heads", -4}}) {
    json j = v4();
    j.erase("num_key_value_heads");
    j[key] = value;
    const std::string error = error_of(j);
    EXPECT_TRUE(has(error, key + ": found " + std::to_string(value) + ", expected from 1 to")) << error;
    EXPECT_EQ(error.find("found"), error.rfind("found")) << error;
  }
  json j = v4();
  j["rope_scaling"]["factor"] = 0.5;
  j["vocab_size"] = 0;  // both are in the file
  EXPECT_TRUE(has(error_of(j), "rope_scaling.factor: found 0.5")) << error_of(j);
  EXPECT_TRUE(has(error_of(j), "vocab_size: found 0")) << error_of(j);
  j = json::parse(R"({"model_type": "gpt2", "n_embd": 768, "n_head": 0, "n_layer": -1, "n_positions": 1024,
                      "vocab_size": 50257})");
  EXPECT_TRUE(has(error_of(j), "n_head: found 0")) << error_of(j);
  EXPECT_TRUE(has(error_of(j), "n_layer: found -1")) << error_of(j);
  EXPECT_FALSE(has(error_of(j), "head_dim")) << error_of(j);
}

TEST(HuggingFace, WhatContradictsOrIsNotDenseIsRefused) {
  json j = v5();
  j["rope_theta"] = 10000.0;
  EXPECT_TRUE(has(error_of(j), "rope_parameters.rope_theta: found 500000, expected the rope_theta of 10000"))
      << error_of(j);
  j["rope_theta"] = 500000.0;  // said twice
  EXPECT_EQ(error_of(j), "accepted");
  j = v4();
  j["num_local_experts"] = 8;
  EXPECT_TRUE(has(error_of(j), "num_local_experts: found 8")) << error_of(j);
  j["num_local_experts"] = 1;
  EXPECT_EQ(error_of(j), "accepted");
  j = v4();
  j["num_key_value_heads"] = 5;  // under the name that the file has
  EXPECT_TRUE(has(error_of(j), "num_key_value_heads: found 5, expected a divisor of the 32 heads"))
      << error_of(j);
}

TEST(HuggingFace, KeysOfAnotherArchitectureAreRefused) {
  for (const auto& [key, value] :
       std::map<std::string, json>{{"sliding_window", 4096},
                                   {"layer_types", {"full_attention", "sliding_attention"}},
                                   {"kv_lora_rank", 512},
                                   {"residual_multiplier", 0.22},
                                   {"vision_config", {{"depth", 32}}},
                                   {"is_encoder_decoder", true}}) {
    json j = v4();
    j[key] = value;
    EXPECT_TRUE(has(error_of(j), key + ": found ")) << key << ": " << error_of(j);
  }
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, json>>{{"sliding_window", nullptr},
                                                 {"sliding_window", 131072},
                                                 {"layer_types", {"full_attention", "full_attention"}},
                                                 {"residual_multiplier", 1.0},
                                                 {"is_encoder_decoder", false}}) {
    json j = v4();
    j[key] = value;
    EXPECT_EQ(error_of(j), "accepted") << key;
  }
  json off = v4();
  off["sliding_window"] = 4096;
  off["use_sliding_window"] = false;
  EXPECT_EQ(error_of(off), "accepted");
}

TEST(HuggingFace, KeysThatNobodyKnowsAreNamedAndBookkeepingIsNot) {
  EXPECT_TRUE(notes_of(v4()).empty()) << notes_of(v4()).front();
  EXPECT_TRUE(notes_of(v5()).empty()) << notes_of(v5()).front();
  json j = v4();
  j["num_sinks"] = 4;
  j["nothing_here"] = nullptr;
  j["_attn_implementation"] = "sdpa";
  j["quantization_config"] = {{"quant_method", "gptq"}, {"bits", 4}};
  const auto notes = notes_of(j);
  ASSERT_EQ(notes.size(), 2U);
  EXPECT_TRUE(has(notes[0], "quantization_config: the checkpoint is quantized")) << notes[0];
  EXPECT_TRUE(has(notes[1], "not used: num_sinks") && !has(notes[1], "nothing_here")) << notes[1];
}

TEST(LoadModel, ReadsFilesFoldersAndOwnJson) {
  const TempDir dir;
  dir.write("my-llama/config.json", v4().dump());
  const std::string folder = (dir.path() / "my-llama").string();
  EXPECT_EQ(load_model(folder, kPresets), named(preset("llama-3.1-8b"), "my-llama"));
  EXPECT_EQ(load_model(folder + "/config.json", kPresets).name, "my-llama");
  dir.write("meta/params.json", R"({"dim": 4096, "multiple_of": 256, "n_heads": 32, "n_layers": 32,
                                    "vocab_size": 32000})");
  EXPECT_EQ(parameter_counts(load_model((dir.path() / "meta").string(), kPresets)).total, 6'738'415'616);
  const auto own = dir.write("own.json", json(preset("bloom-176b")).dump());
  EXPECT_EQ(load_model(own.string(), kPresets), preset("bloom-176b"));
  const auto brief = dir.write("brief.json", R"({"n_layers": 2, "hidden": 64, "n_heads": 4, "ffn_hidden": 100,
                                                 "vocab_size": 99} // defaults for the rest)");
  EXPECT_EQ(load_model(brief.string(), kPresets).head_dim, 16);
  EXPECT_EQ(load_model(brief.string(), kPresets).name, "brief");
}

TEST(LoadModel, WeightsMustFitTheConfiguration) {
  const TempDir dir;
  dir.write("c/config.json", v4().dump());
  const auto check = [&](std::int64_t total_size) {
    dir.write("c/model.safetensors.index.json", json{{"metadata", {{"total_size", total_size}}}}.dump());
    try {
      load_model((dir.path() / "c").string(), kPresets);
    } catch (const ConfigError& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(check(16'060'522'496), "accepted");                // 2 * 8,030,261,248
  EXPECT_EQ(check(16'060'522'496 + 32 * 64 * 2), "accepted");  // old files keep inv_freq of each layer
  EXPECT_TRUE(has(check(16'060'522'494), "metadata.total_size: found 16060522494, expected 16060522496"));
  EXPECT_TRUE(has(check(13'476'831'232), "does not describe these weights"));
}

TEST(LoadModel, SaysWhatItCouldNotFind) {
  const auto error = [](const std::string& what) {
    try {
      load_model(what, kPresets);
    } catch (const ConfigError& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_TRUE(has(error("lama-2-13b"), "did you mean llama-2-13b?")) << error("lama-2-13b");
  EXPECT_TRUE(has(error("./nothing.json"), "./nothing.json: no such file")) << error("./nothing.json");
  EXPECT_TRUE(has(error(""), "a preset"));
  const TempDir dir;
  EXPECT_TRUE(has(error(dir.path().string()), "holds neither config.json nor params.json"));
  const auto cut = dir.write("cut.json", R"({"model_type": "llama", "hid)");
  EXPECT_TRUE(has(error(cut.string()), "cut.json: line 1, column"));
  EXPECT_TRUE(has(error(cut.string()), "truncated")) << error(cut.string());
}

// The configurations of the reference cases, as they stand there.
TEST(HuggingFace, SmallReferenceShapes) {
  json j = v4();
  j["num_hidden_layers"] = 2;
  j["hidden_size"] = 48;
  j["num_attention_heads"] = 4;
  j["num_key_value_heads"] = 1;
  j["head_dim"] = 16;
  j["intermediate_size"] = 128;
  j["vocab_size"] = 384;
  EXPECT_EQ(parameter_counts(model_from_json(j, "m")).total,
            2 * 384 * 48 + 48 + 2 * (2 * 48 * 64 + 2 * 48 * 16 + 3 * 48 * 128 + 2 * 48));
}

}  // namespace
}  // namespace sextant

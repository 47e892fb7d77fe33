// Meta's params.json: read as the presets of its numbers, and nothing guessed.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/model/model_files.hpp"
#include "tests/core/model/model_json.hpp"

namespace sextant {
namespace {

TEST(Meta, ParamsGiveThePresets) {
  const auto read = [](const char* text, const char* name) {
    return model_from_json(json::parse(text), name);
  };
  const auto same_shape = [](const ModelSpec& m, const char* name) {
    ModelSpec p = preset(name);
    EXPECT_EQ(parameter_counts(m).total, parameter_counts(p).total) << name;
    EXPECT_EQ(m.ffn_hidden, p.ffn_hidden) << name;
    EXPECT_EQ(m.rope_theta, p.rope_theta) << name;
    EXPECT_EQ(m.rope_scaling, p.rope_scaling) << name;
  };
  same_shape(read(R"({"dim": 4096, "multiple_of": 256, "n_heads": 32, "n_layers": 32, "norm_eps": 1e-06,
                      "vocab_size": -1})",
                  "a"),
             "llama-7b");
  EXPECT_TRUE(
      has(notes_of(json::parse(R"({"dim": 4096, "n_heads": 32, "n_layers": 32, "vocab_size": -1})")).at(0),
          "vocab_size: -1 in the file leaves it to the tokenizer; 32000 is taken"));
  const auto notes =
      notes_of(json::parse(R"({"dim": 4096, "n_heads": 32, "n_layers": 32, "vocab_size": 32000})"));
  ASSERT_EQ(notes.size(), 2U);
  EXPECT_TRUE(has(notes[0], "tied_embeddings: the file does not state it; false is taken")) << notes[0];
  EXPECT_TRUE(has(notes[1], "max_positions: the file does not state it; 2048 is taken")) << notes[1];
  EXPECT_THROW(notes_of(json::parse(R"({"dim": 4096, "n_heads": 32, "n_layers": 32, "vocab_size": 32000,
                                        "max_seq_len": 0})")),
               ConfigError);
  EXPECT_EQ(notes_of(json::parse(R"({"dim": 4096, "n_heads": 32, "n_layers": 32, "vocab_size": 32000,
                                     "max_seq_len": 8192})"))
                .size(),
            1U);
  EXPECT_TRUE(has(
      notes_of(json::parse(R"({"dim": 2048, "n_heads": 32, "n_layers": 16, "vocab_size": 128256})")).at(0),
      "true is taken, as of Llama-3.2 1B and 3B"));
  same_shape(read(R"({"dim": 6656, "multiple_of": 256, "n_heads": 52, "n_layers": 60, "norm_eps": 1e-06,
                      "vocab_size": -1})",
                  "a"),
             "llama-33b");
  same_shape(
      read(R"({"dim": 8192, "multiple_of": 4096, "ffn_dim_multiplier": 1.3, "n_heads": 64, "n_kv_heads": 8,
                      "n_layers": 80, "norm_eps": 1e-05, "vocab_size": -1})",
           "a"),
      "llama-2-70b");
  same_shape(read(R"({"dim": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 8, "vocab_size": 128256,
                      "multiple_of": 1024, "ffn_dim_multiplier": 1.3, "norm_eps": 1e-05,
                      "rope_theta": 500000.0})",
                  "a"),
             "llama-3-8b");
  same_shape(read(R"({"dim": 16384, "ffn_dim_multiplier": 1.2, "multiple_of": 4096, "n_heads": 128,
                      "n_kv_heads": 8, "n_layers": 126, "norm_eps": 1e-05, "rope_theta": 500000.0,
                      "use_scaled_rope": true, "vocab_size": 128256})",
                  "a"),
             "llama-3.1-405b");
  same_shape(
      read(R"({"dim": 2048, "ffn_dim_multiplier": 1.5, "multiple_of": 256, "n_heads": 32, "n_kv_heads": 8,
                      "n_layers": 16, "norm_eps": 1e-05, "rope_theta": 500000.0, "use_scaled_rope": true,
                      "vocab_size": 128256})",
           "a"),
      "llama-3.2-1b");
}

TEST(Meta, NothingIsGuessed) {
  EXPECT_TRUE(has(error_of(json::parse(R"({"dim": 4096, "n_heads": 32, "n_layers": 32})")),
                  "vocab_size: is missing"));
  EXPECT_TRUE(has(error_of(json::parse(R"({"dim": 4096, "n_heads": 32, "n_layers": 32, "vocab_size": -1,
                                           "rope_theta": 1e6})")),
                  "the size of the tokenizer's vocabulary"));
  EXPECT_TRUE(has(error_of(json::parse(R"({"dim": 4096, "n_heads": 32, "n_layers": 32, "vocab_size": 100,
                                           "n_experts": 8})")),
                  "n_experts: unknown field"));
}

}  // namespace
}  // namespace sextant

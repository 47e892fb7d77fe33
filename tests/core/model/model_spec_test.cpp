// Published parameter counts, model FLOPs, and what makes a shape lawful.
#include "core/model/model_spec.hpp"

#include <filesystem>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/json_io.hpp"
#include "core/base/preset_path.hpp"
#include "core/graph/parameter_layout.hpp"
#include "core/model/model_files.hpp"

namespace sextant {
namespace {

namespace fs = std::filesystem;

const fs::path kPresets = fs::path(SEXTANT_SOURCE_DIR) / "tools/presets";

struct Published {
  const char* preset;
  std::int64_t parameters;
};

// Counts as the safetensors headers on the Hugging Face hub and the BLOOM model card give them; GPT-3's
// weights are not published, so its rows are V h + P h + L (12 h^2 + 13 h) + 2 h worked out by hand, and those of the stories
// models V h + L (4 h^2 + 3 h f + 2 h) + h with their grouped keys.
const Published kPublished[] = {
    {"llama-7b", 6'738'415'616},
    {"llama-13b", 13'015'864'320},
    {"llama-33b", 32'528'943'616},
    {"llama-65b", 65'285'660'672},
    {"llama-2-7b", 6'738'415'616},
    {"llama-2-13b", 13'015'864'320},
    {"llama-2-70b", 68'976'648'192},
    {"llama-3-8b", 8'030'261'248},
    {"llama-3-70b", 70'553'706'496},
    {"llama-3.1-8b", 8'030'261'248},
    {"llama-3.1-70b", 70'553'706'496},
    {"llama-3.1-405b", 405'853'388'800},
    {"llama-3.2-1b", 1'235'814'400},
    {"llama-3.2-3b", 3'212'749'824},
    {"bloom-176b", 176'247'271'424},
    {"stories-260k", 260'032},
    {"stories-15m", 15'191'712},
    {"stories-42m", 41'689'600},
    {"mistral-7b", 7'248'023'552},
    {"mistral-nemo-12b", 12'247'782'400},
    {"qwen2.5-0.5b", 494'032'768},
    {"qwen2.5-7b", 7'615'616'512},
    {"qwen2.5-32b", 32'763'876'352},
    {"qwen2.5-72b", 72'706'203'648},
    {"internlm2-7b", 7'737'708'544},
    {"baichuan2-7b", 7'505'973'248},
    {"baichuan2-13b", 13'896'668'160},
    {"phi3-mini", 3'821'079'552},
    {"yi-34b", 34'388'917'248},
    {"stories-110m", 109'529'856},
    {"qwen3-0.6b", 596'049'920},
    {"qwen3-1.7b", 1'720'574'976},
    {"qwen3-4b", 4'022'468'096},
    {"qwen3-8b", 8'190'735'360},
    {"qwen3-14b", 14'768'307'200},
    {"qwen3-32b", 32'762'123'264},
    {"qwen2.5-1.5b", 1'543'714'304},
    {"qwen2.5-3b", 3'085'938'688},
    {"qwen2.5-14b", 14'770'033'664},
    {"olmo2-1b", 1'484'916'736},
    {"olmo2-7b", 7'298'617'344},
    {"olmo2-13b", 13'716'198'400},
    {"olmo2-32b", 32'234'279'936},
    {"internlm2-1.8b", 1'889'110'016},
    {"internlm2-20b", 19'861'149'696},
    {"phi3-medium", 13'960'238'080},
    {"mistral-7b-v0.1", 7'241'732'096},
    {"mistral-small-24b", 23'572'403'200},
    {"yi-6b", 6'061'035'520},
    {"yi-9b", 8'829'407'232},
    {"mistral-large-123b", 122'610'069'504},
    {"phi4", 14'659'507'200},
    {"internlm3-8b", 8'804'241'408},
    {"seed-oss-36b", 36'151'104'512},
    {"baichuan-7b", 7'000'559'616},
    {"baichuan-13b", 13'264'901'120},
    {"qwen1.5-110b", 111'209'914'368},
    {"gpt3-13b", 12'853'386'240},
    {"gpt3-175b", 174'604'259'328},
};

TEST(ParameterCounts, EqualThePublishedOnes) {
  for (const auto& [preset, parameters] : kPublished) {
    const ParameterCounts c = parameter_counts(load_model(preset, kPresets));
    EXPECT_EQ(c.total, parameters) << preset;
  }
}

TEST(ParameterCounts, EveryPresetIsInTheTableAndSound) {
  std::size_t files = 0;
  for (const auto& entry : fs::directory_iterator(kPresets / "models")) {
    ++files;
    const auto content = read_json_file(entry.path());
    const ModelSpec m = content.get<ModelSpec>();
    EXPECT_EQ(m.name, entry.path().stem().string());
    EXPECT_TRUE(content.contains("source") && content.contains("date")) << entry.path();
    EXPECT_TRUE(std::any_of(std::begin(kPublished), std::end(kPublished), [&](const Published& p) {
      return p.preset == m.name;
    })) << m.name;
  }
  EXPECT_EQ(files, std::size(kPublished));
}

TEST(ParameterCounts, PartsSumToTheTotal) {
  const ParameterCounts c = parameter_counts(load_model("bloom-176b", kPresets));
  EXPECT_EQ(c.embedding, 3'596'615'680 + 2 * 14336);  // the model card's figure, and the embedding norm
  EXPECT_EQ(c.embedding + 70 * c.layer() + c.final_norm + c.head, c.total);
  EXPECT_EQ(c.head, 0);
}

TEST(ParameterCounts, CountEachKindOfBias) {
  ModelSpec m = load_model("llama-2-70b", kPresets);
  const auto plain = parameter_counts(m).layer();
  const auto with = [&](bool ModelSpec::*flag) {
    ModelSpec biased = m;
    biased.*flag = true;
    return parameter_counts(biased).layer() - plain;
  };
  EXPECT_EQ(with(&ModelSpec::qkv_bias), 8192 + 2 * 1024);
  EXPECT_EQ(with(&ModelSpec::output_bias), 8192);
  EXPECT_EQ(with(&ModelSpec::mlp_bias), 2 * 28672 + 8192);
  EXPECT_EQ(with(&ModelSpec::linear_bias), 8192 + 2 * 1024 + 8192 + 2 * 28672 + 8192);
}

// What one rank holds of it all is what is counted, with every kind of bias.
TEST(ParameterLayout, HoldsWhatIsCounted) {
  for (const char* name : {"llama-2-70b", "llama-3.2-1b"})
    for (bool ModelSpec::*flag :
         {&ModelSpec::qkv_bias, &ModelSpec::output_bias, &ModelSpec::mlp_bias, &ModelSpec::linear_bias}) {
      ModelSpec m = load_model(name, kPresets);
      StackRules rules;
      rules.vocab_multiple = 1;
      const auto held = [&] { return parameter_layout(m, ParallelPlan{}, rules, 0).elements; };
      const std::int64_t plain = held();
      EXPECT_EQ(plain, parameter_counts(m).total) << name;
      m.*flag = true;
      EXPECT_EQ(held(), parameter_counts(m).total) << name;
      EXPECT_GT(held(), plain) << name;
    }
}

TEST(ParameterLayout, HoldsNormsOfQueriesAndKeys) {
  for (const char* name : {"qwen3-0.6b", "olmo2-1b"}) {
    const ModelSpec m = load_model(name, kPresets);
    StackRules rules;
    rules.vocab_multiple = 1;
    EXPECT_EQ(parameter_layout(m, ParallelPlan{}, rules, 0).elements, parameter_counts(m).total) << name;
    const std::vector<ParameterKind> kinds = layer_parameters(m);
    const bool after = m.norm_placement == NormPlacement::after;
    EXPECT_EQ(kinds.front(), after ? ParameterKind::norm_mlp : ParameterKind::down) << name;
    EXPECT_EQ(kinds.back(), after ? ParameterKind::v : ParameterKind::norm_attention) << name;
  }
}

// Pairs of a query and a key, counted one by one.
TEST(Window, SharesAreThoseOfThePairsThatAreSeen) {
  for (const auto& [window, length] : {std::pair{1, 7}, {3, 7}, {7, 7}, {9, 7}, {0, 7}, {4096, 32768}}) {
    double seen = 0, all = 0;
    for (int q = 0; q < length; ++q) {
      all += q + 1;
      seen += window > 0 ? std::min(window, q + 1) : q + 1;
    }
    EXPECT_DOUBLE_EQ(visible_share(window, length), seen / all) << window << " of " << length;
  }
}

TEST(Window, BoundsWhatAttentionCounts) {
  ModelSpec m = load_model("mistral-7b-v0.1", kPresets);
  ModelSpec whole = m;
  whole.window = 0;
  EXPECT_EQ(model_flops_per_token(m, 4096), model_flops_per_token(whole, 4096));
  EXPECT_EQ(model_flops_per_token(m, 32768), model_flops_per_token(whole, 4096));
  const double products = 6.0 * static_cast<double>(matmul_parameters(m));
  EXPECT_NEAR((model_flops_per_token(m, 32768, AttentionFlops::causal) - products) /
                  (model_flops_per_token(whole, 32768, AttentionFlops::causal) - products),
              visible_share(4096, 32768), 1e-12);
}

// Every matrix but the input embedding, and no vector.
TEST(MatmulParameters, LeaveOutInputEmbeddingAndVectors) {
  const ModelSpec m = load_model("llama-2-13b", kPresets);
  const ParameterCounts c = parameter_counts(m);
  EXPECT_EQ(matmul_parameters(m), c.total - c.embedding - 40 * c.norms - c.final_norm);
  const ModelSpec tied = load_model("llama-3.2-1b", kPresets);  // a tied head multiplies all the same
  const ParameterCounts t = parameter_counts(tied);
  EXPECT_EQ(matmul_parameters(tied), t.total - 16 * t.norms - t.final_norm);
  const ModelSpec gpt = load_model("gpt3-175b", kPresets);
  EXPECT_EQ(matmul_parameters(gpt), 96LL * 12 * 12288 * 12288 + 50257LL * 12288);
}

// 6 N + 12 L h s: for Llama-2-13B at 4096 tokens 6 * 12,851,609,600 + 12 * 40 * 5120 * 4096.
TEST(ModelFlops, FollowTheStatedConvention) {
  const ModelSpec m = load_model("llama-2-13b", kPresets);
  EXPECT_EQ(matmul_parameters(m), 12'851'609'600);
  EXPECT_DOUBLE_EQ(model_flops_per_token(m, 4096), 77'109'657'600.0 + 10'066'329'600.0);
  EXPECT_DOUBLE_EQ(model_flops_per_token(m, 4096, AttentionFlops::causal),
                   77'109'657'600.0 + 5'033'164'800.0);
}

TEST(ValidateModel, NamesEveryFieldThatIsWrong) {
  const ModelSpec good = load_model("llama-3.1-8b", kPresets);
  EXPECT_TRUE(validate(good).empty());
  const auto key_of = [&](auto change) {
    ModelSpec m = good;
    change(m);
    const auto problems = validate(m);
    return problems.empty() ? std::string("accepted") : problems.front().key;
  };
  EXPECT_EQ(key_of([](ModelSpec& m) { m.n_layers = 0; }), "n_layers");
  EXPECT_EQ(key_of([](ModelSpec& m) { m.hidden = 1 << 30; }), "hidden");
  EXPECT_EQ(key_of([](ModelSpec& m) { m.n_kv_heads = 5; }), "n_kv_heads");
  EXPECT_EQ(key_of([](ModelSpec& m) { m.head_dim = 127; }), "head_dim");
  EXPECT_EQ(key_of([](ModelSpec& m) { m.vocab_size = -1; }), "vocab_size");
  EXPECT_EQ(key_of([](ModelSpec& m) { m.rope_theta = std::numeric_limits<double>::quiet_NaN(); }),
            "rope_theta");
  EXPECT_EQ(key_of([](ModelSpec& m) { m.norm_eps = -1; }), "norm_eps");
  EXPECT_EQ(key_of([](ModelSpec& m) { m.rope_scaling->type = ""; }), "rope_scaling.type");
  EXPECT_EQ(key_of([](ModelSpec& m) { m.rope_scaling->high_freq_factor = 1; }),
            "rope_scaling.high_freq_factor");
  EXPECT_EQ(key_of([](ModelSpec& m) { m.position = PositionKind::alibi; }), "rope_scaling");
  EXPECT_GT(validate(ModelSpec{}).size(), 5U);
}

TEST(FindPreset, IsNotParticularAboutSpelling) {
  for (const char* name :
       {"llama-2-13b", "LLaMA-2-13B", "llama2_13b", "Llama 2 13B", "meta-llama/Llama-2-13b-hf"})
    EXPECT_EQ(load_model(name, kPresets).name, "llama-2-13b") << name;
  EXPECT_EQ(load_model("llama-30b", kPresets).name, "llama-33b");
  EXPECT_FALSE(find_preset(kPresets, "models", "llama-2-14b"));
  EXPECT_FALSE(find_preset(kPresets, "no-such-kind", "llama-2-13b"));
  EXPECT_EQ(nearest_preset(kPresets, {"models"}, "lama-2-13b"), "llama-2-13b");
  EXPECT_EQ(nearest_preset(kPresets, {"models"}, "chinchilla"), "");
  // A part of names is what somebody remembers of them.
  const std::string megatron = nearest_preset(kPresets, {"stacks"}, "Megatron-LM");
  EXPECT_EQ(megatron, "megatron-lm-2021 or megatron-lm-2024");
  EXPECT_NE(nearest_preset(kPresets, {"stacks"}, "megatron").find("megatron-core, "), std::string::npos);
  EXPECT_EQ(nearest_preset(kPresets, {"stacks"}, "me"), "");
}

}  // namespace
}  // namespace sextant

// System: checkpoints that transformers wrote, in and out. Expectation: logits and loss as transformers computes them in
// float64 (1e-5 in fp32), the same loss from any layout that trains from them, the likeliest continuation token by token,
// and the same bits in every tensor after export. Controls: rotary pairs as Meta has them, a swapped tensor, another format.
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include <gtest/gtest.h>

#include "core/model/model_files.hpp"
#include "kernels/cpu/cpu_kernels.hpp"
#include "planner/lowering/lower.hpp"
#include "runtime/training/training_run.hpp"
#include "runtime/weights/hugging_face_export.hpp"
#include "runtime/weights/sampling.hpp"
#include "tests/runtime/weights/hugging_face_support.hpp"
#include "tests/support/specs.hpp"

namespace sextant::testing {
namespace {

class HuggingFace : public ::testing::TestWithParam<const char*> {
 protected:
  fs::path folder_ = golden(GetParam());
  HuggingFaceFolder checkpoint_{folder_};
  SafetensorsFile expected_{folder_ / "expected.safetensors"};
};
INSTANTIATE_TEST_SUITE_P(All, HuggingFace, ::testing::ValuesIn(kCheckpoints), [](const auto& param) {
  std::string text = param.param;
  std::ranges::replace(text, '-', '_');
  return text;
});

// One that a live transformers has loaded: tests/reference/hugging_face_round_trip.py.
std::vector<const char*> live() {
  const char* folder = std::getenv("SEXTANT_HUGGING_FACE");
  return folder ? std::vector{folder} : std::vector<const char*>{};
}
INSTANTIATE_TEST_SUITE_P(Live, HuggingFace, ::testing::ValuesIn(live()),
                         [](const auto&) { return "folder"; });

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size() || a.empty()) return HUGE_VAL;
  double worst = 0, scale = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    worst = std::max(worst, std::abs(a[i] - b[i]));
    scale = std::max(scale, std::abs(b[i]));
  }
  return worst / scale;
}

// Logits of all sequences with these weights.
std::vector<double> logits_of(const ModelSpec& model, const WeightSource& weights,
                              const SafetensorsFile& expected, Dtype dtype) {
  const auto ids = token_ids(expected, "ids");
  const auto seq = static_cast<std::size_t>(expected.require("ids").shape[1]);
  LlamaForward forward(model, cpu_kernels(), dtype, weights, static_cast<std::int64_t>(seq));
  std::vector<double> all;
  for (std::size_t at = 0; at < ids.size(); at += seq) {
    forward.restart();
    const auto logits = forward.extend(std::span(ids).subspan(at, seq), LlamaForward::Logits::all);
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

TEST_P(HuggingFace, InventoryIsWhatTheConfigSays) {
  const WeightInventory found = checkpoint_.check();
  EXPECT_EQ(found.parameters, parameter_counts(checkpoint_.model()).total);
  EXPECT_EQ(found.shards, std::string(GetParam()) == "untied-shards" ? 4 : 1);
  ASSERT_TRUE(found.type);
  EXPECT_EQ(found.bytes, static_cast<std::uint64_t>(found.parameters * size_bytes(*found.type)));
}

TEST_P(HuggingFace, LogitsAreThoseOfTransformers) {
  const auto expected = numbers(expected_, "logits");
  for (const Dtype dtype :
       {Dtype::fp64, Dtype::fp32})  // transformers takes rotary angles in fp32 whatever the model
    EXPECT_LT(
        largest_difference(logits_of(checkpoint_.model(), checkpoint_.weights(), expected_, dtype), expected),
        1e-5)
        << name(dtype);
}

// Meta's files have the two numbers of a rotary pair side by side. Weights in that order must be seen.
TEST_P(HuggingFace, ControlInterleavedRotaryPairsAreSeen) {
  const ModelSpec model = checkpoint_.model();
  const WeightSource interleaved = [&, source = checkpoint_.weights()](const ModelSlice& s,
                                                                       std::span<double> to) {
    source(s, to);
    if (s.name.find("q_proj") == s.name.npos && s.name.find("k_proj") == s.name.npos) return;
    const std::vector<double> from(to.begin(), to.end());
    const std::int64_t d = model.head_dim;
    for (std::int64_t r = 0; r < s.rows; ++r) {
      const std::int64_t in_head = r % d, other = r - in_head + (in_head % 2) * d / 2 + in_head / 2;
      std::copy_n(from.begin() + other * s.cols, s.cols, to.begin() + r * s.cols);
    }
  };
  EXPECT_GT(
      largest_difference(logits_of(model, interleaved, expected_, Dtype::fp32), numbers(expected_, "logits")),
      1e-3);
}

TEST_P(HuggingFace, TheLikeliestContinuationIsTheirs) {
  const auto prompt = token_ids(expected_, "prompt"), expected = token_ids(expected_, "continued");
  LlamaForward forward(checkpoint_.model(), cpu_kernels(), Dtype::fp32, checkpoint_.weights(), 64);
  const auto n = static_cast<std::int64_t>(expected.size());
  EXPECT_EQ(continue_text(forward, prompt, n, {.temperature = 0}).tokens, expected);
  // The same with the whole text read again for every token: kept keys and values change nothing.
  std::vector<std::int32_t> text = prompt;
  for (const std::int32_t token : expected) {
    forward.restart();
    const auto logits = forward.extend(text);
    EXPECT_EQ(std::ranges::max_element(logits) - logits.begin(), token);
    text.push_back(token);
  }
}

// A run that starts from the folder has transformers' loss in its first step, under every kind of layout.
TEST_P(HuggingFace, TrainingStartsWithTheirLoss) {
  ModelSpec model = checkpoint_.model();
  const auto ids = token_ids(expected_, "ids");
  const auto& shape = expected_.require("ids").shape;
  const double expected = numbers(expected_, "loss")[0];
  const StackSpec stack = load_stack("sextant", SEXTANT_SOURCE_DIR "/tools/presets");
  const auto first_loss = [&](const std::string& key, const WeightSource& weights) {
    TrainingSpec training = tiny_training(2);
    training.seq_len = static_cast<int>(shape[1]);
    training.stack = "sextant";
    training.compute = training.parameter = training.gradient = training.reduction =
        training.optimizer_state = Dtype::fp32;
    const ParallelPlan plan = parse_plan_key(key);
    const ExecutionGraph graph = lower(model, training, flat_links(plan), plan, stack);
    TrainingRun run{.graph = graph, .stack = stack, .kernels = cpu_kernels()};
    run.weights = weights;
    run.sequences = [&](std::int64_t, int sequence, std::span<std::int32_t> tokens) {
      std::copy_n(ids.begin() + sequence * shape[1], shape[1], tokens.begin());
      tokens.back() = ~0;  // nothing follows the last token: no target
    };
    double loss = 0;
    run.on_step = [&](const StepReport& r) { loss = r.loss; };
    train(run);
    return loss;
  };
  for (const char* key : {"mbs2", "dp2.z3.mbs1", "pp2.mbs1", "dp2.z1.mbs1.b1K"})
    EXPECT_NEAR(first_loss(key, checkpoint_.weights()), expected, 1e-5 * expected) << key;
  if (model.n_kv_heads > 1) {
    EXPECT_NEAR(first_loss("tp2.sp.pp2.mbs1", checkpoint_.weights()), expected, 1e-5 * expected);
  }
  EXPECT_GT(std::abs(first_loss("mbs2", random_weights(model, 1)) - expected), 1e-2) << "control";
}

TEST_P(HuggingFace, ExportGivesTheSameBits) {
  const TempDir dir;
  const auto before = raw_tensors(folder_);
  const StoredType type = *checkpoint_.check().type;
  for (const std::uint64_t shard : {std::uint64_t{1} << 40, std::uint64_t{6000}, std::uint64_t{1}}) {
    const fs::path out = dir.path() / std::to_string(shard);
    const ExportedWeights done =
        export_hugging_face(checkpoint_.model(), checkpoint_.weights(), out,
                            {.type = type, .max_shard_bytes = shard, .like = folder_});
    EXPECT_EQ(raw_tensors(out), before);
    const HuggingFaceFolder again(out);
    const WeightInventory found = again.check();
    EXPECT_EQ(found.bytes, done.bytes);
    EXPECT_EQ(found.shards == 1, shard > 1000000);
    EXPECT_EQ(fs::exists(out / "model.safetensors.index.json"), found.shards > 1);
    if (shard == 1) {
      EXPECT_EQ(found.shards, found.tensors) << "a tensor larger than a shard stands alone";
    }
    for (const auto& entry : fs::directory_iterator(out)) {
      if (entry.path().extension() != ".safetensors") continue;
      const SafetensorsFile file(entry.path());
      EXPECT_TRUE(file.tensors().size() == 1 || file.tensors().back().end <= shard) << entry.path();
    }
    ModelSpec same = again.model();
    same.name = checkpoint_.model().name;
    EXPECT_EQ(same, checkpoint_.model());
    const auto config = nlohmann::json::parse(text_of(out / "config.json"));
    EXPECT_EQ(config.at("eos_token_id"), 2) << "a field that says nothing of the shape is kept";
    EXPECT_EQ(text_of(out / "generation_config.json"), text_of(folder_ / "generation_config.json"));
  }
  const fs::path other = dir.path() / "other";  // control
  export_hugging_face(checkpoint_.model(), checkpoint_.weights(), other,
                      {.type = type == StoredType::bf16 ? StoredType::f16 : StoredType::bf16});
  EXPECT_NE(raw_tensors(other), before);
}

TEST_P(HuggingFace, WideningAndBackGivesTheSameBits) {
  const TempDir dir;
  export_hugging_face(checkpoint_.model(), checkpoint_.weights(), dir.path() / "wide",
                      {.type = StoredType::f32});
  const HuggingFaceFolder wide(dir.path() / "wide");
  export_hugging_face(wide.model(), wide.weights(), dir.path() / "back", {.type = *checkpoint_.check().type});
  EXPECT_EQ(raw_tensors(dir.path() / "back"), raw_tensors(folder_));
}

// Slices of every layout, put together again, are the tensor.
TEST_P(HuggingFace, RectanglesAreReadInPlace) {
  const WeightSource source = checkpoint_.weights();
  for (const ModelSlice& whole : model_tensors(checkpoint_.model())) {
    std::vector<double> all(static_cast<std::size_t>(whole.rows * whole.cols));
    source(whole, all);
    ModelSlice part = whole;
    part.first_col = whole.cols / 3;
    part.cols = whole.cols - part.first_col;
    part.first_row = whole.rows / 2;  // and beyond the end, as a padded vocabulary is
    std::vector<double> values(static_cast<std::size_t>(part.real_rows() * part.cols));
    source(part, values);
    for (std::int64_t r = 0; r < part.real_rows(); ++r)
      for (std::int64_t c = 0; c < part.cols; ++c)
        ASSERT_EQ(values[static_cast<std::size_t>(r * part.cols + c)],
                  all[static_cast<std::size_t>((part.first_row + r) * whole.cols + part.first_col + c)]);
  }
}

TEST(HuggingFaceConfig, IsReadBackAsItWas) {
  ModelSpec scaled = tiny_model(3);
  scaled.rope_scaling = RopeScaling{};
  ModelSpec tied = tiny_model(2);
  tied.tied_embeddings = true;
  tied.rope_theta = 123456.0;
  tied.norm_eps = 1e-6;
  for (const ModelSpec& m : {tiny_model(1), scaled, tied}) {
    const auto config = hugging_face_config(m, StoredType::bf16);
    EXPECT_EQ(model_from_hugging_face(nlohmann::json(config), m.name), m);
    EXPECT_EQ(config.at("torch_dtype"), "bfloat16");
  }
  ModelSpec bloom = tiny_model(1);
  bloom.position = PositionKind::alibi;
  EXPECT_THROW(hugging_face_config(bloom, StoredType::f32), ConfigError);
}

TEST(RandomWeights, ATiedHeadIsTheEmbedding) {
  ModelSpec model = tiny_model(2);
  const auto values = [&](ParameterKind kind) {
    Parameter p;
    p.kind = kind;
    const ModelSlice s = model_slice(model, local_shape(model, 1, 1), p, 1, 0);
    std::vector<double> v(static_cast<std::size_t>(s.rows * s.cols));
    random_weights(model, 1)(s, v);
    return v;
  };
  EXPECT_NE(values(ParameterKind::head), values(ParameterKind::embedding));
  model.tied_embeddings = true;
  EXPECT_EQ(values(ParameterKind::head), values(ParameterKind::embedding));
}

TEST(Sampling, FollowsTemperatureAndNucleus) {
  const std::vector<double> logits = {0, 1, 3, 2};
  std::mt19937_64 random(7);
  EXPECT_EQ(sample_token(logits, {.temperature = 0}, random), 2);
  EXPECT_EQ(sample_token(std::vector<double>{1, 5, 5}, {.temperature = 0}, random), 1)
      << "the first of equals";
  const auto shares = [&](const SamplingSpec& spec) {
    std::vector<double> share(4, 0.0);
    for (int i = 0; i < 40000; ++i)
      share[static_cast<std::size_t>(sample_token(logits, spec, random))] += 1.0 / 40000;
    return share;
  };
  // softmax of 0, 1, 3, 2
  const double sum = 1 + std::exp(1) + std::exp(3) + std::exp(2);
  const auto all = shares({.temperature = 1});
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(all[i], std::exp(logits[i]) / sum, 0.01);
  const auto nucleus = shares({.temperature = 1, .top_p = 0.7});  // 0.64 is not enough: two tokens
  EXPECT_EQ(nucleus[0] + nucleus[1], 0);
  EXPECT_NEAR(nucleus[2], std::exp(3) / (std::exp(3) + std::exp(2)), 0.01);
  EXPECT_NEAR(shares({.temperature = 1, .top_p = 1e-9})[2], 1, 1e-9);
  EXPECT_GT(shares({.temperature = 0.5})[2], all[2] + 0.1);
}

TEST(Sampling, StopsWhereItShould) {
  const HuggingFaceFolder folder(golden("tied-bf16"));
  const SafetensorsFile expected(golden("tied-bf16") / "expected.safetensors");
  const auto prompt = token_ids(expected, "prompt"), continued = token_ids(expected, "continued");
  LlamaForward forward(folder.model(), cpu_kernels(), Dtype::fp32, folder.weights(), 9);
  const Continuation full = continue_text(forward, prompt, 100, {.temperature = 0});
  EXPECT_TRUE(full.full);
  EXPECT_EQ(full.tokens.size(), 5u) << "four more fit; the fifth needs no room";
  forward.restart();
  const std::int32_t end = continued[2];
  const Continuation ended = continue_text(forward, prompt, 100, {.temperature = 0}, {&end, 1});
  EXPECT_TRUE(ended.ended);
  EXPECT_EQ(std::ranges::find(ended.tokens, end), ended.tokens.end());
  forward.restart();
  const auto once = continue_text(forward, prompt, 4, {.temperature = 1, .seed = 5}).tokens;
  forward.restart();
  EXPECT_EQ(continue_text(forward, prompt, 4, {.temperature = 1, .seed = 5}).tokens, once);
  EXPECT_NE(error_of([&] {
              forward.restart();
              forward.extend(std::vector<std::int32_t>{67});
            }).find("below the 67 words"),
            std::string::npos);
}

}  // namespace
}  // namespace sextant::testing

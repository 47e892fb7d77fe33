// System: a tiny random model of each Hugging Face family (tests/golden/families, made by make_families.py with transformers).
// Expectation: its logits, its loss, every gradient, and twenty steps of training as computed there, on one rank and under TP,
// PP, ZeRO 3, SP and CP; its weights come out of an export with the same bits, under each of them. Numbers: 1e-5.
#include <algorithm>
#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "core/base/json_io.hpp"
#include "core/graph/checks/graph_check.hpp"
#include "runtime/weights/hugging_face_export.hpp"
#include "runtime/weights/llama_forward.hpp"
#include "tests/reference/family_case.hpp"
#include "tests/reference/gradient_trials.hpp"
#include "tests/support/temp_dir.hpp"

namespace sextant::testing {
namespace {

namespace fs = std::filesystem;

struct FamilyTrial {
  const char* name;
  std::vector<const char*> layouts;  // beside those of all
};
void PrintTo(const FamilyTrial& t, std::ostream* out) { *out << t.name; }

constexpr const char* kEverywhere[] = {
    "mbs4",        "mbs1.full",           "tp2.nosp.mbs2", "tp2.sp.mbs1.dp2.z1", "pp2.mbs1",
    "dp4.z3.mbs1", "dp2.z3.mbs1.full.po", "cp2.mbs2",      "tp2.sp.cp2.mbs1",    "tp2.sp.pp2.mbs2.sel"};

// Trained in, and weights in and out of: one rank, TP, SP, PP, ZeRO 3, CP, and some at once.
constexpr const char* kTrained[] = {"mbs4",        "tp2.nosp.mbs2", "tp2.sp.mbs1.dp2.z2", "pp2.mbs1",
                                    "dp2.z3.mbs1", "cp2.mbs2",      "tp2.sp.pp2.mbs2.sel"};

constexpr double kBound = 1e-5;

void expect_same_file(const fs::path& folder, const fs::path& other, const std::string& how) {
  const SafetensorsFile before(folder / "model.safetensors"), after(other / "model.safetensors");
  ASSERT_EQ(before.tensors().size(), after.tensors().size()) << how;
  for (const StoredTensor& t : before.tensors()) {
    const StoredTensor& exported = after.require(t.name, t.type, t.shape);
    EXPECT_TRUE(std::ranges::equal(before.bytes(t), after.bytes(exported))) << how << ": " << t.name;
  }
}

class Families : public ::testing::TestWithParam<FamilyTrial> {};

TEST_P(Families, LogitsAreTheirs) {
  const FamilyCase c(GetParam().name);
  for (const Dtype dtype : {Dtype::fp64, Dtype::fp32}) {
    LlamaForward forward(c.batch.model, cpu_kernels(), dtype, c.folder.weights(), c.batch.seq);
    std::vector<double> logits;
    for (int b = 0; b < c.batch.batch; ++b) {
      forward.restart();
      const auto ids =
          std::span(c.batch.ids)
              .subspan(static_cast<std::size_t>(b * c.batch.seq), static_cast<std::size_t>(c.batch.seq));
      // In two parts, as a continuation is: the second finds the first's keys.
      for (const auto part : {ids.first(5), ids.subspan(5)}) {
        const auto more = forward.extend(part, LlamaForward::Logits::all);
        logits.insert(logits.end(), more.begin(), more.end());
      }
    }
    EXPECT_LT(relative_distance(logits, c.batch.logits), kBound) << name(dtype);
    logits[7] += 1e-3;
    EXPECT_GT(relative_distance(logits, c.batch.logits), kBound) << "control";
  }
}

TEST_P(Families, LossAndEveryGradientAreTheirs) {
  const FamilyCase c(GetParam().name);
  std::vector<const char*> layouts(std::begin(kEverywhere), std::end(kEverywhere));
  layouts.insert(layouts.end(), GetParam().layouts.begin(), GetParam().layouts.end());
  for (const std::string key : layouts) {
    const ExecutionGraph graph =
        graph_to_run(key, c.batch.model, runnable_training(c.batch.batch, Dtype::fp32, c.batch.seq),
                     cpu_reference_kernels());
    EXPECT_TRUE(check(graph, own_stack().rules).empty())
        << key << ": " << to_string(check(graph, own_stack().rules).front());
    // Tokens, tables and weights through copies, as to a GPU, and the fast products.
    const Ranks fast{.kernels = &cpu_kernels(), .apart = true};
    EXPECT_EQ(too_far(c.batch, gradients_of(c.batch, key, Dtype::fp32, fast), kBound), "") << key << ", fast";
    for (const Dtype dtype : {Dtype::fp64, Dtype::fp32})
      EXPECT_EQ(too_far(c.batch, gradients_of(c.batch, key, dtype), kBound), "")
          << key << ", " << name(dtype);
  }
}

TEST_P(Families, AWrongParameterIsSeen) {
  const FamilyCase c(GetParam().name);
  for (const auto& [name, values] : c.batch.weights) {
    GradientCase wrong = c.batch;
    auto& w = wrong.weights.at(name);
    std::rotate(w.begin(), w.begin() + 1, w.end());
    EXPECT_NE(too_far(c.batch, gradients_of(wrong, "mbs4", Dtype::fp64), kBound), "") << name;
  }
}

TEST_P(Families, TwentyStepsOfTrainingAreTheirs) {
  const FamilyCase c(GetParam().name);
  for (const std::string key : kTrained) {
    const WholeState got = train_case(c.training, key, Dtype::fp64, 20);
    for (std::size_t s = 0; s < got.steps.size(); ++s) {
      EXPECT_LT(std::abs(got.steps[s].loss / c.training.loss[s] - 1), kBound)
          << key << ", loss of step " << s;
      EXPECT_LT(std::abs(got.steps[s].gradient_norm / c.training.norm[s] - 1), 2 * kBound)
          << key << ", norm of step " << s;
    }
    for (const auto& [name, values] : c.training.final_weights)
      EXPECT_LT(relative_distance(got.state.at(StateField::master).at(name), values), kBound)
          << key << ", " << name;
  }
}

// Out under the names and in the order that they came in, and under the first family that can say the model.
TEST_P(Families, WeightsComeOutWithTheSameBits) {
  const FamilyCase c(GetParam().name);
  const TempDir out;
  export_hugging_face(c.folder.model(), c.folder.weights(), out.path() / "like", {.like = c.folder.path()});
  expect_same_file(c.folder.path(), out.path() / "like", "from the file");
  EXPECT_EQ(read_json_file(out.path() / "like" / "config.json"),
            read_json_file(c.folder.path() / "config.json"));
  export_hugging_face(c.folder.model(), c.folder.weights(), out.path() / "fresh", {});
  const HuggingFaceFolder again(out.path() / "fresh");
  again.check();
  ModelSpec read = again.model(), expected = c.folder.model();
  read.name = expected.name;
  EXPECT_EQ(read, expected);
  std::vector<double> values, others;
  for (const ModelSlice& s : model_tensors(expected)) {
    values.assign(static_cast<std::size_t>(s.model_rows * s.model_cols), 0);
    others = values;
    c.folder.weights()(s, values);
    again.weights()(s, others);
    EXPECT_EQ(values, others) << s.name;
  }
}

// The ranks of a layout read their parts of the file, and what they hold is the file again.
TEST_P(Families, WeightsComeOutOfEachLayoutWithTheSameBits) {
  const FamilyCase c(GetParam().name);
  const TempDir out;
  for (const std::string key : kTrained) {
    const WholeState held = train_case(c.training, key, Dtype::fp32, 0);
    export_hugging_face(c.folder.model(), weights_of(held.state.at(StateField::master)), out.path() / key,
                        {.like = c.folder.path()});
    expect_same_file(c.folder.path(), out.path() / key, key);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Families,
    ::testing::Values(
        FamilyTrial{"qwen2", {"pp2.mbs1.zb.dp2.z1"}}, FamilyTrial{"qwen2-tied", {"tp4.sp.mbs1"}},
        FamilyTrial{"llama-biases", {"pp2.mbs1.zb"}}, FamilyTrial{"llama-linear", {}},
        FamilyTrial{"llama-llama3", {}}, FamilyTrial{"llama-yarn", {}}, FamilyTrial{"llama-dynamic", {}},
        FamilyTrial{"phi3-longrope", {}}, FamilyTrial{"phi3-longrope-short", {}},
        FamilyTrial{"llama-longrope", {}}, FamilyTrial{"qwen3", {"pp2.mbs1.zb.dp2.z1", "tp2.sp.pp2.mbs1.zb"}},
        FamilyTrial{"olmo2", {"pp2.mbs1.zb.dp2.z1", "tp2.sp.pp2.mbs1.zb"}}, FamilyTrial{"seed-oss", {}},
        FamilyTrial{"internlm3", {}}, FamilyTrial{"phi3", {}}, FamilyTrial{"mistral-window", {}},
        FamilyTrial{"internlm2", {}}, FamilyTrial{"baichuan-7b", {"tp4.sp.mbs1"}},
        FamilyTrial{
            "baichuan2-7b",
            {"tp4.sp.mbs1", "pp2.mbs1.zb", "pp2.mbs1.zb.dp2.z2", "pp2.mbs1.zb.dp2.z3", "tp2.sp.pp2.mbs1.zb"}},
        FamilyTrial{"baichuan2-alibi",
                    {"pp2.mbs1.zb", "pp2.mbs1.zb.dp2.z2", "pp2.mbs1.zb.dp2.z3", "tp2.sp.pp2.mbs1.zb"}}),
    [](const auto& param) {
      std::string text = param.param.name;
      std::ranges::replace(text, '-', '_');
      return text;
    });

}  // namespace
}  // namespace sextant::testing

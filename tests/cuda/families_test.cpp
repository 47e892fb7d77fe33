// System: the whole runtime on a GPU over a tiny model of every Hugging Face family. Expectation: the loss and every gradient as
// transformers computes them in fp32, as for CPU ranks (tests/reference/families_test.cpp), under layouts of every kind.
// Numbers: 1e-5, by own tiles in fp64 and by the libraries in fp32.
#include <array>
#include <functional>

#include "tests/cuda/gpu_ranks.hpp"
#include "tests/cuda/twin.hpp"
#include "tests/reference/family_case.hpp"
#include "tests/reference/gradient_trials.hpp"

namespace sextant::testing {
namespace {

class CudaFamilies : public GpuTest {};

constexpr double kBound = 1e-5;

constexpr const char* kFamilies[] = {"qwen2",
                                     "qwen2-tied",
                                     "llama-biases",
                                     "llama-linear",
                                     "llama-llama3",
                                     "llama-yarn",
                                     "llama-dynamic",
                                     "qwen3",
                                     "seed-oss",
                                     "olmo2",
                                     "phi3",
                                     "mistral-window",
                                     "internlm2",
                                     "baichuan-7b",
                                     "baichuan2-7b",
                                     "baichuan2-alibi",
                                     "internlm3",
                                     "phi3-longrope",
                                     "phi3-longrope-short",
                                     "llama-longrope"};

// On an emulated GPU each under one layout by tiles and another by the libraries, and some others.
TEST_F(CudaFamilies, LossAndEveryGradientAreTheirs) {
  const std::array kLayouts = {"mbs4", "tp2.sp.mbs1.dp2.z1", "cp2.mbs2", "pp2.mbs1", "dp2.z3.mbs1.full.po"};
  std::size_t family = 0;
  for (const char* name : kFamilies) {
    const FamilyCase c(name);
    ++family;
    for (std::size_t at = 0; at < kLayouts.size(); ++at)
      for (const bool reference : {true, false}) {
        const std::string key = kLayouts.at(at);
        const bool always = (family + (reference ? 0 : 2)) % kLayouts.size() == at;
        if (!always && left_out()) continue;
        const Dtype dtype = reference ? Dtype::fp64 : Dtype::fp32;
        EXPECT_EQ(too_far(c.batch, gradients_of(c.batch, key, dtype, ranks_of_a_gpu(reference)), kBound), "")
            << name << ", " << key << (reference ? ", fp64 by tiles" : ", fp32 by libraries");
      }
  }
}

// Zero-bubble schedules, whose weight halves take out of a normalized head's gradient what lies along its rows.
TEST_F(CudaFamilies, HalvesOfANormalizedHeadsBackwardAreTheirs) {
  for (const char* name : {"baichuan2-7b", "baichuan2-alibi"}) {
    const FamilyCase c(name);
    for (const char* key : {"pp2.mbs1.zb", "pp2.mbs1.zb.dp2.z2", "pp2.mbs1.zb.dp2.z3", "tp2.sp.pp2.mbs1.zb"})
      for (const bool reference : {true, false}) {
        const Dtype dtype = reference ? Dtype::fp64 : Dtype::fp32;
        EXPECT_EQ(too_far(c.batch, gradients_of(c.batch, key, dtype, ranks_of_a_gpu(reference)), kBound), "")
            << name << ", " << key << (reference ? ", fp64 by tiles" : ", fp32 by libraries");
      }
    GradientCase wrong = c.batch;  // control
    wrong.model.normalized_head = false;
    EXPECT_NE(too_far(c.batch, gradients_of(wrong, "pp2.mbs1.zb", Dtype::fp64, ranks_of_a_gpu(true)), kBound),
              "")
        << name;
  }
}

// Controls: a window that is a key wider, a head whose rows keep their lengths, heads that turn instead of losing by distance.
TEST_F(CudaFamilies, AnotherModelIsSeen) {
  const auto expect_seen = [](const char* name, const std::function<void(ModelSpec&)>& change) {
    const FamilyCase c(name);
    GradientCase wrong = c.batch;
    change(wrong.model);
    for (const char* key : {"mbs4", "tp2.sp.cp2.mbs1"})
      EXPECT_NE(too_far(c.batch, gradients_of(wrong, key, Dtype::fp64, ranks_of_a_gpu(true)), kBound), "")
          << name << ", " << key;
  };
  expect_seen("mistral-window", [](ModelSpec& m) { ++m.window; });
  expect_seen("baichuan2-7b", [](ModelSpec& m) { m.normalized_head = false; });
  expect_seen("baichuan2-alibi", [](ModelSpec& m) { m.position = PositionKind::rope; });
}

}  // namespace
}  // namespace sextant::testing

// System: a whole LLaMA of four architectures on virtual ranks. Expectation: logits, loss and every gradient
// as computed elsewhere in float64, on one rank and on tp x cp x sp layouts, in fp64 and in fp32. Numbers:
// relative norm 1e-10 (fp64) and 1e-5 (fp32).
#include <algorithm>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/reference/fixtures.hpp"

namespace sextant::testing {
namespace {

struct LayoutCase {
  const char* text;
  VirtualLayout layout;
};

void PrintTo(const LayoutCase& layout, std::ostream* out) { *out << layout.text; }

const LayoutCase kLayouts[] = {
    {"one_rank", {}},
    {"one_rank_fast_gemm", {.kernels = &cpu_kernels()}},
    {"fused_head", {.fused_head = true, .head_chunk = 7}},
    {"recomputed_core", {.recompute_core = true}},
    {"split_backward", {.split_backward = true}},
    {"padded_vocabulary", {.vocab_multiple = 128}},
    {"tp2", {.tp = 2}},
    {"tp4_padded", {.tp = 4, .vocab_multiple = 64}},
    {"tp2_sp", {.tp = 2, .sequence_parallel = true}},
    {"tp4_sp", {.tp = 4, .sequence_parallel = true, .recompute_core = true}},
    {"cp2", {.cp = 2}},
    {"cp4", {.cp = 4}},
    {"tp2_sp_cp3_split", {.tp = 2, .cp = 3, .sequence_parallel = true, .split_backward = true}},
};

using CaseAndLayout = std::tuple<const char*, LayoutCase>;

// Every layout of every case whose extents it divides; all of them where the reference is absent, so that the
// skip is seen.
std::vector<CaseAndLayout> lawful_layouts() {
  std::vector<CaseAndLayout> all;
  for (const char* name : kReferenceCases)
    for (const LayoutCase& candidate : kLayouts) {
      const VirtualLayout& l = candidate.layout;
      if (reference_folder()) {
        const ModelSpec m = read_hugging_face_config(*reference_folder() / name / "config.json");
        const auto shape =
            SafetensorsFile(*reference_folder() / name / "batch.safetensors").require("input_ids").shape;
        if (m.n_heads % l.tp != 0 || (m.n_kv_heads % l.tp != 0 && l.tp % m.n_kv_heads != 0)) continue;
        if (l.cp > 1 && shape[1] % (2 * l.cp) != 0) continue;
        if (l.sequence_parallel && shape[0] * (shape[1] / l.cp) % l.tp != 0) continue;
      }
      all.emplace_back(name, candidate);
    }
  return all;
}

class Reference : public ::testing::TestWithParam<CaseAndLayout> {
 protected:
  void SetUp() override { SEXTANT_NEEDS_REFERENCE(); }
};

TEST_P(Reference, LogitsLossAndEveryGradient) {
  const GradientCase c(std::get<0>(GetParam()));
  VirtualLayout layout = std::get<1>(GetParam()).layout;
  for (const auto& [dtype, bound] : {std::pair(Dtype::fp64, 1e-10), std::pair(Dtype::fp32, 1e-5)}) {
    layout.dtype = dtype;
    const StepResult got = VirtualLlama(c.model, layout, c.weights).run(c.ids, c.targets, c.batch);
    const auto [distance, what] = furthest(c, got);
    EXPECT_LT(distance, bound) << what << " in " << name(dtype);
    RecordProperty(std::string(name(dtype)), fmt::format("{:.2e}", distance));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Reference, ::testing::ValuesIn(lawful_layouts()), [](const auto& param) {
  std::string text = std::string(std::get<0>(param.param)) + "_" + std::get<1>(param.param).text;
  std::replace(text.begin(), text.end(), '-', '_');
  return text;
});

// bf16 has its own, wide bound; it shows that storage in bf16 trains the same function.
TEST(ReferenceBf16, LossNearFloat64) {
  SEXTANT_NEEDS_REFERENCE();
  const GradientCase c("deep");
  for (const KernelTable* table : {&cpu_kernels(), &cpu_reference_kernels()}) {
    const StepResult got = VirtualLlama(c.model, {.dtype = Dtype::bf16, .kernels = table}, c.weights)
                               .run(c.ids, c.targets, c.batch);
    EXPECT_LT(relative_distance(std::vector{got.loss}, c.loss), 2e-3) << table->name;
    for (const auto& [name, expected] : c.gradients)
      EXPECT_LT(relative_distance(got.gradients.at(name), expected), 6e-2) << name << " " << table->name;
  }
}

// Negative controls: the comparison above must see one tensor rolled by one element, and one gradient too.
TEST(ReferenceControl, RolledWeightIsSeen) {
  SEXTANT_NEEDS_REFERENCE();
  const GradientCase c("gqa-odd");
  for (const auto& [name, values] : c.weights) {
    NamedTensors rolled = c.weights;
    auto& w = rolled[name];
    std::rotate(w.begin(), w.begin() + 1, w.end());
    const StepResult got = VirtualLlama(c.model, {}, rolled).run(c.ids, c.targets, c.batch);
    EXPECT_GT(furthest(c, got).first, 1e-5) << name;
  }
  StepResult got = VirtualLlama(c.model, {}, c.weights).run(c.ids, c.targets, c.batch);
  auto& g = got.gradients.begin()->second;
  std::rotate(g.begin(), g.begin() + 1, g.end());
  EXPECT_GT(furthest(c, got).first, 1e-5);
}

// Layouts that only move work in time or space leave the bits alone.
TEST(ReferenceBits, RecomputeSplitAndFusedHeadAreBitEqual) {
  SEXTANT_NEEDS_REFERENCE();
  const GradientCase c("gqa-odd");
  for (const Dtype dtype : {Dtype::fp64, Dtype::fp32, Dtype::bf16}) {
    VirtualLayout plain{.dtype = dtype};
    const StepResult expected = VirtualLlama(c.model, plain, c.weights).run(c.ids, c.targets, c.batch);
    VirtualLayout other = plain;
    other.recompute_core = other.split_backward = true;
    EXPECT_EQ(VirtualLlama(c.model, other, c.weights).run(c.ids, c.targets, c.batch).gradients,
              expected.gradients);
    other = plain;
    other.fused_head = true;
    EXPECT_EQ(VirtualLlama(c.model, other, c.weights).run(c.ids, c.targets, c.batch).gradients,
              expected.gradients);
    other = plain;
    other.vocab_multiple = 128;
    EXPECT_EQ(VirtualLlama(c.model, other, c.weights).run(c.ids, c.targets, c.batch).loss, expected.loss);
  }
}

}  // namespace
}  // namespace sextant::testing

// System: the whole runtime, every rank a thread, under layouts of every kind. Expectation: loss, gradient norm and rate of
// every step, the final weights, and every gradient of one batch, as computed elsewhere in float64 on one device. Numbers:
// 1e-10 in fp64. Each layout is run in issue order and in an adversarial order. The other architectures, and fp32, run on
// fewer layouts; what keeps fp32 with the fast products from 1e-5 on one of them is shown at the end.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "tests/reference/gradient_trials.hpp"
#include "tests/reference/lattice.hpp"

namespace sextant::testing {
namespace {

using Case = TrainingCase;

WholeState train(const Case& c, const std::string& key, Dtype dtype, int steps, const Ranks& ranks = {},
                 std::optional<std::uint64_t> adversarial = {}) {
  RankOptions options;
  options.executor.adversarial_seed = adversarial;
  return train_case(c, key, dtype, steps, ranks, options);
}
const Ranks kFast{.kernels = &cpu_kernels()}, kApart{.apart = true};

constexpr int kAll = 20, kFew = 6;  // few: past the warm-up of four

void compare(const Case& c, const WholeState& got, double bound, const std::string& what) {
  for (std::size_t s = 0; s < got.steps.size(); ++s) {
    ASSERT_LT(std::abs(got.steps[s].loss / c.loss[s] - 1), bound) << what << ": loss of step " << s;
    ASSERT_LT(std::abs(got.steps[s].gradient_norm / c.norm[s] - 1), bound) << what << ": norm of step " << s;
    ASSERT_LT(std::abs(got.steps[s].rate / c.rate[s] - 1), 1e-14) << what << ": rate of step " << s;
  }
  if (got.steps.size() < kAll) return;  // the fixture has weights of the end only
  for (const auto& [name, values] : c.final_weights)
    ASSERT_LT(relative_distance(got.state.at(StateField::master).at(name), values), bound)
        << what << ": " << name;
}

#ifdef SEXTANT_LATTICE
constexpr const auto& kLayouts = kLattice;
#else
constexpr const char* kLayouts[] = {
    "mbs8",
    "mbs1.full3",
    "dp4.z1.mbs1.b4K",
    "dp2.z2.mbs1.b4K",
    "dp4.z3.mbs1",
    "tp2.sp.mbs2",
    "tp2.sp.cp2.mbs1.dp2.z1",
    "pp4.mbs2",
    "pp2.mbs1.zb.dp2.z2.b4K",
    "tp2.sp.pp2.vp2.mbs1.dp2.z1.b4K.full1",
    "dp2.z3.mbs1.po.oo60",
    "mbs1.ao4.hz3.full2",
};
#endif

class Layouts : public ::testing::TestWithParam<const char*> {};

TEST_P(Layouts, TrainAsTheReference) {
  SEXTANT_NEEDS_REFERENCE();
  const std::string key = GetParam();
  Case c("deep");
  if (parse_plan_key(key).dp == 3) {  // a batch of six: compared with one rank, not with the fixture
    c.batch = lattice_batch(3);
    const WholeState one = train(c, "mbs1", Dtype::fp64, 5), three = train(c, key, Dtype::fp64, 5);
    for (std::size_t s = 0; s < 5; ++s) {
      ASSERT_LT(std::abs(three.steps[s].gradient_norm / one.steps[s].gradient_norm - 1), 1e-10);
    }
    return;
  }
  const bool whole = key.starts_with("mbs8") || key.find("sp.pp2.vp2") != std::string::npos;
  compare(c, train(c, key, Dtype::fp64, whole ? kAll : kFew), 1e-10, key);
  // Tokens, scalars, tables and weights through copies, as to a GPU, whose memory the host does not see.
  compare(c, train(c, key, Dtype::fp64, 2, kApart, 7), 1e-10, key + ", adversarial order, separate memory");
}

// Every architecture in both precisions and with both tables of kernels, on what layouts its extents allow.
struct Trained {
  const char* fixture;
  std::vector<const char*> layouts;
  double fast_bound = 1e-5;  // of fp32 with the fast products
};
void PrintTo(const Trained& t, std::ostream* out) { *out << t.fixture; }

class Architectures : public ::testing::TestWithParam<Trained> {};

TEST_P(Architectures, TrainAsTheReference) {
  SEXTANT_NEEDS_REFERENCE();
  const Case c(GetParam().fixture);
  for (const std::string key : GetParam().layouts) {
    compare(c, train(c, key, Dtype::fp64, kAll), 1e-10, key + " fp64");
    compare(c, train(c, key, Dtype::fp32, kAll), 1e-5, key + " fp32");
    compare(c, train(c, key, Dtype::fp32, kAll, kFast), GetParam().fast_bound, key + " fp32, fast products");
  }
  Case wrong = c;
  wrong.model.norm_eps *= 1.1;
  const WholeState got = train(wrong, GetParam().layouts.front(), Dtype::fp64, 1);
  EXPECT_GT(std::abs(got.steps[0].gradient_norm / c.norm[0] - 1), 1e-7) << "control";
}

INSTANTIATE_TEST_SUITE_P(
    Reference, Architectures,
    ::testing::Values(
        Trained{"gqa-odd",
                {"mbs1", "dp4.z2.mbs1", "dp2.z3.mbs1.full.po", "pp2.mbs2.zb.dp2.z1", "mbs2.ao1.oo50"}},
        Trained{"llama3-rope",
                {"mbs1", "dp2.z1.mbs1.b4K", "dp2.z3.mbs1", "pp2.mbs1.dp2.z2.sel", "mbs2.ao1.oo50"}},
        Trained{"mha-tied",
                {"mbs1", "dp2.z1.mbs2", "dp2.z3.mbs1.full.po", "tp2.sp.mbs1.dp2.z2", "pp2.mbs1.zb",
                 "tp2.nosp.pp2.mbs1", "cp2.mbs1.z1"}},
        Trained{"deep", {"tp2.sp.pp2.mbs1.dp2.z2"}, 5e-5}),
    [](const auto& param) {
      std::string text = param.param.fixture;
      std::ranges::replace(text, '-', '_');
      return text;
    });

// ---- Loss and every gradient of one batch.

TEST(Gradients, AsTheReference) {
  SEXTANT_NEEDS_REFERENCE();
  for (const GradientTrial& trial : kGradientTrials)
    for (const char* key : trial.layouts) {
      expect_gradients(trial.fixture, key, Dtype::fp64, 1e-10, {});
      expect_gradients(trial.fixture, key, Dtype::fp32, 1e-5, {});
      expect_gradients(trial.fixture, key, Dtype::fp32, 1e-5, kFast);
    }
}

TEST(Gradients, WrongOnesAreSeen) {
  SEXTANT_NEEDS_REFERENCE();
  expect_wrong_gradients_are_seen("gqa-odd", "mbs4", Dtype::fp64, 1e-10, {});
}

// ---- Why `deep` in fp32 with the fast products is up to 2e-5 off after twenty steps.

double final_distance(const Case& c, const WholeState& got) {
  double worst = 0;
  for (const auto& [name, values] : c.final_weights)
    worst = std::max(worst, relative_distance(got.state.at(StateField::master).at(name), values));
  return worst;
}

// Activations and their gradients summed in fp32 do it, a half each; attention, softmax, norms, loss and gradients of weights,
// all in fp32 still, do not.
TEST(Fp32, DigitsAreLostInGemmsOfActivationsOnly) {
  SEXTANT_NEEDS_REFERENCE();
  const Case c("deep");
  KernelTable mixed = cpu_kernels();
  mixed.gemm = [](const GemmArgs& g) {
    (g.transpose_a ? cpu_kernels() : cpu_reference_kernels()).gemm(g);  // a^T b: gradients of weights
  };
  const double without = final_distance(c, train(c, "mbs1", Dtype::fp32, kAll, {.kernels = &mixed}));
  EXPECT_LT(without, 1e-5);
  mixed.gemm = [](const GemmArgs& g) { (g.transpose_a ? cpu_reference_kernels() : cpu_kernels()).gemm(g); };
  EXPECT_GT(final_distance(c, train(c, "mbs1", Dtype::fp32, kAll, {.kernels = &mixed})), 2 * without)
      << "control";
}

// The task itself multiplies a rounding by a hundred: all in fp64, but with the starting weights disturbed once by half a
// unit of fp32's last place. So no sum that rounds to fp32 in every product of every step is sure to stay within 1e-5.
TEST(Fp32, OneRoundingOfTheStartIsNearlyAsMuch) {
  SEXTANT_NEEDS_REFERENCE();
  Case c("deep");
  std::uint64_t state = 1;
  for (auto& [name, values] : c.start)
    for (double& x : values) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      x *= 1 + ((state >> 62 & 1) != 0 ? 0x1p-24 : -0x1p-24);
    }
  const double off = final_distance(c, train(c, "mbs1", Dtype::fp64, kAll));
  EXPECT_GT(off, 4e-6);
  EXPECT_LT(off, 5e-5);
}

INSTANTIATE_TEST_SUITE_P(Deep, Layouts, ::testing::ValuesIn(kLayouts), [](const auto& param) {
  std::string text = param.param;
  std::ranges::replace_if(
      text, [](char ch) { return !std::isalnum(static_cast<unsigned char>(ch)); }, '_');
  return text;
});

// Its launcher looks for the keys of all CP ranks where attention begins.
TEST(RuntimeRefuses, ARingOfCpRanks) {
  StackSpec stack = own_stack();
  TrainingSpec training = tiny_training();
  training.gradient = training.reduction = training.optimizer_state = accumulator_of(training.compute);
  const auto refused = [&](const char* key) {
    return runtime_refuses(tiny_model(), training, parse_plan_key(key), stack, cpu_reference_kernels());
  };
  EXPECT_TRUE(refused("cp2.mbs1").empty());
  stack.rules.cp_ring = true;
  EXPECT_TRUE(refused("dp2.mbs1").empty());
  ASSERT_EQ(refused("cp2.mbs1").size(), 1u);
  EXPECT_EQ(refused("cp2.mbs1").front().key, "stack.rules.cp_ring");
}

}  // namespace
}  // namespace sextant::testing

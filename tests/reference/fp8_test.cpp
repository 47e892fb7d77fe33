// System: gradients of one batch with linear layers in fp8. Expectation: those computed elsewhere in float64. Codes of e4m3 are
// up to 2^-4 from what they stand for and those of e5m2 2^-3, at random: what a gradient is off by is stated per case.
#include <algorithm>

#include <gtest/gtest.h>

#include "tests/reference/fixture_training.hpp"
#include "tests/reference/gradient_trials.hpp"

namespace sextant::testing {
namespace {

struct Fp8Trial {
  const char* fixture;
  double bound;  // of the worst gradient; about twice what is left
  std::vector<const char*> layouts;
};
const Fp8Trial kFp8Trials[] = {
    {"mha-tied", 0.3, {"mbs2", "tp2.sp.mbs1.dp2.z2", "pp2.mbs1.zb"}},
    {"deep", 0.35, {"mbs8", "tp2.sp.pp2.vp2.mbs1.dp2.z1.b4K.full1"}},
};
constexpr double kFp8Loss = 5e-3;

TEST(Fp8Gradients, AreNearTheReference) {
  SEXTANT_NEEDS_REFERENCE();
  for (const Fp8Trial& trial : kFp8Trials)
    for (const char* key : trial.layouts) {
      const GradientCase c(trial.fixture);
      const StepResult got = gradients_of(c, key, Dtype::fp8);
      EXPECT_NEAR(got.loss / c.loss.front(), 1, kFp8Loss) << trial.fixture << ", " << key;
      const auto [distance, what] = furthest(c, got);
      RecordProperty(std::string(trial.fixture) + "." + key, std::to_string(distance));
      EXPECT_LT(distance, trial.bound) << trial.fixture << ", " << key << ": " << what;
      // It is fp8 that is seen: bf16 leaves a few times less.
      EXPECT_GT(distance, 2 * furthest(c, gradients_of(c, key, Dtype::bf16)).first)
          << trial.fixture << ", " << key;
    }
}

// Control: a weight rolled by an element, and a gradient that is half as long again.
TEST(Fp8Gradients, WrongOnesAreSeen) {
  SEXTANT_NEEDS_REFERENCE();
  for (const Fp8Trial& trial : kFp8Trials) {
    const GradientCase c(trial.fixture);
    GradientCase wrong = c;
    auto& rolled = wrong.weights.at("model.layers.1.mlp.down_proj.weight");
    std::rotate(rolled.begin(), rolled.begin() + 1, rolled.end());
    EXPECT_GT(furthest(c, gradients_of(wrong, trial.layouts.front(), Dtype::fp8)).first, 2 * trial.bound);
    const StepResult got = gradients_of(c, trial.layouts.front(), Dtype::fp8);
    for (const auto& [name, values] : c.gradients) {
      StepResult other = got;
      for (double& x : other.gradients.at(name)) x *= 1 + 2 * trial.bound;
      EXPECT_GT(furthest(c, other).first, trial.bound) << name;
    }
  }
}

}  // namespace
}  // namespace sextant::testing

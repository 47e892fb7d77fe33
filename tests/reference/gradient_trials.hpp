// Loss and every gradient of each case of the reference under some layouts, on ranks of any device.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "tests/reference/fixture_training.hpp"

namespace sextant::testing {

struct GradientTrial {
  const char* fixture;
  std::vector<const char*> layouts;  // that its extents allow
};
inline const GradientTrial kGradientTrials[] = {
    {"gqa-odd", {"mbs4", "dp2.z2.mbs1", "pp2.mbs2.zb.dp2.z1"}},
    {"mha-tied", {"mbs2", "tp2.sp.mbs1.dp2.z2", "cp2.mbs1.z1", "pp2.mbs1.zb"}},
    {"llama3-rope", {"mbs1", "dp2.z3.mbs1"}},
    {"deep", {"mbs8", "tp2.sp.pp2.vp2.mbs1.dp2.z1.b4K.full1"}},
};

inline void expect_gradients(const std::string& fixture, const std::string& key, Dtype dtype, double bound,
                             const Ranks& ranks) {
  const GradientCase c(fixture);
  const auto [distance, what] = furthest(c, gradients_of(c, key, dtype, ranks));
  EXPECT_LT(distance, bound) << fixture << ", " << key << ", " << name(dtype) << ", " << ranks.kernels->name
                             << ": " << what;
}

// Controls: one weight rolled by an element, and one gradient.
inline void expect_wrong_gradients_are_seen(Dtype dtype, double bound, const Ranks& ranks) {
  const GradientCase c("gqa-odd");
  const auto rolled = [](NamedTensors tensors, const std::string& name) {
    auto& values = tensors.at(name);
    std::rotate(values.begin(), values.begin() + 1, values.end());
    return tensors;
  };
  GradientCase wrong = c;
  wrong.weights = rolled(c.weights, "model.layers.1.post_attention_layernorm.weight");
  EXPECT_GT(furthest(c, gradients_of(wrong, "mbs4", dtype, ranks)).first, 10 * bound);
  StepResult got = gradients_of(c, "mbs4", dtype, ranks);
  for (const auto& [name, values] : c.gradients) {
    StepResult other = got;
    other.gradients = rolled(got.gradients, name);
    const auto [distance, what] = furthest(c, other);
    EXPECT_GT(distance, 10 * bound) << name;
    EXPECT_EQ(what, name);
  }
  got.gradients.erase(got.gradients.begin());
  EXPECT_GT(furthest(c, got).first, 1) << "one is missing";
}

}  // namespace sextant::testing

// Loss and every gradient of each case of the reference under some layouts, on ranks of any device.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/reference/fixture_training.hpp"

namespace sextant::testing {

struct GradientTrial {
  const char* fixture;
  double bf16_bound;  // about twice what tiles, libraries and the CPU leave: 1.5, 2.2, 1.4, 3.1e-2
  std::vector<const char*> layouts;  // that its extents allow
};
inline const GradientTrial kGradientTrials[] = {
    {"gqa-odd", 3e-2, {"mbs4", "dp2.z2.mbs1", "pp2.mbs2.zb.dp2.z1"}},
    {"mha-tied", 4.5e-2, {"mbs2", "tp2.sp.mbs1.dp2.z2", "cp2.mbs1.z1", "pp2.mbs1.zb"}},
    {"llama3-rope", 3e-2, {"mbs1", "dp2.z3.mbs1"}},
    {"deep", 6e-2, {"mbs8", "tp2.sp.pp2.vp2.mbs1.dp2.z1.b4K.full1"}},
};

// A mean over all tokens: bf16 leaves it 1.4e-4 off, where gradients are a hundred times as far.
inline constexpr double kLossBound = 1e-3;

// What is further from the reference than allowed, and how far; empty when nothing is.
inline std::string too_far(const GradientCase& c, const StepResult& got, double bound) {
  if (const double off = relative_distance(std::vector{got.loss}, c.loss);
      !(off < std::min(bound, kLossBound)))
    return fmt::format("loss {:.1e}", off);
  const auto [distance, what] = furthest(c, got);
  return distance < bound ? "" : fmt::format("{} {:.1e}", what, distance);
}

inline void expect_gradients(const std::string& fixture, const std::string& key, Dtype dtype, double bound,
                             const Ranks& ranks) {
  const GradientCase c(fixture);
  EXPECT_EQ(too_far(c, gradients_of(c, key, dtype, ranks), bound), "")
      << fixture << ", " << key << ", " << name(dtype) << ", " << ranks.kernels->name;
}

// Controls: one weight rolled by an element, one gradient rolled, one a little too long, and a loss that is a little off.
inline void expect_wrong_gradients_are_seen(const char* fixture, const char* key, Dtype dtype, double bound,
                                            const Ranks& ranks) {
  const GradientCase c(fixture);
  const auto rolled = [](NamedTensors tensors, const std::string& name) {
    auto& values = tensors.at(name);
    std::rotate(values.begin(), values.begin() + 1, values.end());
    return tensors;
  };
  GradientCase wrong = c;
  wrong.weights = rolled(c.weights, "model.layers.1.post_attention_layernorm.weight");
  EXPECT_GT(furthest(c, gradients_of(wrong, key, dtype, ranks)).first, 3 * bound);
  StepResult got = gradients_of(c, key, dtype, ranks);
  for (const auto& [name, values] : c.gradients) {
    StepResult other = got;
    other.gradients = rolled(got.gradients, name);
    const auto [distance, what] = furthest(c, other);
    EXPECT_GT(distance, 10 * bound) << name;
    EXPECT_EQ(what, name);
    other.gradients = got.gradients;
    for (double& x : other.gradients.at(name)) x *= 1 + 2.5 * bound;
    EXPECT_TRUE(too_far(c, other, bound).starts_with(name + " ")) << name << ": " << too_far(c, other, bound);
  }
  StepResult other = got;
  other.loss *= 1 + 2.5 * std::min(bound, kLossBound);
  EXPECT_TRUE(too_far(c, other, bound).starts_with("loss "));
  got.gradients.erase(got.gradients.begin());
  EXPECT_GT(furthest(c, got).first, 1) << "one is missing";
}

}  // namespace sextant::testing

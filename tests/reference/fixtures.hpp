// The independent reference: a folder of cases computed elsewhere in float64, beside the source tree, or where a bundle of
// the tests has it. Tests that need it skip with a reason where it is absent.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/safetensors.hpp"
#include "core/model/model_spec.hpp"
#include "tests/reference/virtual_llama.hpp"

namespace sextant::testing {

inline constexpr const char* kReferenceCases[] = {"gqa-odd", "mha-tied", "llama3-rope", "deep"};

// $SEXTANT_REFERENCE, SOURCE/../shared/reference or SOURCE/../../shared/reference.
std::optional<std::filesystem::path> reference_folder();

#define SEXTANT_NEEDS_REFERENCE()              \
  if (!::sextant::testing::reference_folder()) \
  GTEST_SKIP() << "no ../shared/reference beside the source tree, and SEXTANT_REFERENCE names no other"

ModelSpec read_hugging_face_config(const std::filesystem::path&);
std::vector<double> read_doubles(const SafetensorsFile&, const std::string& name);
std::vector<std::int32_t> read_tokens(const SafetensorsFile&, const std::string& name);
NamedTensors read_all(const SafetensorsFile&, const std::string& prefix = "");  // names without the prefix

// One batch: its logits, its loss and the gradient of every parameter.
struct GradientCase {
  GradientCase() = default;
  explicit GradientCase(const std::string& name);
  ModelSpec model;
  NamedTensors weights, gradients;
  std::vector<std::int32_t> ids, targets;
  std::vector<double> logits, loss;
  int batch = 0, seq = 0;
};

// The worst relative norm among loss, logits where there are any, and every gradient, with its name. Infinite where a
// gradient is missing or nobody asked for it.
std::pair<double, std::string> furthest(const GradientCase&, const StepResult&);

}  // namespace sextant::testing

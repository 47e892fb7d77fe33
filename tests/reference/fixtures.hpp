// The independent reference: a folder of cases computed elsewhere in float64, beside the source tree. Tests
// that need it skip with a reason where it is absent.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/model_spec.hpp"
#include "core/safetensors.hpp"
#include "tests/reference/virtual_llama.hpp"

namespace sextant::testing {

inline constexpr const char* kReferenceCases[] = {"gqa-odd", "mha-tied", "llama3-rope", "deep"};

// SOURCE/../shared/reference or SOURCE/../../shared/reference.
std::optional<std::filesystem::path> reference_folder();

ModelSpec read_hugging_face_config(const std::filesystem::path&);
std::vector<double> read_doubles(const SafetensorsFile&, const std::string& name);
std::vector<std::int32_t> read_tokens(const SafetensorsFile&, const std::string& name);
NamedTensors read_all(const SafetensorsFile&, const std::string& prefix = "");  // names without the prefix

}  // namespace sextant::testing

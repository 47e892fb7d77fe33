// One constant of a device generation, a software stack or a fabric at another value than its preset's: what a
// calibration leaves behind, and how it is put in its place.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/cluster/cluster_spec.hpp"
#include "core/plan/stack_spec.hpp"
#include "cost_models/constants.hpp"

namespace sextant {

enum class ConstantOwner : std::uint8_t { device, stack, fabric };
inline constexpr std::array<std::string_view, 3> kConstantOwnerNames = {"device", "stack", "fabric"};

// One constant at a value, in the unit of its key.
struct Setting {
  ConstantOwner of = ConstantOwner::device;
  std::string owner, key;
  double value = 0;
};
double setting_value(StackSpec, const std::string& key);
double setting_value(FabricSpec, const std::string& key);
double setting_value(DeviceSpec, const std::string& key);
bool may_be_calibrated(ConstantOwner, const std::string& key);
// Each takes the settings that are its own. Throws ConfigError on a key that may not be calibrated.
void use_settings(std::span<const Setting>, const std::string& generation, CostConstants&);
void use_settings(std::span<const Setting>, StackSpec&);
void use_settings(std::span<const Setting>, FabricSpec&);
// Of a device some stand in its own file and not among the constants of its generation.
void use_settings(std::span<const Setting>, DeviceSpec&);

}  // namespace sextant

#include "planner/simulation/setting.hpp"

#include <algorithm>

#include "core/base/error.hpp"

namespace sextant {

namespace {

// How a stack or fabric constant is reached by its JSON key.
double* stack_constant(StackSpec& s, const std::string& key) {
  StackKernels& k = s.kernels;
  if (key == "pointwise_passes") return &k.pointwise_passes;
  if (key == "loss_bytes_per_logit") return &k.loss_bytes_per_logit;
  if (key == "host_forward_per_layer_us") return &k.host_forward_per_layer.v;
  if (key == "host_tp_per_layer_us") return &k.host_tp_per_layer.v;
  if (key == "tp_hidden_share") return &k.tp_hidden_share;
  if (key == "gemm_bonus") return &k.gemm_bonus;
  if (key == "fp8_row_gemm_share") return &k.fp8_row_gemm_share;
  if (key == "fp8_row_bytes") return &k.fp8_row_bytes;
  if (key == "cp_imbalance") return &k.cp_imbalance;
  if (key == "accumulate_bytes") return &k.accumulate_bytes;
  if (key == "step_overhead_ms") return &k.step_overhead.v;
  if (key == "comm_slows_compute") return &k.comm_slows_compute;
  if (key == "compute_slows_comm") return &k.compute_slows_comm;
  if (key == "copy_slows_compute") return &k.copy_slows_compute;
  if (key == "compute_slows_copy") return &k.compute_slows_copy;
  return nullptr;
}
double* fabric_constant(FabricSpec& f, const std::string& key) {
  if (key == "efficiency") return &f.efficiency;
  if (key == "latency_us") return &f.latency.v;
  if (key == "congestion_GBps") return &f.congestion.v;
  if (key == "queued_latency_us") return &f.queued_latency.v;
  return nullptr;
}
double* device_constant(DeviceSpec& d, const std::string& key) {
  if (key == "launch_overhead_us") return &d.launch_overhead.v;
  return nullptr;
}
bool in_device_file(const std::string& key) {
  DeviceSpec device;
  return device_constant(device, key) != nullptr;
}
// Keys carry units, values in code are SI.
double si(const std::string& key, double value) {
  return key.ends_with("_us")     ? value * 1e-6
         : key.ends_with("_ms")   ? value * 1e-3
         : key.ends_with("_GBps") ? value * 1e9
                                  : value;
}
double in_unit(const std::string& key, double value) { return value / si(key, 1.0); }

[[noreturn]] void unknown(const std::string& key) {
  throw ConfigError(
      Problem{"", "key", key, "a constant of a device, stack or fabric that may be calibrated", ""});
}

}  // namespace

double setting_value(StackSpec stack, const std::string& key) {
  const double* at = stack_constant(stack, key);
  if (at == nullptr) unknown(key);
  return in_unit(key, *at);
}

double setting_value(FabricSpec fabric, const std::string& key) {
  const double* at = fabric_constant(fabric, key);
  if (at == nullptr) unknown(key);
  return in_unit(key, *at);
}

double setting_value(DeviceSpec device, const std::string& key) {
  const double* at = device_constant(device, key);
  if (at == nullptr) unknown(key);
  return in_unit(key, *at);
}

bool may_be_calibrated(ConstantOwner of, const std::string& key) {
  StackSpec stack;
  FabricSpec fabric;
  if (of == ConstantOwner::stack) return stack_constant(stack, key) != nullptr;
  if (of == ConstantOwner::fabric) return fabric_constant(fabric, key) != nullptr;
  if (in_device_file(key)) return true;
  const auto keys = constant_keys();
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

void use_settings(std::span<const Setting> settings, const std::string& generation,
                  CostConstants& constants) {
  for (const Setting& s : settings)
    if (s.of == ConstantOwner::device && (s.owner.empty() || s.owner == generation) && !in_device_file(s.key))
      constant(constants, s.key) = s.value;
}

void use_settings(std::span<const Setting> settings, StackSpec& stack) {
  for (const Setting& s : settings) {
    if (s.of != ConstantOwner::stack || s.owner != stack.name) continue;
    double* target = stack_constant(stack, s.key);
    if (target == nullptr) unknown(s.key);
    *target = si(s.key, s.value);
  }
}

void use_settings(std::span<const Setting> settings, FabricSpec& fabric) {
  for (const Setting& s : settings) {
    if (s.of != ConstantOwner::fabric || s.owner != fabric.name) continue;
    double* target = fabric_constant(fabric, s.key);
    if (target == nullptr) unknown(s.key);
    *target = si(s.key, s.value);
  }
}

void use_settings(std::span<const Setting> settings, DeviceSpec& device) {
  for (const Setting& s : settings)
    if (s.of == ConstantOwner::device && (s.owner.empty() || s.owner == device.generation) &&
        in_device_file(s.key))
      *device_constant(device, s.key) = si(s.key, s.value);
}

}  // namespace sextant

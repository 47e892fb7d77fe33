// What a machine does whatever the plan, as `sextant profile` has measured it: copies, GEMMs, launches and
// collectives, each alone and concurrent with another, and the state that the machine was in meanwhile.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace sextant {

struct MachineMeasurement {
  std::string what;  // "copy host_to_device 268435456B", "gemm bf16 8192x8192x8192", "all_reduce 4194304B g2"
  std::string concurrent_with;          // what ran all the while; empty: nothing
  double median_us = 0, spread_us = 0;  // of one call; the spread lies between the quartiles
  int samples = 0, outliers = 0;
  double rate_GBps = 0;  // bytes it moves by the median; of a copy within a memory, read and written; 0: none
  double rate_TFLOPS = 0;  // 0: none
  bool operator==(const MachineMeasurement&) const = default;
};

// The state of a GPU at one moment, as its driver says; 0 = not known.
struct MachineCondition {
  std::string at;     // "before copies"
  double time_s = 0;  // since the measurements began
  double sm_clock_MHz = 0, memory_clock_MHz = 0, temperature_C = 0, power_W = 0;
  std::string limited_by;  // "power cap", "heat"; empty: nothing, or not known
  bool operator==(const MachineCondition&) const = default;
};

struct MachineFacts {
  std::string device, driver, compute_capability;
  std::vector<std::string> libraries;
  int multiprocessors = 0;
  double memory_GiB = 0, level2_MiB = 0;
  // What a process of one rank had taken of a GPU while it trained, beyond the planner's account of its buffers: context,
  // code and scratch of kernels and libraries, NCCL. 0: not known.
  double outside_GiB = 0;
  double most_sm_clock_MHz = 0, most_memory_clock_MHz = 0, power_limit_W = 0;
  std::vector<MachineCondition> conditions;
  std::vector<MachineMeasurement> measurements;
  bool operator==(const MachineFacts&) const = default;

  // nullptr when it was not measured.
  const MachineMeasurement* find(const std::string& what, const std::string& concurrent_with = "") const;
  // How many times as long it takes while the other runs as alone; 0 when either was not measured.
  double lengthening(const std::string& what, const std::string& concurrent_with) const;
};

void to_json(nlohmann::json&, const MachineFacts&);
void from_json(const nlohmann::json&, MachineFacts&);  // throws ConfigError
// "\"beside\" is read as \"concurrent_with\"" where the measurements of an object that was read have the key of version 0.1;
// empty: they have not.
std::string former_measurement_key(const nlohmann::json& facts);

}  // namespace sextant

// What does this machine do whatever the plan? Copies within and between the memories, in both directions at once, the
// rate of GEMMs, the cost of a launch, collectives by kind, size and group, and how much longer a GEMM takes while a
// collective or a copy runs. The same code on every device; alone unless stated otherwise.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/timeline/machine_facts.hpp"
#include "kernels/kernel_table.hpp"
#include "runtime/communicators/communicator.hpp"
#include "runtime/devices/device.hpp"

namespace sextant {

struct SweepOptions {
  int repetitions = 12;  // of each measurement, behind one that is dropped
  std::int64_t copy_bytes = std::int64_t{64} << 20;
  std::vector<Dtype> formats = {Dtype::fp32, Dtype::bf16};  // of GEMMs
  std::vector<std::int64_t> extents = {512, 1024};          // of square ones
  int threads = 1;                                          // in a GEMM
  std::string node;         // the machine of this rank: ranks of one name exchange within a node
  bool one_device = false;  // which all ranks share
  std::vector<std::int64_t> collective_bytes = {1 << 16, 1 << 20, 1 << 23};
  std::function<void(const std::string& part)> before_part = {};  // on rank 0: "copies", "GEMMs", ...
};
SweepOptions sweep_of_gpu();
SweepOptions quick_sweep();  // of either, in a second: a rehearsal

// On every rank of `world` at the same time; what rank 0 returns counts. What needs no exchange is measured on rank 0
// while the others wait.
std::vector<MachineMeasurement> sweep_machine(Device&, const KernelTable&, Communicator& world,
                                              const SweepOptions&);

}  // namespace sextant

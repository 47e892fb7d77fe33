// What this machine has, asked at run time: processor, memory, GPUs, MPI launcher. Nothing here needs CUDA or
// MPI at build time; a missing driver is an answer, not an error.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/base/units.hpp"

namespace sextant {

struct GpuFound {
  std::string name;
  Bytes memory;
};

struct HostMachine {
  std::string cpu;
  int cpu_threads = 0;           // that this process may use
  std::vector<std::string> isa;  // of those that matter to the kernels: avx2, avx512f, avx512_bf16, amx_bf16
  Bytes memory;                  // of the machine, or the limit of its container when that is lower
  Bytes process_memory;          // address space of this process (ulimit -v); 0: no limit
  std::string gpu_driver;        // version line; empty when there is no driver
  std::vector<GpuFound> gpus;
  std::string mpi_launcher;  // path of the first of srun, mpirun, mpiexec; empty when there is none
};

HostMachine inspect_machine();

// The full path of a program in the folders of PATH.
std::optional<std::filesystem::path> find_program(const std::string& name);

}  // namespace sextant

// The machine's own measurements for a profile: its device's properties, the sweep over copies, products and exchanges,
// and the state of the GPU meanwhile.
#pragma once

#include <functional>
#include <string>

#include "core/machine_facts.hpp"
#include "tools/running.hpp"

namespace sextant {

// "NVIDIA H200, cuBLASLt 13.1.0, cuDNN 9.19.0", or the processor and its threads.
std::string machine_of(const RunningOptions&);

// Over `ranks` threads, or the processes of an MPI job; what its first rank returns counts.
struct MeasuredMachine {
  MachineFacts facts;
  bool first_rank = true;
};
MeasuredMachine measure_machine(const RunningOptions&, int ranks,
                                const std::function<void(const std::string& part)>& progress);

}  // namespace sextant

// The machine's own measurements for a profile: its device's properties, the sweep over copies, GEMMs and exchanges,
// and the state of the GPU meanwhile.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/timeline/machine_facts.hpp"
#include "tools/inputs/running.hpp"

namespace sextant {

// "NVIDIA H200, cuBLASLt 13.1.0, cuDNN 9.19.0", or the processor and its threads.
std::string machine_of(const RunningOptions&);

// What the machine is, and the state of its GPU while it is measured.
class MachineWatch {
 public:
  explicit MachineWatch(const RunningOptions&);
  ~MachineWatch();
  MachineWatch(const MachineWatch&) = delete;
  MachineWatch& operator=(const MachineWatch&) = delete;

  // Clocks, temperature and power of a GPU; nothing where these are not known.
  std::optional<MachineCondition> condition(const std::string& at) const;
  void note(const std::string& at);    // as a condition of the facts
  const std::string& missing() const;  // why these are not known; empty when they are, or cores are devices
  Bytes taken() const;                 // of the GPU's memory since the watch began; 0: not known
  MachineFacts& facts() { return facts_; }

 private:
  struct State;
  std::unique_ptr<State> state_;
  MachineFacts facts_;
};

// Measures into the watch's facts, over `ranks` threads or the processes of a job; the first rank's measurements count.
struct MeasuredBy {
  bool first_rank = true;  // is of this process
  int ranks = 1;
};
MeasuredBy measure_machine(const RunningOptions&, int ranks, bool quick, MachineWatch&,
                           const std::function<void(const std::string& part)>& progress);

}  // namespace sextant

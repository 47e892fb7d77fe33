// The numbers of one device that every formula reads, taken once from its spec and constants so that pricing
// looks nothing up. Rates are what can be reached, not what the data sheet says; `peak` is the data sheet's at the clock the device
// is held to.
#pragma once

#include <array>

#include "core/cluster/cluster_spec.hpp"
#include "cost_models/constants.hpp"

namespace sextant {

struct Machine {
  CostConstants constants;
  std::array<double, kDtypeNames.size()> peak{};  // FLOP/s, dense, by Dtype
  double memory_rate = 0;                         // bytes/s that a streaming kernel reaches
  double launch = 0;                              // seconds between dependent kernels
  double host_link = 0;                           // bytes/s, one direction, reached
  double host_memory_rate = 0;                    // bytes/s for the CPU's share of one GPU, reached
  int multiprocessors = 1;
  // Tiles that are worked on at once. These are the multiprocessors, but never fewer than the peak is worth at the full
  // rate of their generation: fewer that are said to be faster need tiles as much larger to be fed.
  double tiles_at_once = 1;
  double attention_share = 1;  // of charted rates: multiprocessors over the charts', at most 1, times clock

  // A precision the device has no rate for runs at the rate of the next one it has: bf16 and fp16 stand for
  // each other, fp8 falls back to bf16, anything else to fp32. Throws ConfigError when the device has no peak
  // at all.
  Machine(const DeviceSpec&, const NodeSpec&, const CostConstants&);
};

}  // namespace sextant

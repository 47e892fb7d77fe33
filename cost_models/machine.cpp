#include "cost_models/machine.hpp"

#include <algorithm>
#include <initializer_list>

namespace sextant {

namespace {
double peak_of(const DeviceSpec& d, std::initializer_list<Dtype> preference) {
  for (const Dtype t : preference)
    if (const auto it = d.peak.find(t); it != d.peak.end() && it->second.v > 0) return it->second.v;
  return 0;
}
}  // namespace

Machine::Machine(const DeviceSpec& d, const NodeSpec& node, const CostConstants& c) : constants(c) {
  using enum Dtype;
  const auto set = [&](Dtype t, std::initializer_list<Dtype> order) {
    peak[static_cast<std::size_t>(t)] = peak_of(d, order) * clock_share(d);
  };
  set(fp8, {fp8, bf16, fp16, tf32, fp32});
  set(fp16, {fp16, bf16, tf32, fp32});
  set(bf16, {bf16, fp16, tf32, fp32});
  set(tf32, {tf32, fp32});
  set(fp32, {fp32, fp64, tf32, bf16, fp16});
  set(fp64, {fp64, fp32, tf32, bf16, fp16});
  for (const double p : peak)
    if (p <= 0)
      throw ConfigError(Problem{d.name, "peak", "", "a dense peak for at least one precision in use", ""});
  memory_rate = d.memory_bandwidth.v * c.memory_efficiency;
  if (memory_rate <= 0)
    throw ConfigError(Problem{d.name, "memory_bandwidth_GBps", "", "a positive rate", ""});
  launch = d.launch_overhead.v;
  host_link = d.host_link.v * c.host_copy_efficiency;
  host_memory_rate = node.host_memory_bandwidth.v / std::max(1, node.gpus) * c.host_update_efficiency;
  multiprocessors = std::max(1, d.multiprocessors);
  const double own = multiprocessors;
  const double full_rate = c.multiprocessor_TFLOPS * 1e12;
  tiles_at_once = full_rate > 0 ? std::max(own, peak_of(d, {bf16, fp16}) / full_rate) : own;
  const double charted = c.attention_multiprocessors > 0 ? c.attention_multiprocessors : own;
  attention_share = std::min(1.0, own / charted) * clock_share(d);
}

}  // namespace sextant

#include "cost_models/state.hpp"

#include <algorithm>

namespace sextant {

namespace {

// Bytes per element. update and norm are the stack's (how often its optimizer goes over memory); the rest is
// counted.
double bytes_per_element(const StateWork& w, const StackKernels& stack) {
  const double gradient = size_bytes(w.gradient);
  switch (w.kind) {
    case StateKind::update:
      return stack.update_bytes;
    case StateKind::norm:
      return stack.norm_bytes;
    case StateKind::accumulate:
      return 3.0 * gradient;  // read both, write one
    case StateKind::zero:
      return gradient;
  }
  return 0;
}

}  // namespace

OpCost price_state(const StateWork& w, const StackKernels& stack, const Machine& m) {
  if (w.elements <= 0) return {};
  const double rate = w.host && m.host_memory_rate > 0 ? m.host_memory_rate : m.memory_rate;
  OpCost cost;
  cost.memory = Seconds(bytes_per_element(w, stack) * static_cast<double>(w.elements) / rate);
  cost.latency = Seconds(m.launch);
  cost.duration = cost.memory + cost.latency;
  return cost;
}

OpCost price_copy(const CopyWork& w, const Machine& m) {
  if (w.bytes.v <= 0) return {};
  OpCost cost;
  cost.latency = Seconds(m.launch);
  cost.memory = m.host_link > 0 ? Seconds(static_cast<double>(w.bytes.v) / m.host_link) : Seconds(0);
  cost.duration = cost.memory + cost.latency;
  return cost;
}

}  // namespace sextant

#include "cost_models/analytic.hpp"

#include <algorithm>
#include <cmath>

#include "cost_models/collective.hpp"
#include "cost_models/state.hpp"

namespace sextant {

namespace {
template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

// Share of one layer's launches; a layer has two norms.
double host_share(BlockKind kind, const CostConstants& c) {
  switch (kind) {
    case BlockKind::norm:
      return c.host_share_norm;
    case BlockKind::qkv:
      return c.host_share_qkv;
    case BlockKind::attention:
      return c.host_share_attention;
    case BlockKind::mlp:
      return c.host_share_mlp;
    default:
      return 0;
  }
}

// Of the stack's GEMMs in a format, over the generation's rate of it.
double gemm_bonus(const StackKernels& k, Dtype dtype) {
  const bool by_rows = dtype == Dtype::fp8 && k.fp8_scales == Fp8Scales::row;
  return k.gemm_bonus * (by_rows ? k.fp8_row_gemm_share : 1);
}
}  // namespace

double smooth_max(double a, double b, double power) {
  const double high = std::max(a, b), low = std::min(a, b);
  if (low <= 0.2 * high) return high;  // the correction is below 1e-8 there for power 10
  return high * std::pow(1.0 + std::pow(low / high, power), 1.0 / power);
}

AnalyticCostModel::AnalyticCostModel(const ClusterSpec& cluster, const StackSpec& stack,
                                     const CostConstants& constants)
    : machine_(cluster.device, cluster.node, constants), stack_(stack) {}

AnalyticCostModel::AnalyticCostModel(const ClusterSpec& cluster, const StackSpec& stack,
                                     const std::filesystem::path& preset_dir)
    : AnalyticCostModel(cluster, stack,
                        load_cost_preset(cluster.device.generation, preset_dir / "cost").constants) {}

OpCost AnalyticCostModel::price(const Kernel& kernel) const {
  return std::visit(
      Overloaded{
          [&](const Gemm& k) { return price_gemm(k, machine_, gemm_bonus(stack_.kernels, k.dtype)); },
          [&](const AttentionCore& k) { return price_attention(k, stack_.kernels.attention, machine_); },
          [&](const Pointwise& k) { return price_pointwise(k, machine_); },
      },
      kernel);
}

OpCost AnalyticCostModel::price_block(const BlockWork& w) const {
  OpCost total;
  for (const Kernel& kernel : kernels_of(w, stack_, machine_.constants)) {
    const OpCost cost = price(kernel);
    total.duration += cost.duration;
    total.compute += cost.compute;
    total.memory += cost.memory;
    total.latency += cost.latency;
  }
  // The host launches the units of a layer one after the other; a device that is faster waits for it.
  double host = stack_.kernels.host_forward_per_layer.v;
  if (w.tp > 1) host += stack_.kernels.host_tp_per_layer.v;
  host *= host_share(w.kind, machine_.constants);
  if (host <= 0) return total;
  const CostConstants& c = machine_.constants;
  const double backward = c.pointwise_backward_launches / c.pointwise_forward_launches;
  if (w.pass == Pass::backward) host *= backward;
  if (w.pass == Pass::backward_input || w.pass == Pass::backward_weight) host *= backward / 2;
  const double bound = smooth_max(total.duration.v, host, machine_.constants.host_smoothing_power);
  total.latency += Seconds(bound) - total.duration;
  total.duration = Seconds(bound);
  return total;
}

OpCost AnalyticCostModel::price(const Work& work) const {
  OpCost cost = std::visit(Overloaded{
                               [&](const BlockWork& w) { return price_block(w); },
                               [&](const CollectiveWork& w) {
                                 return price_collective(w, machine_, stack_.kernels.tp_hidden_share);
                               },
                               [&](const TransferWork& w) { return price_transfer(w, machine_); },
                               [&](const CopyWork& w) { return price_copy(w, machine_); },
                               [&](const StateWork& w) { return price_state(w, stack_.kernels, machine_); },
                           },
                           work);
  const double factor = machine_.constants.time_factor;
  for (Seconds* part : {&cost.duration, &cost.compute, &cost.memory, &cost.latency}) *part = *part * factor;
  return cost;
}

}  // namespace sextant

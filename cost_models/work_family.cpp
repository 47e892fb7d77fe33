#include "cost_models/work_family.hpp"

#include <functional>
#include <variant>

namespace sextant {
namespace {

// Each field in turn; the order counts.
class Mixed {
 public:
  template <class T>
  Mixed& operator<<(const T& value) {
    constexpr std::size_t kOdd = 0x9E3779B97F4A7C15ull;
    hash_ = (hash_ ^ std::hash<T>{}(value)) * kOdd;
    hash_ ^= hash_ >> 29;
    return *this;
  }
  Mixed& operator<<(const GroupShape& g) {
    return *this << g.size << g.nodes << g.ranks_per_node << g.node_bandwidth.v << g.network_bandwidth.v
                 << g.node_latency.v << g.network_latency.v << g.network_start.v << g.queued_bandwidth.v
                 << g.queued_latency.v << g.switched << g.in_switch << g.in_network << g.reduces_inside;
  }
  std::size_t hash() const { return hash_; }

 private:
  std::size_t hash_ = 0;
};

struct HashOf {
  Mixed& to;
  void operator()(const BlockWork& w) const {
    to << w.kind << w.pass << w.batch << w.seq_q << w.seq_k << w.hidden << w.heads << w.kv_heads << w.head_dim
       << w.ffn << w.vocab << w.tp << w.sequence_parallel << w.gated << w.recompute_core << w.window << w.bias
       << w.joined << w.chunk << w.short_logits << w.normalized << w.qk_norm << w.dtype;
  }
  void operator()(const CollectiveWork& w) const { to << w.kind << w.bytes.v << w.group << w.tp_overlapped; }
  void operator()(const TransferWork& w) const { to << w.bytes.v << w.link; }
  void operator()(const CopyWork& w) const { to << w.direction << w.bytes.v; }
  void operator()(const StateWork& w) const {
    to << w.kind << w.elements << w.parameter << w.gradient << w.host;
  }
};

struct WithoutSize {
  Work operator()(const BlockWork& w) const {
    BlockWork family;
    family.kind = w.kind;
    family.pass = w.pass;
    family.dtype = w.dtype;
    family.head_dim = w.head_dim;
    family.sequence_parallel = w.sequence_parallel;
    family.gated = w.gated;
    family.recompute_core = w.recompute_core;
    family.window = w.window;
    family.bias = w.bias;
    family.normalized = w.normalized;
    family.qk_norm = w.qk_norm;
    return family;
  }
  Work operator()(CollectiveWork w) const {
    w.bytes = Bytes(0);
    return w;
  }
  Work operator()(TransferWork w) const {
    w.bytes = Bytes(0);
    return w;
  }
  Work operator()(CopyWork w) const {
    w.bytes = Bytes(0);
    return w;
  }
  Work operator()(StateWork w) const {
    w.elements = 0;
    return w;
  }
};

}  // namespace

Work family_of(const Work& work) { return std::visit(WithoutSize{}, work); }

std::size_t WorkHash::operator()(const Work& work) const {
  Mixed mixed;
  mixed << work.index();
  std::visit(HashOf{mixed}, work);
  return mixed.hash();
}

}  // namespace sextant

// What must hold for any work on any device: monotone, below the roofline's peak, never faster on slower
// parts.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "cost_models/attention.hpp"
#include "cost_models/collective.hpp"
#include "tests/cost_models/machines.hpp"

namespace sextant {
namespace {

// One tile wave may round up: a larger extent can be at most this much faster, never more.
constexpr double kRounding = 1e-9;

BlockWork any_block() {
  using rc::gen::element;
  using rc::gen::inRange;
  BlockWork w;
  w.kind = static_cast<BlockKind>(*inRange(0, 7));
  w.pass =
      *element(Pass::forward, Pass::backward, Pass::backward_input, Pass::backward_weight, Pass::recompute);
  w.tp = *element(1, 2, 4, 8);
  w.batch = *inRange(1, 9);
  w.seq_q = 128 * *inRange(1, 65);
  w.seq_k = w.seq_q * *element(1, 2, 4);
  w.head_dim = *element(64, 96, 128);
  w.heads = *inRange(1, 65);
  w.kv_heads = w.heads % 4 == 0 && *element(true, false) ? w.heads / 4 : w.heads;
  w.hidden = w.heads * w.head_dim * w.tp;
  w.ffn = 128 * *inRange(1, 129);
  w.vocab = 128 * *inRange(1, 1025);
  w.sequence_parallel = w.tp > 1 && *element(true, false);
  w.gated = *element(true, false);
  w.recompute_core = *element(true, false);
  return w;
}

StackSpec any_stack() {
  StackSpec s;
  s.kernels.attention = *rc::gen::element(
      AttentionKernel::unfused, AttentionKernel::fused_softmax, AttentionKernel::flash1,
      AttentionKernel::flash2, AttentionKernel::flash3, AttentionKernel::cudnn, AttentionKernel::triton);
  s.kernels.norm_fused = *rc::gen::element(true, false);
  s.kernels.pointwise_passes = *rc::gen::element(1.8, 3.5, 5.0);
  s.kernels.host_forward_per_layer = Seconds(*rc::gen::element(0.0, 1e-3));
  s.kernels.accumulate_bytes = *rc::gen::element(0.0, 6.0);
  return s;
}

ClusterSpec any_cluster() { return *rc::gen::element(0, 1) ? test::h100_cluster() : test::a100_cluster(); }

GroupShape any_group(const ClusterSpec& c) {
  const int per_node = *rc::gen::element(1, 2, 4, 8);
  const int nodes = *rc::gen::element(1, 2, 4, 16, 64);
  return nodes == 1 ? test::inside(c, per_node) : test::across(c, nodes, per_node);
}

CollectiveKind any_kind() {
  return *rc::gen::element(CollectiveKind::all_reduce, CollectiveKind::all_gather,
                           CollectiveKind::reduce_scatter);
}

double seconds(const AnalyticCostModel& m, const Work& w) { return m.price(w).duration.v; }

RC_GTEST_PROP(Properties, EveryGemmIsBelowPeak, ()) {
  const ClusterSpec c = any_cluster();
  const AnalyticCostModel m(c, {}, test::preset_dir());
  const auto extent = [] { return std::int64_t{*rc::gen::inRange(1, 1 << 17)}; };
  const Gemm g{extent(), extent(), extent(), *rc::gen::element(1, 8, 16),
               *rc::gen::element(Dtype::bf16, Dtype::fp8, Dtype::fp32)};
  const double e = efficiency(g, m.machine(), 1.08);
  RC_ASSERT(e > 0 && e < 1);
}

RC_GTEST_PROP(Properties, MoreTokensNeverTakeLess, ()) {
  const AnalyticCostModel m(any_cluster(), any_stack(), test::preset_dir());
  BlockWork w = any_block();
  w.seq_k = std::max(w.seq_k, 1024);
  const double before = seconds(m, w);
  w.batch += 1;
  RC_ASSERT(seconds(m, w) >= before * (1 - kRounding));
}

RC_GTEST_PROP(Properties, WiderIsNeverFaster, ()) {
  const AnalyticCostModel m(any_cluster(), any_stack(), test::preset_dir());
  BlockWork w = any_block();
  const double before = seconds(m, w);
  w.ffn += 128;
  w.heads += 1;
  w.vocab += 128;
  RC_ASSERT(seconds(m, w) >= before * (1 - kRounding));
}

RC_GTEST_PROP(Properties, SlowerDeviceIsNeverFaster, ()) {
  const ClusterSpec c = any_cluster();
  const StackSpec stack = any_stack();
  const BlockWork w = any_block();
  const double before = seconds(AnalyticCostModel(c, stack, test::preset_dir()), w);
  ClusterSpec slow = c;
  const double factor = *rc::gen::element(0.9, 0.5);
  switch (*rc::gen::inRange(0, 3)) {
    case 0:
      for (auto& [dtype, peak] : slow.device.peak) peak = peak * factor;
      break;
    case 1:
      slow.device.memory_bandwidth = slow.device.memory_bandwidth * factor;
      break;
    default:
      slow.device.launch_overhead = slow.device.launch_overhead * (1 / factor);
  }
  RC_ASSERT(seconds(AnalyticCostModel(slow, stack, test::preset_dir()), w) >= before * (1 - kRounding));
}

// A peak is stated for all multiprocessors: with fewer of them at the same peak nothing is faster, and long attention, whose
// exponentials come with them, is slower by as much as they are fewer.
RC_GTEST_PROP(Properties, FewerMultiprocessorsAreNeverFaster, ()) {
  ClusterSpec fewer = any_cluster();
  const StackSpec stack = any_stack();
  const BlockWork w = any_block();
  const double before = seconds(AnalyticCostModel(fewer, stack, test::preset_dir()), w);
  fewer.device.multiprocessors = *rc::gen::inRange(2, fewer.device.multiprocessors);
  const double some = seconds(AnalyticCostModel(fewer, stack, test::preset_dir()), w);
  fewer.device.multiprocessors = *rc::gen::inRange(1, fewer.device.multiprocessors);
  const double few = seconds(AnalyticCostModel(fewer, stack, test::preset_dir()), w);
  RC_ASSERT(some >= before * (1 - kRounding));
  RC_ASSERT(few >= some * (1 - kRounding));
}

TEST(Limits, AttentionGoesWithTheMultiprocessors) {
  ClusterSpec c = test::h100_cluster();
  const AttentionCore core{1, 32768, 32768, 32, 128};
  const auto seconds_of = [&] {
    return price_attention(core, AttentionKernel::flash3,
                           AnalyticCostModel(c, {}, test::preset_dir()).machine())
        .duration.v;
  };
  const double whole = seconds_of();
  c.device.multiprocessors = 66;
  EXPECT_NEAR(seconds_of() / whole, 2, 0.01);
  c.device.multiprocessors = 132;
  c.device.clock_factor = 0.5;
  EXPECT_NEAR(seconds_of() / whole, 2, 0.01);
}

// Half the board's power is a clock of its square root, which acts as peaks that are lower by it do; attention, which the clock
// slows as well, may be further from the peak.
RC_GTEST_PROP(Properties, APowerLimitIsALowerPeak, ()) {
  ClusterSpec limited = any_cluster(), slow = limited;
  limited.device.power_W = 700;
  limited.device.power_limit_W = 350;
  for (auto& [dtype, peak] : slow.device.peak) peak = peak * std::sqrt(0.5);
  const StackSpec stack = any_stack();
  const BlockWork w = any_block();
  const double with_limit = seconds(AnalyticCostModel(limited, stack, test::preset_dir()), w);
  const double with_peak = seconds(AnalyticCostModel(slow, stack, test::preset_dir()), w);
  RC_ASSERT(with_limit >= with_peak * (1 - kRounding));
  if (w.kind != BlockKind::attention) RC_ASSERT(std::abs(with_limit - with_peak) <= 1e-12 * with_peak);
}

RC_GTEST_PROP(Properties, CollectivesAreMonotoneInBytesAndLinks, ()) {
  const ClusterSpec c = any_cluster();
  const AnalyticCostModel m(c, {}, test::preset_dir());
  CollectiveWork w{any_kind(), Bytes(*rc::gen::inRange(1, 1 << 30)), any_group(c), false};
  const double before = seconds(m, w);
  CollectiveWork more = w;
  more.bytes = Bytes(w.bytes.v * 2);
  RC_ASSERT(seconds(m, more) >= before);
  RC_ASSERT(seconds(m, more) <= 2 * before * (1 + kRounding));
  CollectiveWork slow = w;
  slow.group.node_bandwidth = w.group.node_bandwidth * 0.5;
  slow.group.network_bandwidth = w.group.network_bandwidth * 0.5;
  slow.group.network_latency = w.group.network_latency * 2;
  slow.group.node_latency = w.group.node_latency * 2;
  RC_ASSERT(seconds(m, slow) >= before);
}

// A reduce-scatter and an all-gather together are an all-reduce: splitting one costs no bandwidth, where messages are so
// large that all go under one protocol.
RC_GTEST_PROP(Properties, AllReduceMovesWhatItsHalvesMove, ()) {
  const ClusterSpec c = test::a100_cluster();
  const AnalyticCostModel m(c, {}, test::preset_dir());
  const GroupShape g = any_group(c);
  const Bytes bytes(*rc::gen::inRange(1 << 28, 1 << 30));
  const double whole = m.price(CollectiveWork{CollectiveKind::all_reduce, bytes, g, false}).memory.v;
  const double halves = m.price(CollectiveWork{CollectiveKind::reduce_scatter, bytes, g, false}).memory.v +
                        m.price(CollectiveWork{CollectiveKind::all_gather, bytes, g, false}).memory.v;
  RC_ASSERT(std::abs(whole - halves) <= 1e-9 * std::max(whole, 1e-12));
}

// Large blocks approach the roofline of their kernels; tiny ones cost their launches.
TEST(Limits, RooflineAndLaunchCost) {
  const ClusterSpec c = test::h100_cluster();
  const AnalyticCostModel m(c, {}, test::preset_dir());
  const Gemm large{1 << 17, 1 << 15, 1 << 15};
  EXPECT_NEAR(efficiency(large, m.machine()), m.machine().constants.gemm_efficiency, 0.005);
  const Gemm tiny{1, 1, 1};
  EXPECT_NEAR(price_gemm(tiny, m.machine()).duration.v, c.device.launch_overhead.v, 1e-6);
  const StateWork state{StateKind::update, std::int64_t{1} << 32};
  EXPECT_NEAR(m.price(state).duration.v, 25.0 * 4294967296.0 / (3350e9 * 0.8), 1e-3);
}

}  // namespace
}  // namespace sextant

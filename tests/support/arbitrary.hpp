// RapidCheck generators of core values: whole-range where a value is only carried, lawful where it is used.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include <rapidcheck.h>

#include "core/graph/work.hpp"
#include "core/plan/parallel_plan.hpp"

namespace sextant::arbitrary {

inline int upto(int least, int most) {
  return static_cast<int>(*rc::gen::inRange(std::int64_t{least}, std::int64_t{most} + 1));
}
template <class E>
E one_of(int count) {
  return static_cast<E>(upto(0, count - 1));
}
// A share of 0..1 with few or all digits of a double.
inline double share() {
  const int digits = *rc::gen::element(100, 1000, 1 << 20, 2147483647);
  return static_cast<double>(upto(0, digits)) / digits;
}
inline double rate() { return *rc::gen::element(0.0, 1e9, 2.35e11, 1.0 / 3.0) * upto(0, 100000); }

// Any plan that a key can state: chunks follow one another, layers only with full recompute.
inline ParallelPlan plan() {
  ParallelPlan p;
  p.tp = upto(1, 16);
  p.cp = upto(1, 8);
  p.pp = upto(1, 16);
  p.dp = upto(1, 512);
  p.vp = upto(1, 8);
  p.sequence_parallel = *rc::gen::arbitrary<bool>();
  p.schedule = one_of<PipelineSchedule>(4);
  p.zero_stage = upto(0, 3);
  p.shard_degree = upto(0, 64);
  p.micro_batch = upto(1, 64);
  p.recompute.kind = one_of<RecomputeKind>(3);
  if (p.recompute.kind == RecomputeKind::full && *rc::gen::arbitrary<bool>())
    p.recompute.layers = upto(1, 40);
  p.optimizer_offload = share();
  p.parameter_offload = *rc::gen::arbitrary<bool>();
  p.activation_offload = upto(0, 20);
  p.offload_horizon = upto(0, 4);
  p.bucket_elements = *rc::gen::element<std::int64_t>(0, 1, 999, 40'000'000, 1'234'567, 5'000, 3'000'000'000);
  p.last_bucket_split = upto(1, 8);
  p.overlap_grad_reduce = *rc::gen::arbitrary<bool>();
  p.overlap_param_gather = *rc::gen::arbitrary<bool>();
  p.overlap_tp = *rc::gen::arbitrary<bool>();
  for (std::size_t i = 3; i > 0; --i)
    std::swap(p.axis_order[i], p.axis_order[static_cast<std::size_t>(upto(0, static_cast<int>(i)))]);
  if (*rc::gen::arbitrary<bool>())
    for (int d = 0; d < p.dp; ++d) p.replica_microbatches.push_back(upto(1, 3));
  if (*rc::gen::arbitrary<bool>())
    for (int d = upto(1, 8); d > 0; --d) p.shard_weights.push_back(upto(1, kMaxShardWeight));
  for (int c = upto(0, 12), first = 0; c > 0; --c) {
    const int count = upto(0, 3);
    p.chunks.push_back({first, count});
    first += count;
  }
  return p;
}

inline TrainingSpec training() {
  TrainingSpec t;
  t.seq_len = upto(1, 131072);
  t.global_batch = upto(1, 16384);
  t.compute = one_of<Dtype>(6);
  const auto kept = [] { return *rc::gen::element(Dtype::fp16, Dtype::bf16, Dtype::fp32, Dtype::fp64); };
  t.parameter = kept();
  t.gradient = kept();
  t.reduction = kept();
  t.optimizer_state = kept();
  t.stack = *rc::gen::element<std::string>("megatron-core", "\"odd\" name\n", "x");
  return t;
}

inline ModelSpec model() {
  ModelSpec m;
  m.name = *rc::gen::element<std::string>("", "llama", "a \"b\"");
  m.n_layers = upto(1, 200);
  m.n_kv_heads = upto(1, 64);
  m.n_heads = m.n_kv_heads * upto(1, 16);
  m.head_dim = 2 * upto(1, 128);
  m.hidden = upto(1, 20000);
  m.ffn_hidden = upto(1, 60000);
  m.vocab_size = upto(1, 300000);
  m.max_positions = upto(1, 1 << 20);
  for (bool ModelSpec::*flag : {&ModelSpec::gated_mlp, &ModelSpec::tied_embeddings, &ModelSpec::linear_bias,
                                &ModelSpec::qkv_bias, &ModelSpec::output_bias, &ModelSpec::mlp_bias,
                                &ModelSpec::embedding_norm, &ModelSpec::normalized_head})
    m.*flag = *rc::gen::arbitrary<bool>();
  m.norm = one_of<NormKind>(2);
  m.position = one_of<PositionKind>(3);
  m.qk_norm = one_of<QkNorm>(3);
  if (m.norm == NormKind::rms) m.norm_placement = one_of<NormPlacement>(2);
  m.window = *rc::gen::arbitrary<bool>() ? upto(1, 1 << 20) : 0;
  m.rope_theta = 1 + share() * 1e6;
  m.norm_eps = share() * 1e-4;
  if (m.position == PositionKind::rope && *rc::gen::arbitrary<bool>()) {
    m.rope_scaling =
        RopeScaling{*rc::gen::element<std::string>("llama3", "linear", "dynamic", "yarn", "longrope"),
                    1 + share() * 31, 1 + share(), 3 + share(), upto(1, 100000)};
    if (m.rope_scaling->type == "longrope" && *rc::gen::arbitrary<bool>())
      for (int i = 0; i < m.head_dim / 2; ++i) {
        m.rope_scaling->short_factor.push_back(1 + share());
        m.rope_scaling->long_factor.push_back(1 + share() * 60);
      }
  }
  return m;
}

inline GroupShape group() {
  GroupShape g;
  g.size = upto(1, 4096);
  g.nodes = upto(1, 512);
  g.ranks_per_node = upto(1, 72);
  g.node_bandwidth = BytesPerSecond(rate());
  g.network_bandwidth = BytesPerSecond(rate());
  g.node_latency = Seconds(share() * 1e-4);
  g.network_latency = Seconds(share() * 1e-4);
  g.network_start = Seconds(*rc::gen::arbitrary<bool>() ? share() * 1e-4 : 0);
  if (*rc::gen::arbitrary<bool>()) {
    g.queued_bandwidth = BytesPerSecond(1e9 + share() * 1e12);
    g.queued_latency = Seconds(share() * 1e-3);
  }
  g.switched = *rc::gen::arbitrary<bool>();
  g.in_switch = *rc::gen::arbitrary<bool>();
  g.in_network = *rc::gen::arbitrary<bool>();
  g.reduces_inside = *rc::gen::arbitrary<bool>();
  return g;
}

inline Work work() {
  const Bytes bytes(*rc::gen::inRange<std::int64_t>(0, std::int64_t{1} << 50));
  switch (upto(0, 4)) {
    case 0: {
      BlockWork w;
      w.kind = one_of<BlockKind>(static_cast<int>(kBlockKindNames.size()));
      w.pass = one_of<Pass>(6);
      for (int BlockWork::*extent :
           {&BlockWork::batch, &BlockWork::seq_q, &BlockWork::seq_k, &BlockWork::hidden, &BlockWork::heads,
            &BlockWork::kv_heads, &BlockWork::head_dim, &BlockWork::ffn, &BlockWork::vocab, &BlockWork::tp})
        w.*extent = upto(0, 3) == 0 ? 0 : upto(1, 300000);
      w.sequence_parallel = *rc::gen::arbitrary<bool>();
      w.gated = *rc::gen::arbitrary<bool>();
      w.recompute_core = *rc::gen::arbitrary<bool>();
      w.window = upto(0, 3) == 0 ? upto(1, 300000) : 0;
      w.chunk = upto(0, 3) == 0 ? upto(1, 300000) : 0;
      w.bias = *rc::gen::arbitrary<bool>();
      w.joined = *rc::gen::arbitrary<bool>();
      w.short_logits = *rc::gen::arbitrary<bool>();
      w.normalized = *rc::gen::arbitrary<bool>();
      w.qk_norm = one_of<QkNorm>(3);
      w.dtype = one_of<Dtype>(6);
      return w;
    }
    case 1:
      return CollectiveWork{one_of<CollectiveKind>(3), bytes, group(), *rc::gen::arbitrary<bool>()};
    case 2:
      return TransferWork{bytes, group()};
    case 3:
      return CopyWork{bytes, one_of<CopyDirection>(2)};
    default:
      return StateWork{one_of<StateKind>(4), bytes.v, one_of<Dtype>(6), one_of<Dtype>(6),
                       *rc::gen::arbitrary<bool>()};
  }
}

}  // namespace sextant::arbitrary

#include "core/graph/parameter_layout.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <span>

#include <fmt/format.h>

#include "core/graph/block_tensors.hpp"

namespace sextant {
namespace {

constexpr std::int64_t kAlignment = 64;  // elements: 128 bytes of bf16, what NCCL and cuBLASLt want

std::int64_t round_up(std::int64_t x, std::int64_t multiple) {
  return (x + multiple - 1) / multiple * multiple;
}

// Elements of one parameter on one tensor-parallel rank; 0: the model has none.
std::int64_t local_elements(const ModelSpec& m, const LocalShape& local, ParameterKind kind) {
  const std::int64_t h = m.hidden, hd = m.head_dim;
  const std::int64_t q = local.heads * hd, kv = local.kv_heads * hd;
  const std::int64_t with_matrix = m.linear_bias ? 1 : 0;
  const auto apart = [&](bool has, std::int64_t n) { return has && !m.linear_bias ? n : 0; };
  switch (kind) {
    case ParameterKind::embedding:
      return local.vocab * h + (m.position == PositionKind::learned ? std::int64_t{m.max_positions} * h : 0) +
             (m.embedding_norm ? 2 * h : 0);
    case ParameterKind::norm_attention:
    case ParameterKind::norm_mlp:
    case ParameterKind::norm_final:
      return m.norm == NormKind::layer ? 2 * h : h;
    case ParameterKind::q:
      return q * (h + with_matrix);
    case ParameterKind::k:
    case ParameterKind::v:
      return kv * (h + with_matrix);
    case ParameterKind::o:
      return q * h + with_matrix * h;
    case ParameterKind::gate:
      return m.gated_mlp ? local.ffn * (h + with_matrix) : 0;
    case ParameterKind::up:
      return local.ffn * (h + with_matrix);
    case ParameterKind::down:
      return local.ffn * h + with_matrix * h;
    case ParameterKind::head:
      return local.vocab * h;
    case ParameterKind::q_bias:
      return apart(m.qkv_bias, q);
    case ParameterKind::k_bias:
    case ParameterKind::v_bias:
      return apart(m.qkv_bias, kv);
    case ParameterKind::o_bias:
      return apart(m.output_bias, h);
    case ParameterKind::gate_bias:
      return apart(m.mlp_bias && m.gated_mlp, local.ffn);
    case ParameterKind::up_bias:
      return apart(m.mlp_bias, local.ffn);
    case ParameterKind::down_bias:
      return apart(m.mlp_bias, h);
    case ParameterKind::q_norm:
      return m.qk_norm == QkNorm::none ? 0 : m.qk_norm == QkNorm::head ? hd : q;
    case ParameterKind::k_norm:
      return m.qk_norm == QkNorm::none ? 0 : m.qk_norm == QkNorm::head ? hd : kv;
  }
  return 0;
}

using Kind = ParameterKind;
// Matrices that read the same stand one behind another, so that they can be used as one (StackRules::fused_projections).
constexpr Kind kMlp[] = {Kind::down, Kind::down_bias, Kind::up_bias, Kind::gate_bias, Kind::gate, Kind::up};
constexpr Kind kOutput[] = {Kind::o_bias, Kind::o};
constexpr Kind kQkv[] = {Kind::k_norm, Kind::q_norm, Kind::v_bias, Kind::k_bias,
                         Kind::q_bias, Kind::q,      Kind::k,      Kind::v};

// The first parameter that a module uses: the norm before its GEMMs, or the attention's output matrix; where norms stand
// behind, the last one before another module's.
bool ends_module(const std::vector<ParameterKind>& of_layer, std::size_t i) {
  const ParameterKind kind = of_layer[i];
  if (of_layer.front() != ParameterKind::norm_mlp)
    return kind == ParameterKind::norm_mlp || kind == ParameterKind::o ||
           kind == ParameterKind::norm_attention;
  return kind == ParameterKind::o || i + 1 == of_layer.size() ||
         of_layer[i + 1] == ParameterKind::norm_attention;
}

// One op of the backward pass writes the gradients of both.
bool same_op(const Parameter& a, const Parameter& b) {
  return a.chunk == b.chunk && a.layer == b.layer && gradient_writer(a.kind) == gradient_writer(b.kind);
}

// Both are parts of one GEMM where the stack joins them.
bool one_gemm(const Parameter& a, const Parameter& b) {
  const bool parts = (a.kind == Kind::q && b.kind == Kind::k) || (a.kind == Kind::k && b.kind == Kind::v) ||
                     (a.kind == Kind::gate && b.kind == Kind::up);
  return parts && a.chunk == b.chunk && a.layer == b.layer;
}

struct Builder {
  std::array<std::int64_t, kParameterKinds> elements;  // on one tensor-parallel rank, by kind
  std::int64_t bucket_limit;
  bool whole_ops;  // a bucket ends where an op does
  bool joined;     // ... or at least where a joined GEMM does
  ParameterLayout out;
  std::int64_t filled = 0;  // elements of the open bucket

  void close() {
    if (out.buckets.empty() || filled == 0) return;
    out.buckets.back().elements = round_up(filled, kAlignment * out.parts);
    out.padded += out.buckets.back().elements;
    filled = 0;
  }
  void add(ParameterKind kind, int chunk, int layer) {
    const std::int64_t n = elements[static_cast<std::size_t>(kind)];
    if (n == 0) return;
    const Parameter next{kind, static_cast<std::uint16_t>(chunk), static_cast<std::uint16_t>(layer), 0, 0, n};
    if (filled >= bucket_limit && !stay_together(out.parameters.back(), next)) close();
    if (filled == 0) out.buckets.push_back({static_cast<std::uint32_t>(out.parameters.size()), 0, 0});
    out.parameters.push_back({kind, static_cast<std::uint16_t>(chunk), static_cast<std::uint16_t>(layer),
                              static_cast<std::uint16_t>(out.buckets.size() - 1), filled, n});
    ++out.buckets.back().count;
    out.elements += n;
    filled = round_up(filled + n, kAlignment);
  }
  bool stay_together(const Parameter& a, const Parameter& b) const {
    return (whole_ops && same_op(a, b)) || (joined && one_gemm(a, b));
  }
};

// Splits the parameters of the last bucket into up to `pieces` buckets of about equal size, to shorten the tail that
// nothing can hide (Megatron-LLaMA's --last-bucket-split-count).
void split_last_bucket(ParameterLayout& layout, int pieces, const Builder& by) {
  const Bucket last = layout.buckets.back();
  layout.buckets.pop_back();
  layout.padded -= last.elements;
  std::int64_t filled = 0;
  int made = 0;
  const std::int64_t target = last.elements / pieces;
  const auto close = [&] {
    layout.buckets.back().elements = round_up(filled, kAlignment * layout.parts);
    layout.padded += layout.buckets.back().elements;
    filled = 0;
  };
  for (std::uint32_t i = last.first; i < last.first + last.count; ++i) {
    Parameter& p = layout.parameters[i];
    if (filled == 0) {
      layout.buckets.push_back({i, 0, 0});
      ++made;
    }
    p.bucket = static_cast<std::uint16_t>(layout.buckets.size() - 1);
    p.offset = filled;
    ++layout.buckets.back().count;
    filled = round_up(filled + p.elements, kAlignment);
    const bool inside = i + 1 < last.first + last.count && by.stay_together(p, layout.parameters[i + 1]);
    if (filled >= target && made < pieces && !inside) close();
  }
  if (filled > 0) close();
}

}  // namespace

std::vector<ParameterKind> layer_parameters(const ModelSpec& m) {
  const LocalShape whole = local_shape(m, 1, 1);
  std::vector<ParameterKind> kinds;
  const auto add = [&](std::span<const Kind> group) {
    for (const Kind kind : group)
      if (local_elements(m, whole, kind) > 0) kinds.push_back(kind);
  };
  const bool before = m.norm_placement == NormPlacement::before;
  constexpr Kind kNormMlp[] = {Kind::norm_mlp}, kNormAttention[] = {Kind::norm_attention};
  if (!before) add(kNormMlp);
  add(kMlp);
  add(before ? kNormMlp : kNormAttention);
  add(kOutput);
  add(kQkv);
  if (before) add(kNormAttention);
  return kinds;
}

LocalShape local_shape(const ModelSpec& m, int tp, int vocab_multiple) {
  const std::int64_t multiple = vocab_multiple <= 1 ? tp : std::int64_t{vocab_multiple} * tp;
  return {m.n_heads / tp, std::max(1, m.n_kv_heads / tp), m.ffn_hidden / tp,
          static_cast<int>(round_up(m.vocab_size, multiple) / tp)};
}

BlockWork block_extents(const ModelSpec& m, const TrainingSpec& training, const ParallelPlan& plan,
                        const LocalShape& local, const StackRules& rules) {
  BlockWork w;
  w.batch = plan.micro_batch;
  w.seq_q = training.seq_len / plan.cp;
  w.seq_k = training.seq_len;
  w.hidden = m.hidden;
  w.heads = local.heads;
  w.kv_heads = local.kv_heads;
  w.head_dim = m.head_dim;
  w.ffn = local.ffn;
  w.vocab = local.vocab;
  w.tp = plan.tp;
  w.sequence_parallel = plan.sequence_parallel && plan.tp > 1;
  w.window = m.window < training.seq_len ? m.window : 0;
  w.gated = m.gated_mlp;
  w.qk_norm = m.qk_norm;
  w.normalized = m.normalized_head;
  w.dtype = training.compute;
  w.joined = rules.fused_projections;
  w.short_logits = rules.short_logits;
  if (rules.head_logits.v > 0) w.chunk = static_cast<int>(head_chunk(w, rules.head_logits));
  return w;
}

ParameterLayout parameter_layout(const ModelSpec& model, const ParallelPlan& plan, const StackRules& rules,
                                 int stage) {
  const int shards = plan.shards();
  const bool units = buckets_are_units(plan, rules);
  const bool by_chunk = plan.zero_stage >= 2;  // reduced after the backward of one chunk, so never across two
  const std::int64_t limit = bucket_limit(plan, rules);
  Builder b{
      {}, limit > 0 ? limit : INT64_MAX, reduces_every_microbatch(plan, rules), rules.fused_projections, {},
      0};
  const LocalShape local = local_shape(model, plan.tp, rules.vocab_multiple);
  for (std::size_t kind = 0; kind < b.elements.size(); ++kind)
    b.elements[kind] = local_elements(model, local, static_cast<ParameterKind>(kind));
  b.out.shards = b.out.parts = shards;
  if (!plan.shard_weights.empty()) {
    b.out.parts = std::accumulate(plan.shard_weights.begin(), plan.shard_weights.end(), 0);
    b.out.most_parts = std::ranges::max(plan.shard_weights);
  }

  const int n_chunks = plan.pp * plan.vp;
  const auto ranges = layer_ranges(plan, model.n_layers);
  std::size_t layers = 0;
  for (int v = 0; v < plan.vp; ++v)
    layers += static_cast<std::size_t>(ranges[static_cast<std::size_t>(v * plan.pp + stage)].count);
  const std::vector<ParameterKind> of_layer = layer_parameters(model);
  b.out.parameters.reserve(of_layer.size() * layers + 3);
  for (int v = plan.vp - 1; v >= 0; --v) {
    const int chunk = v * plan.pp + stage;
    const LayerRange range = ranges[static_cast<std::size_t>(chunk)];
    if (chunk == n_chunks - 1) {
      // A tied head is the embedding itself; on a stage of its own it is a second copy, alone in its bucket.
      if (!model.tied_embeddings || n_chunks > 1) b.add(ParameterKind::head, chunk, 0);
      if (model.tied_embeddings) b.close();
      b.add(ParameterKind::norm_final, chunk, 0);
      if (units) b.close();
    }
    for (int layer = range.first + range.count - 1; layer >= range.first; --layer) {
      for (std::size_t i = 0; i < of_layer.size(); ++i) {
        b.add(of_layer[i], chunk, layer);
        if (units && rules.fetch_modules && ends_module(of_layer, i)) b.close();
      }
      if (units) b.close();
    }
    if (chunk == 0) {
      if (model.tied_embeddings) b.close();
      b.add(ParameterKind::embedding, 0, 0);
    }
    if (by_chunk) b.close();
  }
  b.close();
  if (plan.last_bucket_split > 1 && !units && !b.out.buckets.empty() && b.out.buckets.back().count > 1)
    split_last_bucket(b.out, plan.last_bucket_split, b);
  return std::move(b.out);
}

bool buckets_are_units(const ParallelPlan& plan, const StackRules& rules) {
  return plan.zero_stage >= 3 || plan.parameter_offload || (plan.zero_stage == 2 && rules.zero2_by_units);
}

namespace {
bool may_overlap_grad_reduce(const ParallelPlan& plan, const StackRules& rules) {
  return plan.zero_stage <= rules.grad_reduce_overlaps_to_zero;
}
}  // namespace

std::int64_t bucket_limit(const ParallelPlan& plan, const StackRules& rules) {
  if (buckets_are_units(plan, rules)) return 0;
  const bool may_overlap = may_overlap_grad_reduce(plan, rules);
  if (!plan.overlap_grad_reduce && may_overlap && !reduces_every_microbatch(plan, rules)) return 0;
  if (plan.bucket_elements > 0 && may_overlap) return plan.bucket_elements;
  return std::max(rules.bucket_elements, rules.bucket_elements_per_replica * plan.replicas());
}

bool gathers_every_microbatch(const ParallelPlan& plan, const StackRules& rules) {
  return plan.zero_stage == 2 && rules.zero2_by_units && plan.pp == 1 && plan.shards() > 1 &&
         !fetches_parameters(plan, rules) && reduces_every_microbatch(plan, rules);
}

bool reduces_every_microbatch(int zero_stage, int pp, const StackRules& rules) {
  if (pp > 1 && !rules.reduce_every_microbatch_with_pp) return false;
  return (zero_stage == 2 && rules.reduce_every_microbatch) ||
         (zero_stage >= 3 && rules.zero3_reduce_every_microbatch);
}

bool reduces_every_microbatch(const ParallelPlan& plan, const StackRules& rules) {
  return plan.schedule != PipelineSchedule::zero_bubble &&
         reduces_every_microbatch(plan.zero_stage, plan.pp, rules);
}

bool overlaps_grad_reduce(const ParallelPlan& plan, const StackRules& rules) {
  return plan.overlap_grad_reduce && may_overlap_grad_reduce(plan, rules);
}

bool sums_gradients_on_host(const ParallelPlan& plan, const StackRules& rules) {
  return rules.host_sums_gradients && plan.optimizer_offload == 1 && plan.pp == 1 &&
         reduces_every_microbatch(plan, rules);
}

bool fetches_parameters(const ParallelPlan& plan, const StackRules& rules) {
  return (plan.shards() > 1 && plan.zero_stage >= 3 && rules.zero3_regather_in_backward) ||
         plan.parameter_offload;
}

int embedding_apart_from_head(const ParameterLayout& layout, const ModelSpec& model, const ParallelPlan& plan,
                              const StackRules& rules, int microbatches) {
  const bool one_place = !model.tied_embeddings || plan.pp * plan.vp > 1 || microbatches == 1;
  if (one_place || !rules.tied_gradients_apart || reduces_every_microbatch(plan, rules)) return -1;
  const auto found = std::ranges::find(layout.parameters, ParameterKind::embedding, &Parameter::kind);
  return static_cast<int>(found - layout.parameters.begin());
}

std::int64_t host_share(double optimizer_offload, std::int64_t slice) {
  return std::llround(optimizer_offload * static_cast<double>(slice));
}

int fetched_bytes(const TrainingSpec& training, const StackRules& rules) {
  return rules.host_parameters_are_master ? std::max(4, size_bytes(training.parameter))
                                          : size_bytes(training.parameter);
}

}  // namespace sextant

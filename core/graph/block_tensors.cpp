#include "core/graph/block_tensors.hpp"

#include <algorithm>

namespace sextant {
namespace {

Dtype statistic(const BlockWork& w) { return w.dtype == Dtype::fp64 ? Dtype::fp64 : Dtype::fp32; }

// Of what is kept and passed on.
Dtype kept(const BlockWork& w) { return kept_as(w.dtype); }

Dtype logits_format(const BlockWork& w) { return w.short_logits ? kept(w) : statistic(w); }

std::int64_t q_columns(const BlockWork& w) { return static_cast<std::int64_t>(w.heads) * w.head_dim; }
std::int64_t kv_columns(const BlockWork& w) { return 2 * static_cast<std::int64_t>(w.kv_heads) * w.head_dim; }

// Both as columns of one tensor, where the work has it so; keys and values that are gathered over cp stand apart.
void push_pair(BlockTensors& list, const BlockWork& w, BlockTensor a, BlockTensor b) {
  if (w.joined && (w.kind == BlockKind::mlp || w.seq_q == w.seq_k)) a.stride = b.stride = a.cols + b.cols;
  list.push_back(a);
  list.push_back(b);
}

BlockTensor context(const BlockWork& w) { return {"context", w.tokens(), q_columns(w), kept(w)}; }
BlockTensor log_sum_exp(const BlockWork& w) { return {"lse", w.tokens(), w.heads, statistic(w)}; }

}  // namespace

Bytes BlockTensor::bytes() const {
  const std::int64_t exact = rows * cols * size_bytes(dtype);
  return Bytes((exact + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment);
}

std::int64_t local_tokens(const BlockWork& w) { return w.sequence_parallel ? w.tokens() / w.tp : w.tokens(); }

std::int64_t attention_core_elements(std::int64_t seq_q, int heads, int kv_heads, int head_dim) {
  const std::int64_t padded = (std::int64_t{head_dim} + 15) / 16 * 16;
  return seq_q * (heads / kv_heads) * (padded + 1);
}

BlockTensors norm_tensors(const BlockWork& w) {
  return {{"input", local_tokens(w), w.hidden, kept(w)},
          {"inverse_rms", 1, local_tokens(w), statistic(w)},
          {"normed", local_tokens(w), w.hidden, kept(w)}};
}

BlockTensors loss_tensors(const BlockWork& w) {
  BlockTensors list = {{"stats", w.tokens(), 3, statistic(w)}, {"softmax", w.tokens(), 2, statistic(w)}};
  const bool split = w.pass == Pass::backward_input || w.pass == Pass::backward_weight;
  if (split) list.push_back({"dlogits", w.tokens(), w.vocab, kept(w)});
  return list;
}

std::int64_t head_chunk(const BlockWork& w, Bytes logits) {
  std::int64_t each = size_bytes(logits_format(w));
  if (kept(w) != logits_format(w)) each += size_bytes(kept(w));  // their gradients
  const std::int64_t most = std::max<std::int64_t>(64, logits.v / (each * std::max(1, w.vocab)) / 64 * 64);
  const std::int64_t chunks = std::max<std::int64_t>(1, (w.tokens() + most - 1) / most);
  const std::int64_t even = (w.tokens() + chunks - 1) / chunks;
  return std::min(w.tokens(), (even + 63) / 64 * 64);
}

std::int64_t head_chunk(const BlockWork& w) {
  if (w.chunk > 0) return w.chunk;
  constexpr std::int64_t kLogits = 1 << 24;
  // The weight's gradient is read and written once a chunk (8 bytes an element), against 2 rows operations an element: on
  // an H100 (990 TFLOP/s, 3.35 TB/s by data sheet) the GEMM takes longer from 1,182 rows on, on an A100 from 612.
  constexpr std::int64_t kLeastRows = 1024;
  const std::int64_t rows = std::max(kLeastRows, kLogits / std::max(1, w.vocab) / 64 * 64);
  return std::min(w.tokens(), rows);
}

BlockTensors saved_tensors(const BlockWork& w) {
  const bool attention = w.kind == BlockKind::attention, mlp = w.kind == BlockKind::mlp;
  if (!attention && !mlp && w.kind != BlockKind::head) return {};
  BlockTensors list = norm_tensors(w);
  if (attention) {
    push_pair(list, w, {"q", w.tokens(), q_columns(w), kept(w)}, {"kv", w.tokens(), kv_columns(w), kept(w)});
    if (!w.recompute_core) {
      list.push_back(context(w));
      list.push_back(log_sum_exp(w));
    }
    if (w.qk_norm != QkNorm::none) {
      const std::int64_t norms = w.qk_norm == QkNorm::head ? w.heads + w.kv_heads : 2;
      list.push_back({"raw_q", w.tokens(), q_columns(w), kept(w)});
      list.push_back({"raw_k", w.tokens(), kv_columns(w) / 2, kept(w)});
      list.push_back({"qk_rms", 1, w.tokens() * norms, statistic(w)});  // of q, then of k
    }
  } else if (mlp) {
    push_pair(list, w, {"gate", w.tokens(), w.ffn, kept(w)}, {"up", w.tokens(), w.ffn, kept(w)});
  } else {
    list.push_back({"softmax", w.tokens(), 2, statistic(w)});
  }
  return list;
}

BlockTensors passed_tensors(const BlockWork& w) {
  if (w.kind != BlockKind::attention) return {};
  BlockTensors list;
  push_pair(list, w, {"dq", w.tokens(), q_columns(w), kept(w)}, {"dkv", w.tokens(), kv_columns(w), kept(w)});
  if (norms_over_ranks(w)) list.push_back({"sums", 1, 2 * w.tokens(), statistic(w)});  // of q, then of k
  return list;
}

BlockTensors deferred_tensors(const BlockWork& w) {
  const BlockTensor dout{"dout", w.tokens(), w.hidden, kept(w)};
  if (w.kind == BlockKind::attention) {
    BlockTensors list = {dout};
    if (w.recompute_core) list.push_back(context(w));
    return list;
  }
  if (w.kind == BlockKind::mlp) return {dout, {"activation", w.tokens(), w.ffn, kept(w)}};
  return {};
}

BlockTensors workspace_tensors(const BlockWork& w, std::int64_t head_chunk) {
  const bool back = w.pass == Pass::backward || w.pass == Pass::backward_input;
  switch (w.kind) {
    case BlockKind::attention: {
      BlockTensors list;
      const bool forward = w.pass == Pass::forward || w.pass == Pass::recompute;
      if (w.recompute_core && (forward || back)) {
        list.push_back(context(w));
        list.push_back(log_sum_exp(w));
      }
      if (!back) return list;
      list.push_back({"dcontext", w.tokens(), q_columns(w), kept(w)});
      list.push_back(
          {"core", 1, attention_core_elements(w.seq_q, w.heads, w.kv_heads, w.head_dim), statistic(w)});
      return list;
    }
    case BlockKind::mlp:
      // With a split backward pass the activation is a deferred tensor instead.
      if (w.pass == Pass::backward_input || w.pass == Pass::backward_weight) return {};
      return {{"activation", w.tokens(), w.ffn, kept(w)}};
    case BlockKind::head: {
      BlockTensors list = {{"logits", head_chunk, w.vocab, logits_format(w)}};
      if (w.pass != Pass::forward && kept(w) != logits_format(w))
        list.push_back({"dlogits", head_chunk, w.vocab, kept(w)});
      if (w.normalized) list.push_back({"inverse", 1, w.vocab, statistic(w)});
      return list;
    }
    default:
      return {};
  }
}

Bytes total_bytes(const BlockTensors& list) {
  Bytes sum;
  for (const BlockTensor& tensor : list) sum += tensor.bytes();
  return sum;
}

}  // namespace sextant

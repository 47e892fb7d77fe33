#include "cost_models/kernels.hpp"

namespace sextant {

namespace {

struct Direction {
  bool forward = false, input_gradient = false, weight_gradient = false;
};

Direction direction_of(Pass pass) {
  switch (pass) {
    case Pass::backward:
      return {.input_gradient = true, .weight_gradient = true};
    case Pass::backward_input:
      return {.input_gradient = true};
    case Pass::backward_weight:
      return {.weight_gradient = true};
    default:
      return {.forward = true};
  }
}

// y[tokens, out] = x[tokens, in] W[in, out], or its gradients.
void add_linear(KernelList& list, const Direction& d, std::int64_t tokens, std::int64_t in, std::int64_t out,
                Dtype dtype) {
  if (out == 0 || in == 0) return;
  const int alignment = alignment_of(in, out);
  if (d.forward) list.push_back(Gemm{tokens, out, in, alignment, dtype});
  if (d.input_gradient) list.push_back(Gemm{tokens, in, out, alignment, dtype});
  if (d.weight_gradient) list.push_back(Gemm{out, in, tokens, alignment, dtype});
}

// Operands of an fp8 GEMM of the own runtime: scales and casts are passes of their own, in either direction. Source:
// counted. An operand is read for its largest value, read again and written in 8 bits. A weight's largest value is looked for
// once a step, which is left out; both GEMMs of a backward pass take what the gradient of their results is cast to at once.
void add_casts(KernelList& list, const BlockWork& w, const Direction& d) {
  constexpr double kLook = 2, kCast = 2 + 1, kAgain = 1;
  Pointwise casts{0, 0};
  const auto linear = [&](double in, double out) {
    const double tokens = static_cast<double>(w.tokens()), x = tokens * in, y = tokens * out,
                 weight = in * out;
    if (d.forward) {
      casts.bytes += (kLook + kCast) * x + kCast * weight;
      casts.launches += 3;
    }
    if (d.input_gradient) {
      casts.bytes += (kLook + kCast) * y + kCast * weight;
      casts.launches += 3;
    }
    if (!d.weight_gradient) return;
    casts.bytes += (kLook + kCast) * x + (d.input_gradient ? kAgain : kLook + kCast) * y;
    casts.launches += 2;
  };
  const double q = static_cast<double>(w.heads) * w.head_dim,
               kv = static_cast<double>(w.kv_heads) * w.head_dim;
  if (w.kind == BlockKind::qkv && w.joined) linear(w.hidden, q + 2 * kv);
  if (w.kind == BlockKind::qkv && !w.joined) {
    linear(w.hidden, q);
    linear(w.hidden, kv);
    linear(w.hidden, kv);
  }
  if (w.kind == BlockKind::attention) linear(q, w.hidden);
  if (w.kind == BlockKind::mlp) {
    const int inner = w.gated ? 2 : 1;
    for (int i = 0; i < (w.joined ? 1 : inner); ++i) linear(w.hidden, w.ffn * (w.joined ? inner : 1));
    linear(w.ffn, w.hidden);
  }
  if (casts.launches > 0) list.push_back(casts);
}

void add_passes(KernelList& list, const BlockWork& w, const Direction& d, const StackSpec& stack,
                const CostConstants& c) {
  if (!d.forward && !d.input_gradient) return;
  BlockWork own = w;
  if (stack.memory.exact_tensors && w.dtype == Dtype::fp8)
    own.dtype = Dtype::bf16;  // casts are counted by themselves
  list.push_back(block_passes(own, stack.kernels, c, !d.forward));
}

// What a policy by operation makes again before a block's backward: its passes, and of the GEMMs of a layer (q, k, v,
// output, gate, up, down) every second one. Attention and the other GEMMs are kept. Source: the default save list of
// PyTorch's selective activation checkpointing, as torchtitan counts through it (models/llama3/infra/parallelize.py).
void add_again(KernelList& list, const BlockWork& w, const StackSpec& stack, const CostConstants& c) {
  constexpr Direction kForward{.forward = true};
  if (w.kind != BlockKind::attention) add_passes(list, w, kForward, stack, c);
  if (w.kind == BlockKind::qkv)
    add_linear(list, kForward, w.tokens(), w.hidden, std::int64_t{w.kv_heads} * w.head_dim, w.dtype);
  if (w.kind == BlockKind::attention)
    add_linear(list, kForward, w.tokens(), std::int64_t{w.heads} * w.head_dim, w.hidden, w.dtype);
  if (w.kind == BlockKind::mlp && w.gated) add_linear(list, kForward, w.tokens(), w.hidden, w.ffn, w.dtype);
}

void add_attention(KernelList& list, const BlockWork& w, const Direction& d, bool core_again,
                   const StackSpec& stack, const CostConstants& c) {
  const bool ring = stack.rules.cp_ring && w.seq_k > w.seq_q;
  AttentionCore core{
      w.batch, w.seq_q, w.seq_k, w.heads, w.head_dim, false, w.dtype == Dtype::fp8 ? Dtype::bf16 : w.dtype};
  if (ring) core.steps = w.seq_k / w.seq_q;
  core.imbalance = 1 + stack.kernels.cp_imbalance * (1 - static_cast<double>(w.seq_q) / w.seq_k);
  core.share = tile_share(w.window, w.seq_k);
  core.context = w.window;
  const auto add_core = [&](bool backward) {
    core.backward = backward;
    list.push_back(core);
    if (ring) list.push_back(ring_passes(w, c, backward));
  };
  if (core_again) add_core(false);
  if (d.forward || d.input_gradient) add_core(!d.forward);
  add_linear(list, d, w.tokens(), std::int64_t{w.heads} * w.head_dim, w.hidden, w.dtype);
}

void add_mlp(KernelList& list, const BlockWork& w, const Direction& d) {
  const std::int64_t inner = w.ffn;
  add_linear(list, d, w.tokens(), w.hidden, w.joined ? 2 * inner : inner, w.dtype);
  if (w.gated && !w.joined) add_linear(list, d, w.tokens(), w.hidden, inner, w.dtype);
  add_linear(list, d, w.tokens(), inner, w.hidden, w.dtype);
}

void add_head(KernelList& list, const BlockWork& w, const Direction& d, const StackSpec& stack,
              const CostConstants& c) {
  const Dtype dtype = w.dtype == Dtype::fp8 ? Dtype::bf16 : w.dtype;  // heads stay at 16 bits in fp8 runs
  const auto loss = [&](bool backward) {
    list.push_back(loss_passes(w, stack.kernels, c, backward, stack.rules.loss_gathers_logits));
  };
  Direction products = d;
  if (stack.rules.head_fused_with_loss) {
    if (d.forward && w.tp == 1) return;
    products.forward = d.forward || d.input_gradient;
    if (d.input_gradient) loss(false);
  }
  if (d.forward || d.input_gradient) loss(!d.forward);
  // The fp32 gradient of the weight is read and written once more for every chunk of tokens but the first. Source: counted.
  if (w.chunk > 0 && d.weight_gradient && w.tokens() > w.chunk) {
    const std::int64_t more = (w.tokens() - 1) / w.chunk;
    list.push_back(Pointwise{8.0 * static_cast<double>(w.vocab) * w.hidden * static_cast<double>(more), 0});
  }
  add_linear(list, products, w.tokens(), w.hidden, w.vocab, dtype);
}

double element_bytes(const BlockWork& w) {
  return w.dtype == Dtype::fp64 ? 8 : w.dtype == Dtype::fp32 ? 4 : 2;
}

// Source: counted. Norms of q and k read and write both; their backward reads what they read, dy, and writes dx. Sums that are
// made apart read q and k, backward their gradients as well.
void add_qk_norms(KernelList& list, const BlockWork& w, const Direction& d, const StackSpec& stack) {
  const double elements = static_cast<double>(w.tokens()) * (w.heads + w.kv_heads) * w.head_dim;
  // Twice over what they read: squares, then products.
  const double eager = stack.kernels.norm_fused ? 1.0 : 2.0;
  const double passes =
      w.kind == BlockKind::qk_sums ? (d.forward ? 1.0 : 2.0) : (d.forward ? 1.0 : 2.0) * eager + 1.0;
  list.push_back(Pointwise{element_bytes(w) * elements * passes, 2});
}

// Source: counted. A bias is added where its GEMM is written, at no cost; its gradient reads dy once.
void add_bias(KernelList& list, const BlockWork& w, const Direction& d) {
  const double bytes = element_bytes(w), tokens = static_cast<double>(w.tokens()),
               q = static_cast<double>(w.heads) * w.head_dim,
               kv = static_cast<double>(w.kv_heads) * w.head_dim;
  if (w.bias && d.weight_gradient) {
    double columns = q + 2 * kv;
    if (w.kind == BlockKind::attention) columns = w.hidden;
    if (w.kind == BlockKind::mlp) columns = w.hidden + (w.gated ? 2.0 : 1.0) * w.ffn;
    list.push_back(Pointwise{bytes * tokens * columns, 1});
  }
  // The head's rows, read and written as they are used, by each half of a split backward; with their gradients also these, read twice
  // and written.
  if (w.normalized && w.kind == BlockKind::head)
    list.push_back(
        Pointwise{bytes * static_cast<double>(w.vocab) * w.hidden * (d.weight_gradient ? 5.0 : 2.0), 2});
}

}  // namespace

double weight_elements(const BlockWork& w) {
  const double h = w.hidden;
  switch (w.kind) {
    case BlockKind::qkv:
      return h * w.head_dim * (w.heads + 2.0 * w.kv_heads);
    case BlockKind::attention:
      return h * w.head_dim * w.heads;
    case BlockKind::mlp:
      return h * w.ffn * (w.gated ? 3.0 : 2.0);
    case BlockKind::embedding:
    case BlockKind::head:
      return h * w.vocab;
    default:
      return h;
  }
}

KernelList kernels_of(const BlockWork& w, const StackSpec& stack, const CostConstants& c) {
  KernelList list;
  const Direction d = direction_of(w.pass);
  const bool again = w.recompute_core && d.input_gradient, by_operation = stack.rules.selective_by_operation;
  if (again && by_operation) add_again(list, w, stack, c);
  switch (w.kind) {
    case BlockKind::embedding:
      if (d.forward || d.weight_gradient) list.push_back(embedding_passes(w, c, !d.forward));
      return list;
    case BlockKind::norm:
    case BlockKind::residual:
      add_passes(list, w, d, stack, c);
      return list;
    case BlockKind::qkv:
      add_passes(list, w, d, stack, c);
      add_linear(list, d, w.tokens(), w.hidden, (w.heads + 2ll * w.kv_heads) * w.head_dim, w.dtype);
      break;
    case BlockKind::qk_sums:
    case BlockKind::qk_norm:
      add_qk_norms(list, w, d, stack);
      return list;
    case BlockKind::attention:
      add_attention(list, w, d, again && !by_operation, stack, c);
      break;
    case BlockKind::mlp:
      add_passes(list, w, d, stack, c);
      add_mlp(list, w, d);
      break;
    case BlockKind::head:
      add_head(list, w, d, stack, c);
      break;
  }
  if (w.dtype == Dtype::fp8 && stack.memory.exact_tensors) add_casts(list, w, d);
  add_bias(list, w, d);
  if (d.weight_gradient && stack.kernels.accumulate_bytes > 0)
    list.push_back(Pointwise{stack.kernels.accumulate_bytes * weight_elements(w), 1});
  return list;
}

}  // namespace sextant

#include "kernels/blocks.hpp"

#include <algorithm>
#include <cmath>

namespace sextant {
namespace {

bool present(const TensorView& x) { return x.data != nullptr; }
bool wants_input(const BlockWork& w) { return w.pass != Pass::backward_weight; }
bool wants_weight(const BlockWork& w) { return w.pass != Pass::backward_input; }

// y = x W^T, the linear layer with Hugging Face's weight layout [out, in].
void linear(const BlockContext& c, const TensorView& x, const TensorView& weight, const TensorView& y) {
  c.kernels->gemm(
      {.a = x, .b = weight, .c = y, .transpose_b = true, .threads = c.threads, .stream = c.stream});
}
// dx (+)= dy W
void linear_input(const BlockContext& c, const TensorView& dy, const TensorView& weight, const TensorView& dx,
                  bool accumulate = false) {
  c.kernels->gemm(
      {.a = dy, .b = weight, .c = dx, .accumulate = accumulate, .threads = c.threads, .stream = c.stream});
}
// dW += dy^T x, or = where what stands there is stale
void linear_weight(const BlockContext& c, const TensorView& dy, const TensorView& x,
                   const TensorView& dweight, bool stale) {
  c.kernels->gemm({.a = dy,
                   .b = x,
                   .c = dweight,
                   .transpose_a = true,
                   .accumulate = !stale,
                   .threads = c.threads,
                   .stream = c.stream});
}

void add_bias(const BlockContext& c, const TensorView& bias, const TensorView& y) {
  if (present(bias)) c.kernels->add_bias({.x = y, .bias = bias, .stream = c.stream});
}
// dbias += sum of dy's rows, or = where what stands there is stale
void bias_gradient(const BlockContext& c, const TensorView& dy, const TensorView& dbias, bool stale) {
  if (!present(dbias)) return;
  if (stale) c.kernels->zero({.x = dbias, .stream = c.stream});
  c.kernels->bias_gradient({.dy = dy, .dbias = dbias, .stream = c.stream});
}

// Norms of q or k: `parts` of a row one after another, its heads, or the row as one. `y` may be columns of a wider tensor.
int norm_parts(const BlockWork& w, int heads) { return w.qk_norm == QkNorm::head ? heads : 1; }

template <class F>
void each_part(int parts, const TensorView& x, F&& f) {
  const std::int64_t width = x.cols / parts;
  for (int part = 0; part < parts; ++part) f(part * width, width, part * x.rows);
}

void norm_parts_forward(const BlockContext& c, int parts, const TensorView& x, const TensorView& weight,
                        const TensorView& rms, const TensorView& y) {
  each_part(parts, x, [&](std::int64_t first, std::int64_t width, std::int64_t at) {
    c.kernels->rmsnorm_forward({.x = x.column_range(first, width),
                                .weight = weight,
                                .y = y.column_range(first, width),
                                .inverse_rms = rms.column_range(at, x.rows),
                                .eps = c.norm_eps,
                                .stream = c.stream});
  });
}
// dy becomes the gradient of what the norm has read.
void norm_parts_backward(const BlockContext& c, int parts, const TensorView& x, const TensorView& weight,
                         const TensorView& rms, const TensorView& dy, const TensorView& dweight, bool stale) {
  if (stale) c.kernels->zero({.x = dweight, .stream = c.stream});
  each_part(parts, x, [&](std::int64_t first, std::int64_t width, std::int64_t at) {
    const TensorView of_part = dy.column_range(first, width);
    c.kernels->rmsnorm_backward({.x = x.column_range(first, width),
                                 .inverse_rms = rms.column_range(at, x.rows),
                                 .weight = weight,
                                 .dy = of_part,
                                 .bypass = {},
                                 .dx = of_part,
                                 .dweight = dweight,
                                 .stream = c.stream});
  });
}

TensorView keys_of(const BlockWork& w, const TensorView& kv) {
  return kv.column_range(0, static_cast<std::int64_t>(w.kv_heads) * w.head_dim);
}
TensorView values_of(const BlockWork& w, const TensorView& kv) {
  const std::int64_t columns = static_cast<std::int64_t>(w.kv_heads) * w.head_dim;
  return kv.column_range(columns, columns);
}

void turn(const BlockContext& c, const BlockWork& w, const TensorView& x, int heads, bool inverse) {
  if (!present(c.rope_cos)) return;
  c.kernels->rope({.x = x,
                   .cos = c.rope_cos,
                   .sin = c.rope_sin,
                   .heads = heads,
                   .head_dim = w.head_dim,
                   .positions = c.positions,
                   .inverse = inverse,
                   .stream = c.stream});
}

AttentionShape core_shape(const BlockContext& c, const BlockWork& w) {
  return {.batch = w.batch,
          .heads = w.heads,
          .kv_heads = w.kv_heads,
          .head_dim = w.head_dim,
          .q_positions = c.positions,
          .k_positions = c.key_positions,
          .q_documents = c.documents,
          .window = w.window,
          .slopes = c.slopes,
          .segments = c.cp,
          .plain = c.cp == 1 && c.documents.empty() && w.window == 0 && c.slopes.empty(),
          .scale = 1.0 / std::sqrt(static_cast<double>(w.head_dim))};
}

void core_forward(const BlockContext& c, const BlockWork& w, const TensorView& q, const TensorView& keys,
                  const TensorView& context, const TensorView& lse) {
  c.kernels->attention_forward({.shape = core_shape(c, w),
                                .q = q,
                                .k = keys_of(w, keys),
                                .v = values_of(w, keys),
                                .out = context,
                                .lse = lse,
                                .stream = c.stream});
}

}  // namespace

TensorSet::TensorSet(const BlockTensors& list, void* base) {
  auto* at = static_cast<std::byte*>(base);
  for (const BlockTensor& t : list) {
    tensors_.push_back({t.name, TensorView(at, t.dtype, t.rows, t.cols)});
    at += t.bytes().v;
  }
}

TensorView TensorSet::operator[](std::string_view name) const {
  const auto it =
      std::find_if(tensors_.begin(), tensors_.end(), [&](const Named& t) { return t.name == name; });
  SEXTANT_CHECK(it != tensors_.end(), name);
  return it->view;
}

void norm_forward(const BlockContext& c, const NormForward& u) {
  const bool keeps = present(u.input) && u.input.data != u.stream.data;
  c.kernels->rmsnorm_forward({.x = u.stream,
                              .weight = u.weight,
                              .y = u.normed,
                              .inverse_rms = u.inverse_rms,
                              .branch = u.branch,
                              .kept = keeps ? u.input : TensorView(),
                              .eps = c.norm_eps,
                              .stream = c.stream});
}

void norm_backward(const BlockContext& c, const NormBackward& u) {
  c.kernels->rmsnorm_backward({.x = u.input,
                               .inverse_rms = u.inverse_rms,
                               .weight = u.weight,
                               .dy = u.dnormed,
                               .bypass = u.bypass,
                               .dx = u.dstream,
                               .dweight = u.dweight,
                               .stream = c.stream});
}

void norm_after_forward(const BlockContext& c, const NormAfterForward& u) {
  c.kernels->cast({.source = u.branch, .destination = u.input, .stream = c.stream});
  c.kernels->rmsnorm_forward({.x = u.input,
                              .weight = u.weight,
                              .y = u.branch,
                              .inverse_rms = u.inverse_rms,
                              .eps = c.norm_eps,
                              .stream = c.stream});
  c.kernels->add({.a = u.stream, .b = u.branch, .out = u.stream, .stream = c.stream});
}

void norm_after_backward(const BlockContext& c, const NormAfterBackward& u) {
  c.kernels->rmsnorm_backward({.x = u.input,
                               .inverse_rms = u.inverse_rms,
                               .weight = u.weight,
                               .dy = u.dstream,
                               .bypass = {},
                               .dx = u.dbranch,
                               .dweight = u.dweight,
                               .stream = c.stream});
}

void qkv_forward(const BlockContext& c, const BlockWork& w, const QkvForward& u) {
  const bool norms = present(u.weights.q_norm);
  const TensorView k = keys_of(w, u.kv), v = values_of(w, u.kv);
  const TensorView q_made = norms ? u.norms.raw_q : u.q, k_made = norms ? u.norms.raw_k : k;
  linear(c, u.normed, u.weights.q, q_made);
  linear(c, u.normed, u.weights.k, k_made);
  linear(c, u.normed, u.weights.v, v);
  add_bias(c, u.weights.q_bias, q_made);
  add_bias(c, u.weights.k_bias, k_made);
  add_bias(c, u.weights.v_bias, v);
  if (norms) {
    norm_parts_forward(c, norm_parts(w, w.heads), q_made, u.weights.q_norm, u.norms.q_rms, u.q);
    norm_parts_forward(c, norm_parts(w, w.kv_heads), k_made, u.weights.k_norm, u.norms.k_rms, k);
  }
  turn(c, w, u.q, w.heads, false);
  turn(c, w, keys_of(w, u.kv), w.kv_heads, false);
}

void qkv_backward(const BlockContext& c, const BlockWork& w, const QkvBackward& u) {
  const TensorView dk = keys_of(w, u.dkv), dv = values_of(w, u.dkv);
  if (wants_input(w)) {
    turn(c, w, u.dq, w.heads, true);
    turn(c, w, dk, w.kv_heads, true);
    if (present(u.weights.q_norm)) {
      SEXTANT_CHECK(wants_weight(w), "norms of q and k: both halves of the backward pass at once");
      norm_parts_backward(c, norm_parts(w, w.heads), u.norms.raw_q, u.weights.q_norm, u.norms.q_rms, u.dq,
                          u.gradients.q_norm, u.stale);
      norm_parts_backward(c, norm_parts(w, w.kv_heads), u.norms.raw_k, u.weights.k_norm, u.norms.k_rms, dk,
                          u.gradients.k_norm, u.stale);
    }
    linear_input(c, u.dq, u.weights.q, u.dnormed);
    linear_input(c, dk, u.weights.k, u.dnormed, true);
    linear_input(c, dv, u.weights.v, u.dnormed, true);
  }
  if (wants_weight(w)) {
    linear_weight(c, u.dq, u.normed, u.gradients.q, u.stale);
    linear_weight(c, dk, u.normed, u.gradients.k, u.stale);
    linear_weight(c, dv, u.normed, u.gradients.v, u.stale);
    bias_gradient(c, u.dq, u.gradients.q_bias, u.stale);
    bias_gradient(c, dk, u.gradients.k_bias, u.stale);
    bias_gradient(c, dv, u.gradients.v_bias, u.stale);
  }
}

void attention_forward(const BlockContext& c, const BlockWork& w, const AttentionForward& u) {
  core_forward(c, w, u.q, u.keys, u.context, u.lse);
  linear(c, u.context, u.weights.o, u.branch);
  if (c.adds_biases) add_bias(c, u.weights.o_bias, u.branch);
}

void attention_backward(const BlockContext& c, const BlockWork& w, const AttentionBackward& u) {
  if (wants_input(w)) {
    if (w.recompute_core) core_forward(c, w, u.q, u.keys, u.context, u.lse);
    linear_input(c, u.dbranch, u.weights.o, u.dcontext);
    c.kernels->attention_backward({.shape = core_shape(c, w),
                                   .q = u.q,
                                   .k = keys_of(w, u.keys),
                                   .v = values_of(w, u.keys),
                                   .out = u.context,
                                   .lse = u.lse,
                                   .dout = u.dcontext,
                                   .dq = u.dq,
                                   .dk = keys_of(w, u.dkeys),
                                   .dv = values_of(w, u.dkeys),
                                   .workspace = u.core,
                                   .stream = c.stream});
  }
  if (!wants_weight(w)) return;
  linear_weight(c, u.dbranch, u.context, u.gradients.o, u.stale);
  bias_gradient(c, u.dbranch, u.gradients.o_bias, u.stale);
}

void mlp_forward(const BlockContext& c, const BlockWork&, const MlpForward& u) {
  linear(c, u.normed, u.weights.gate, u.gate);
  linear(c, u.normed, u.weights.up, u.up);
  add_bias(c, u.weights.gate_bias, u.gate);
  add_bias(c, u.weights.up_bias, u.up);
  c.kernels->swiglu_forward({.gate = u.gate, .up = u.up, .out = u.activation, .stream = c.stream});
  linear(c, u.activation, u.weights.down, u.branch);
  if (c.adds_biases) add_bias(c, u.weights.down_bias, u.branch);
}

void mlp_backward(const BlockContext& c, const BlockWork& w, const MlpBackward& u) {
  if (wants_input(w)) {
    linear_input(c, u.dbranch, u.weights.down, u.activation);
    c.kernels->swiglu_backward({.gate = u.gate, .up = u.up, .dout = u.activation, .stream = c.stream});
    linear_input(c, u.gate, u.weights.gate, u.dnormed);
    linear_input(c, u.up, u.weights.up, u.dnormed, true);
  }
  if (wants_weight(w)) {
    linear_weight(c, u.dbranch, u.activation, u.gradients.down, u.stale);
    linear_weight(c, u.gate, u.normed, u.gradients.gate, u.stale);
    linear_weight(c, u.up, u.normed, u.gradients.up, u.stale);
    bias_gradient(c, u.dbranch, u.gradients.down_bias, u.stale);
    bias_gradient(c, u.gate, u.gradients.gate_bias, u.stale);
    bias_gradient(c, u.up, u.gradients.up_bias, u.stale);
  }
}

void embedding_forward(const BlockContext& c, const EmbeddingUnit& u) {
  c.kernels->embedding_forward(
      {.ids = u.ids, .table = u.table, .first_id = u.first_id, .out = u.rows, .stream = c.stream});
}

void embedding_backward(const BlockContext& c, const EmbeddingUnit& u) {
  c.kernels->embedding_backward(
      {.ids = u.ids, .dout = u.rows, .dtable = u.table, .first_id = u.first_id, .stream = c.stream});
}

}  // namespace sextant

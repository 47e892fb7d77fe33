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

TensorView keys_of(const BlockWork& w, const TensorView& kv) {
  return kv.column_range(0, static_cast<std::int64_t>(w.kv_heads) * w.head_dim);
}
TensorView values_of(const BlockWork& w, const TensorView& kv) {
  const std::int64_t columns = static_cast<std::int64_t>(w.kv_heads) * w.head_dim;
  return kv.column_range(columns, columns);
}

void turn(const BlockContext& c, const BlockWork& w, const TensorView& x, int heads, bool inverse) {
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
          .segments = c.cp,
          .plain = c.cp == 1 && c.documents.empty(),
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

void qkv_forward(const BlockContext& c, const BlockWork& w, const QkvForward& u) {
  linear(c, u.normed, u.weights.q, u.q);
  linear(c, u.normed, u.weights.k, keys_of(w, u.kv));
  linear(c, u.normed, u.weights.v, values_of(w, u.kv));
  turn(c, w, u.q, w.heads, false);
  turn(c, w, keys_of(w, u.kv), w.kv_heads, false);
}

void qkv_backward(const BlockContext& c, const BlockWork& w, const QkvBackward& u) {
  const TensorView dk = keys_of(w, u.dkv), dv = values_of(w, u.dkv);
  if (wants_input(w)) {
    turn(c, w, u.dq, w.heads, true);
    turn(c, w, dk, w.kv_heads, true);
    linear_input(c, u.dq, u.weights.q, u.dnormed);
    linear_input(c, dk, u.weights.k, u.dnormed, true);
    linear_input(c, dv, u.weights.v, u.dnormed, true);
  }
  if (wants_weight(w)) {
    linear_weight(c, u.dq, u.normed, u.gradients.q, u.stale);
    linear_weight(c, dk, u.normed, u.gradients.k, u.stale);
    linear_weight(c, dv, u.normed, u.gradients.v, u.stale);
  }
}

void attention_forward(const BlockContext& c, const BlockWork& w, const AttentionForward& u) {
  core_forward(c, w, u.q, u.keys, u.context, u.lse);
  linear(c, u.context, u.weights.o, u.branch);
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
  if (wants_weight(w)) linear_weight(c, u.dbranch, u.context, u.gradients.o, u.stale);
}

void mlp_forward(const BlockContext& c, const BlockWork&, const MlpForward& u) {
  linear(c, u.normed, u.weights.gate, u.gate);
  linear(c, u.normed, u.weights.up, u.up);
  c.kernels->swiglu_forward({.gate = u.gate, .up = u.up, .out = u.activation, .stream = c.stream});
  linear(c, u.activation, u.weights.down, u.branch);
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

#include "kernels/blocks.hpp"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include <boost/container/static_vector.hpp>

#include "kernels/block_parts.hpp"

namespace sextant {
namespace {

bool wants_input(const BlockWork& w) { return w.pass != Pass::backward_weight; }
bool wants_weight(const BlockWork& w) { return w.pass != Pass::backward_input; }

Fp8 operand(const BlockContext& c) { return c.fp8 ? Fp8::e4m3 : Fp8::none; }
Fp8 gradient(const BlockContext& c) { return c.fp8 ? Fp8::e5m2 : Fp8::none; }

// A linear layer with Hugging Face's weight layout [out, in]: y = x W^T, or its gradients.
struct Linear {
  TensorView weight, y;     // [out, in], [rows, out]
  Fp8Largest largest = {};  // of the weight's parts
};

using Linears = boost::container::static_vector<Linear, 3>;

// Layers whose weights are rows of one matrix and whose results are columns of one are one layer; `weight` may be its gradient.
bool adjoin(const Linear& a, const Linear& b) {
  return present(a.weight) && a.weight.contiguous() && b.weight.contiguous() &&
         a.weight.cols == b.weight.cols && end_of(a.weight, a.weight.elements()) == b.weight.data &&
         a.y.rows == b.y.rows && a.y.stride == b.y.stride && a.y.stride > a.y.cols &&
         end_of(a.y, a.y.cols) == b.y.data;
}
Linears joined(std::initializer_list<Linear> layers) {
  static_assert(Linears::static_capacity == Fp8Largest::kMostParts);
  Linears out;
  for (const Linear& layer : layers) {
    if (out.empty() || !adjoin(out.back(), layer)) {
      out.push_back(layer);
      continue;
    }
    Fp8Largest& largest = out.back().largest;
    largest.rows[0] = largest.parts == 1 ? out.back().weight.rows : largest.rows[0];
    largest.rows[largest.parts++] = layer.weight.rows;
    out.back().weight.rows += layer.weight.rows;
    out.back().y.cols += layer.y.cols;
  }
  return out;
}

// `place`: of the first of these weights among those of its unit.
Linears joined(const BlockContext& c, std::initializer_list<Linear> layers, int place) {
  Linears out = joined(layers);
  for (Linear& l : out) {
    if (c.fp8 && c.fp8_weights.words) {
      l.largest.words = c.fp8_weights.words + std::int64_t{place} * Fp8Largest::kWords;
      l.largest.known = c.fp8_weights.known;
    }
    place += l.largest.parts;
  }
  return out;
}

constexpr int kPlaceOfDown = 2;  // behind gate and up

// y = x W^T
void linear(const BlockContext& c, const TensorView& x, std::initializer_list<Linear> layers, int place = 0) {
  for (const Linear& l : joined(c, layers, place))
    c.kernels->gemm({.a = x,
                     .b = l.weight,
                     .c = l.y,
                     .transpose_b = true,
                     .round_a = operand(c),
                     .round_b = operand(c),
                     .largest_b = l.largest,
                     .threads = c.threads,
                     .stream = c.stream});
}
// dx = sum of dy W. `again`: weight gradients come next, before dy changes.
void linear_input(const BlockContext& c, std::initializer_list<Linear> layers, const TensorView& dx,
                  bool again, int place = 0) {
  bool more = false;
  for (const Linear& l : joined(c, layers, place)) {
    c.kernels->gemm({.a = l.y,
                     .b = l.weight,
                     .c = dx,
                     .accumulate = more,
                     .round_a = gradient(c),
                     .round_b = operand(c),
                     .largest_b = l.largest,
                     .a_again_turned = again,
                     .threads = c.threads,
                     .stream = c.stream});
    more = true;
  }
}
// dW += dy^T x, or = where what stands there is stale. `as_before`: linear_input came last.
void linear_weight(const BlockContext& c, const TensorView& x, std::initializer_list<Linear> layers,
                   bool stale, bool as_before) {
  for (const Linear& l : joined(layers))
    c.kernels->gemm({.a = l.y,
                     .b = x,
                     .c = l.weight,
                     .transpose_a = true,
                     .accumulate = !stale,
                     .round_a = gradient(c),
                     .round_b = operand(c),
                     .a_as_before = as_before,
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

void turn(const BlockContext& c, const BlockWork& w, const TensorView& x, int heads, Rotation rotation) {
  if (!present(c.rope_cos)) return;
  c.kernels->rope({.x = x,
                   .cos = c.rope_cos,
                   .sin = c.rope_sin,
                   .heads = heads,
                   .head_dim = w.head_dim,
                   .positions = c.positions,
                   .inverse = rotation == Rotation::inverse,
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

void turn(const BlockContext& c, const BlockWork& w, const TensorView& q, const TensorView& k,
          Rotation rotation) {
  if (q.stride == k.stride && q.stride > q.cols && end_of(q, q.cols) == k.data) {
    TensorView both = q;
    both.cols += k.cols;
    return turn(c, w, both, w.heads + w.kv_heads, rotation);
  }
  turn(c, w, q, w.heads, rotation);
  turn(c, w, k, w.kv_heads, rotation);
}

TensorSet::TensorSet(const BlockTensors& list, void* base) {
  auto* at = static_cast<std::byte*>(base);
  std::int64_t column = 0;  // of a wider tensor, which began at `wide`
  std::byte* wide = nullptr;
  for (const BlockTensor& t : list) {
    TensorView view(at, t.dtype, t.rows, t.cols);
    if (t.stride > 0) {
      if (column == 0) wide = at;
      view.data = wide + column * size_bytes(t.dtype);
      view.stride = t.stride;
      column = (column + t.cols) % t.stride;
    }
    tensors_.push_back({t.name, view});
    at += t.bytes().v;
  }
}

bool TensorSet::has(std::string_view name) const {
  return std::ranges::find(tensors_, name, &Named::name) != tensors_.end();
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
  const bool norms = w.qk_norm != QkNorm::none;
  const TensorView k = keys_of(w, u.kv), v = values_of(w, u.kv);
  const TensorView q_made = norms ? u.norms.raw_q : u.q, k_made = norms ? u.norms.raw_k : k;
  linear(c, u.normed, {{u.weights.q, q_made}, {u.weights.k, k_made}, {u.weights.v, v}});
  add_bias(c, u.weights.q_bias, q_made);
  add_bias(c, u.weights.k_bias, k_made);
  add_bias(c, u.weights.v_bias, v);
  if (!norms) turn(c, w, u.q, k, Rotation::forward);
}

void qkv_backward(const BlockContext& c, const BlockWork& w, const QkvBackward& u) {
  const TensorView dk = keys_of(w, u.dkv), dv = values_of(w, u.dkv);
  if (wants_input(w)) {
    if (w.qk_norm == QkNorm::none) turn(c, w, u.dq, dk, Rotation::inverse);
    linear_input(c, {{u.weights.q, u.dq}, {u.weights.k, dk}, {u.weights.v, dv}}, u.dnormed, wants_weight(w));
  }
  if (wants_weight(w)) {
    linear_weight(c, u.normed, {{u.gradients.q, u.dq}, {u.gradients.k, dk}, {u.gradients.v, dv}}, u.stale,
                  wants_input(w));
    bias_gradient(c, u.dq, u.gradients.q_bias, u.stale);
    bias_gradient(c, dk, u.gradients.k_bias, u.stale);
    bias_gradient(c, dv, u.gradients.v_bias, u.stale);
  }
}

void attention_forward(const BlockContext& c, const BlockWork& w, const AttentionForward& u) {
  core_forward(c, w, u.q, u.keys, u.context, u.lse);
  linear(c, u.context, {{u.weights.o, u.branch}});
  if (c.adds_biases) add_bias(c, u.weights.o_bias, u.branch);
}

void attention_backward(const BlockContext& c, const BlockWork& w, const AttentionBackward& u) {
  if (wants_input(w)) {
    if (w.recompute_core) core_forward(c, w, u.q, u.keys, u.context, u.lse);
    linear_input(c, {{u.weights.o, u.dbranch}}, u.dcontext, wants_weight(w));
  }
  // Before the core's backward pass: what dbranch was cast to is in the scratch still.
  if (wants_weight(w)) linear_weight(c, u.context, {{u.gradients.o, u.dbranch}}, u.stale, wants_input(w));
  if (wants_input(w)) {
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
  if (wants_weight(w)) bias_gradient(c, u.dbranch, u.gradients.o_bias, u.stale);
}

void mlp_forward(const BlockContext& c, const BlockWork&, const MlpForward& u) {
  linear(c, u.normed, {{u.weights.gate, u.gate}, {u.weights.up, u.up}});
  add_bias(c, u.weights.gate_bias, u.gate);
  add_bias(c, u.weights.up_bias, u.up);
  c.kernels->swiglu_forward({.gate = u.gate, .up = u.up, .out = u.activation, .stream = c.stream});
  linear(c, u.activation, {{u.weights.down, u.branch}}, kPlaceOfDown);
  if (c.adds_biases) add_bias(c, u.weights.down_bias, u.branch);
}

void mlp_backward(const BlockContext& c, const BlockWork& w, const MlpBackward& u) {
  if (wants_input(w)) {
    linear_input(c, {{u.weights.down, u.dbranch}}, u.activation, wants_weight(w), kPlaceOfDown);
    c.kernels->swiglu_backward({.gate = u.gate, .up = u.up, .dout = u.activation, .stream = c.stream});
  }
  if (wants_weight(w))
    linear_weight(c, u.activation, {{u.gradients.down, u.dbranch}}, u.stale, wants_input(w));
  if (wants_input(w))
    linear_input(c, {{u.weights.gate, u.gate}, {u.weights.up, u.up}}, u.dnormed, wants_weight(w));
  if (wants_weight(w)) {
    linear_weight(c, u.normed, {{u.gradients.gate, u.gate}, {u.gradients.up, u.up}}, u.stale, wants_input(w));
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

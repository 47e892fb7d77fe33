// Units of the model: which saved tensor, scratch and weight each kernel sees.
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/error.hpp"
#include "runtime/execution/device_memory.hpp"
#include "runtime/execution/launcher/launcher.hpp"

namespace sextant {

TensorView StepLauncher::local(Range r, const BlockWork& w) const {
  return r ? TensorView(r.data, w.dtype, local_tokens(w), w.hidden) : TensorView();
}
TensorView StepLauncher::full(Range r, const BlockWork& w) const {
  return r ? TensorView(r.data, w.dtype, w.tokens(), w.hidden) : TensorView();
}
TensorView StepLauncher::weight(Range r, Dtype dtype, std::int64_t rows, std::int64_t cols) const {
  return r ? TensorView(r.data, dtype, rows, cols) : TensorView();
}

BlockWork StepLauncher::attention_work(const BlockWork& w) const {
  BlockWork whole = w;
  whole.kind = BlockKind::attention;
  whole.recompute_core = graph_.plan.recompute.kind == RecomputeKind::selective;
  return whole;
}

TensorView StepLauncher::normed_of(const Op& op, const BlockWork& w) const {
  if (const Range whole = find(op, OperandUse::gathered)) return full(whole, w);
  return TensorSet(norm_tensors(w), find(op, OperandUse::kept).data)["normed"];
}

std::vector<StepLauncher::Range> StepLauncher::gradients(const Op& op) const {
  return all(op, OperandUse::gradient, Access::write);
}

bool StepLauncher::overwrites(const Op& op) const {
  const bool written = rules_.gradients_begin_written || reduces_every_microbatch(graph_.plan, rules_);
  return written && !find(op, OperandUse::gradient, Access::read);
}
std::vector<StepLauncher::Range> StepLauncher::replaced(const Op& op) const {
  return overwrites(op) ? gradients(op) : std::vector<Range>{};
}

// Ranges of an op's parameters, or of their gradients, stand in the order of the layout.
StepLauncher::Weights StepLauncher::named(BlockKind kind, const std::vector<Range>& ranges,
                                          Dtype dtype) const {
  Weights named{ranges, {}, dtype};
  for (const ParameterKind of_layer : layer_parameters(graph_.model))
    if (gradient_writer(of_layer) == kind) named.kinds.push_back(of_layer);
  SEXTANT_CHECK(ranges.empty() || named.kinds.size() == ranges.size(), "a block sees all its parameters");
  return named;
}

TensorView StepLauncher::Weights::operator()(ParameterKind kind, std::int64_t rows, std::int64_t cols) const {
  for (std::size_t i = 0; i < ranges.size(); ++i)
    if (kinds[i] == kind) return {ranges[i].data, dtype, rows, cols};
  return {};
}

AttentionWeights StepLauncher::attention_weights(const BlockWork& w, const std::vector<Range>& r,
                                                 Dtype dtype) const {
  using Kind = ParameterKind;
  const std::int64_t d = w.head_dim, q = w.heads * d, kv = w.kv_heads * d;
  const Weights of = named(w.kind, r, dtype);
  const bool by_head = w.qk_norm == QkNorm::head;
  return {.q = of(Kind::q, q, w.hidden),
          .k = of(Kind::k, kv, w.hidden),
          .v = of(Kind::v, kv, w.hidden),
          .o = of(Kind::o, w.hidden, q),
          .q_bias = of(Kind::q_bias, 1, q),
          .k_bias = of(Kind::k_bias, 1, kv),
          .v_bias = of(Kind::v_bias, 1, kv),
          .o_bias = of(Kind::o_bias, 1, w.hidden),
          .q_norm = of(Kind::q_norm, 1, by_head ? d : q),
          .k_norm = of(Kind::k_norm, 1, by_head ? d : kv)};
}

MlpWeights StepLauncher::mlp_weights(const BlockWork& w, const std::vector<Range>& r, Dtype dtype) const {
  using Kind = ParameterKind;
  const Weights of = named(w.kind, r, dtype);
  return {.gate = of(Kind::gate, w.ffn, w.hidden),
          .up = of(Kind::up, w.ffn, w.hidden),
          .down = of(Kind::down, w.hidden, w.ffn),
          .gate_bias = of(Kind::gate_bias, 1, w.ffn),
          .up_bias = of(Kind::up_bias, 1, w.ffn),
          .down_bias = of(Kind::down_bias, 1, w.hidden)};
}

void StepLauncher::block(const Op& op, StreamId stream) {
  auto w = std::get<BlockWork>(graph_.works[op.work]);
  w.dtype = kept_as(w.dtype);  // from here on of what stands in memory; the context knows of fp8
  of_unit_ = fp8_weights(op, w);
  switch (w.kind) {
    case BlockKind::embedding:
      return embedding(op, w, stream);
    case BlockKind::norm:
      return norm(op, w, stream);
    case BlockKind::qkv:
      return qkv(op, w, stream);
    case BlockKind::qk_sums:
    case BlockKind::qk_norm:
      return qk_norm(op, w, stream);
    case BlockKind::attention:
      return attention(op, w, stream);
    case BlockKind::mlp:
      return mlp(op, w, stream);
    case BlockKind::residual:
      return residual(op, w, stream);
    case BlockKind::head:
      return head(op, w, stream);
  }
}

// The forward pass of a step's first micro-batch is the first that reads a weight since it has changed.
Fp8Weights StepLauncher::fp8_weights(const Op& op, const BlockWork& w) const {
  if (!largest_.data() || op.layer == kNone16) return {};
  if (w.kind != BlockKind::qkv && w.kind != BlockKind::attention && w.kind != BlockKind::mlp) return {};
  const int unit = w.kind == BlockKind::qkv ? 0 : w.kind == BlockKind::attention ? 1 : 2;
  return {static_cast<std::uint32_t*>(largest_.data()) +
              (std::int64_t{op.layer} * kFp8Units + unit) * Fp8Largest::kMostParts * Fp8Largest::kWords,
          op.pass != Pass::forward || op.microbatch != 0};
}

void StepLauncher::embedding(const Op& op, const BlockWork& w, StreamId stream) {
  EmbeddingUnit u;
  u.ids = exchange_.ids(op.microbatch);
  u.first_id = std::int64_t{w.vocab} * at_.tp;
  if (!backward(w.pass)) {
    u.table = weight(find(op, OperandUse::parameter), w.dtype, w.vocab, w.hidden);
    u.rows = full(find(op, OperandUse::out), w);
    return run(stream, [u](const BlockContext& c) { embedding_forward(c, u); });
  }
  const auto ranges = gradients(op), stale = replaced(op);
  u.table = weight(ranges.at(0), accumulator_of(w.dtype), w.vocab, w.hidden);
  u.rows = full(find(op, OperandUse::dout), w);
  run(stream, [this, u, stale](const BlockContext& c) {
    set_zero(c, stale);
    embedding_backward(c, u);
  });
}

void StepLauncher::residual(const Op& op, const BlockWork& w, StreamId stream) {
  const TensorView to = local(find(op, OperandUse::stream), w),
                   branch = local(find(op, backward(w.pass) ? OperandUse::dx : OperandUse::branch), w);
  if (branch.data)
    run(stream, [this, to, branch](const BlockContext& c) {
      kernels_.add({.a = to, .b = branch, .out = to, .stream = c.stream});
    });
}

void StepLauncher::norm(const Op& op, const BlockWork& w, StreamId stream) {
  const TensorSet kept(norm_tensors(w), find(op, OperandUse::kept).data);
  const TensorView gain = weight(find(op, OperandUse::parameter), w.dtype, 1, w.hidden);
  const bool after = norms_after() && op.layer != kNone16;
  if (after && !backward(w.pass)) {
    const NormAfterForward u{local(find(op, OperandUse::stream), w), local(find(op, OperandUse::branch), w),
                             gain, kept["input"], kept["inverse_rms"]};
    return run(stream, [u](const BlockContext& c) { norm_after_forward(c, u); });
  }
  if (!backward(w.pass)) {
    NormForward u;
    u.stream = local(find(op, OperandUse::stream), w);
    u.branch = local(find(op, OperandUse::branch), w);
    u.weight = gain;
    const Range input = find(op, OperandUse::input);
    u.input = input ? local(input, w) : kept["input"];
    u.inverse_rms = kept["inverse_rms"];
    u.normed = kept["normed"];
    return run(stream, [u](const BlockContext& c) { norm_forward(c, u); });
  }
  if (after) {
    const auto ranges = gradients(op), stale = replaced(op);
    const NormAfterBackward u{kept["input"],
                              kept["inverse_rms"],
                              gain,
                              local(find(op, OperandUse::stream), w),
                              local(find(op, OperandUse::branch), w),
                              weight(ranges.at(0), accumulator_of(w.dtype), 1, w.hidden)};
    return run(stream, [this, u, stale](const BlockContext& c) {
      set_zero(c, stale);
      norm_after_backward(c, u);
    });
  }
  NormBackward u;
  u.input = kept["input"];
  u.inverse_rms = kept["inverse_rms"];
  u.weight = gain;
  u.dnormed = local(find(op, OperandUse::dx), w);
  u.bypass = local(find(op, OperandUse::stream, Access::read), w);  // none behind the final norm
  u.dstream = local(find(op, OperandUse::stream, Access::write), w);
  const auto ranges = gradients(op), stale = replaced(op);
  u.dweight = weight(ranges.at(0), accumulator_of(w.dtype), 1, w.hidden);
  run(stream, [this, u, stale](const BlockContext& c) {
    set_zero(c, stale);
    norm_backward(c, u);
  });
}

void StepLauncher::qkv(const Op& op, const BlockWork& w, StreamId stream) {
  const TensorView normed = normed_of(op, w);
  const AttentionWeights weights =
      attention_weights(w, all(op, OperandUse::parameter, Access::read), w.dtype);
  if (!backward(w.pass)) {
    const TensorSet kept(saved_tensors(attention_work(w)), find(op, OperandUse::kept).data);
    const QkvForward u{weights, normed, kept["q"], kept["kv"], qk_norms(w, kept)};
    return run(stream, [w, u, copies = stream_copies(op, w)](const BlockContext& c) {
      for (const auto& [from, to] : copies)
        c.kernels->cast({.source = from, .destination = to, .stream = c.stream});
      qkv_forward(c, w, u);
    });
  }
  const TensorSet passed(passed_tensors(attention_work(w)), find(op, OperandUse::dqkv).data);
  const QkvBackward u{weights,       attention_weights(w, gradients(op), accumulator_of(w.dtype)),
                      normed,        passed["dq"],
                      passed["dkv"], full(find(op, OperandUse::dx), w),
                      overwrites(op)};
  run(stream, [w, u](const BlockContext& c) { qkv_backward(c, w, u); });
}

void StepLauncher::qk_norm(const Op& op, const BlockWork& w, StreamId stream) {
  const TensorSet kept(saved_tensors(attention_work(w)), find(op, OperandUse::kept).data);
  const AttentionWeights weights =
      attention_weights(w, all(op, OperandUse::parameter, Access::read), w.dtype);
  const bool sums = w.kind == BlockKind::qk_sums;
  if (!backward(w.pass)) {
    const QkNormForward u{weights, qk_norms(w, kept), kept["q"], kept["kv"]};
    return run(stream, [w, u, sums](const BlockContext& c) {
      sums ? qk_sums_forward(c, w, u) : qk_norm_forward(c, w, u);
    });
  }
  const TensorSet passed(passed_tensors(attention_work(w)), find(op, OperandUse::dqkv).data);
  const QkNormBackward u{weights,           attention_weights(w, gradients(op), accumulator_of(w.dtype)),
                         qk_norms(w, kept), kept["q"],
                         kept["kv"],        passed["dq"],
                         passed["dkv"],     norms_over_ranks(w) ? passed["sums"] : TensorView(),
                         overwrites(op)};
  run(stream,
      [w, u, sums](const BlockContext& c) { sums ? qk_sums_backward(c, w, u) : qk_norm_backward(c, w, u); });
}

// What the first GEMM of a half-layer keeps of the stream that it reads, with norms behind the GEMMs.
std::vector<std::pair<TensorView, TensorView>> StepLauncher::stream_copies(const Op& op,
                                                                           const BlockWork& w) const {
  if (!norms_after()) return {};
  const TensorView from = local(find(op, OperandUse::stream), w);
  std::vector<std::pair<TensorView, TensorView>> copies = {
      {from, TensorSet(norm_tensors(w), find(op, OperandUse::kept).data)["normed"]}};
  if (const Range input = find(op, OperandUse::input)) copies.emplace_back(from, local(input, w));
  return copies;
}

QkNormKept StepLauncher::qk_norms(const BlockWork& w, const TensorSet& kept) {
  if (w.qk_norm == QkNorm::none) return {};
  return {kept["raw_q"], kept["raw_k"], kept["qk_rms"]};
}

void StepLauncher::attention(const Op& op, const BlockWork& w, StreamId stream) {
  BlockWork half = attention_work(w);
  const TensorSet kept(saved_tensors(half), find(op, OperandUse::kept).data);
  const TensorSet scratch(workspace_tensors(half, 0), scratch_);
  const AttentionWeights weights =
      attention_weights(w, all(op, OperandUse::parameter, Access::read), w.dtype);
  const std::span<const std::int32_t> documents = exchange_.documents(op.microbatch);
  const Range gathered = find(op, OperandUse::keys);
  const TensorView own = kept["kv"];
  const TensorView keys =
      gathered ? TensorView(gathered.data, w.dtype, std::int64_t{w.batch} * w.seq_k, own.cols) : own;
  // Split and recomputed, the weight half still needs what the input half made.
  const Range deferred_range = find(op, OperandUse::deferred);
  const TensorSet deferred =
      deferred_range ? TensorSet(deferred_tensors(half), deferred_range.data) : TensorSet();
  const auto core = [&](const char* name) {
    if (!half.recompute_core) return kept[name];
    return deferred_range && std::strcmp(name, "context") == 0 ? deferred[name] : scratch[name];
  };
  if (!backward(w.pass)) {
    const AttentionForward u{weights,         kept["q"],   keys,
                             core("context"), core("lse"), full(find(op, OperandUse::out), w)};
    return run(stream, [w, u, documents](BlockContext c) {
      c.documents = documents;
      attention_forward(c, w, u);
    });
  }
  AttentionBackward u;
  u.weights = weights;
  u.gradients = attention_weights(w, gradients(op), accumulator_of(w.dtype));
  u.stale = overwrites(op);
  u.q = kept["q"];
  u.keys = keys;
  u.context = core("context");
  if (w.pass == Pass::backward_weight) {
    u.dbranch = deferred["dout"];
  } else {
    u.lse = core("lse");
    u.dbranch = full(find(op, OperandUse::dout), w);
    u.dcontext = scratch["dcontext"];
    u.core = scratch["core"];
    const TensorSet passed(passed_tensors(half), find(op, OperandUse::dqkv).data);
    const Range dkeys = find(op, OperandUse::dkeys);
    u.dq = passed["dq"];
    u.dkeys = dkeys ? TensorView(dkeys.data, w.dtype, keys.rows, keys.cols) : passed["dkv"];
  }
  const TensorView keep = w.pass == Pass::backward_input ? deferred["dout"] : TensorView();
  run(stream, [this, w, u, keep, documents](BlockContext c) {
    c.documents = documents;
    if (keep.data) kernels_.cast({.source = u.dbranch, .destination = keep, .stream = c.stream});
    attention_backward(c, w, u);
  });
}

void StepLauncher::mlp(const Op& op, const BlockWork& w, StreamId stream) {
  const TensorSet kept(saved_tensors(w), find(op, OperandUse::kept).data);
  const TensorView normed = normed_of(op, w);
  const MlpWeights weights = mlp_weights(w, all(op, OperandUse::parameter, Access::read), w.dtype);
  const TensorView activation(scratch_, w.dtype, w.tokens(), w.ffn);
  if (!backward(w.pass)) {
    const MlpForward u{weights,    normed,     kept["gate"],
                       kept["up"], activation, full(find(op, OperandUse::out), w)};
    return run(stream, [w, u, copies = stream_copies(op, w)](const BlockContext& c) {
      for (const auto& [from, to] : copies)
        c.kernels->cast({.source = from, .destination = to, .stream = c.stream});
      mlp_forward(c, w, u);
    });
  }
  MlpBackward u;
  u.weights = weights;
  u.gradients = mlp_weights(w, gradients(op), accumulator_of(w.dtype));
  u.stale = overwrites(op);
  u.normed = normed;
  u.gate = kept["gate"];
  u.up = kept["up"];
  u.activation = activation;
  u.dbranch = full(find(op, OperandUse::dout), w);
  u.dnormed = full(find(op, OperandUse::dx), w);
  TensorView keep;
  if (const Range deferred = find(op, OperandUse::deferred)) {
    const TensorSet set(deferred_tensors(w), deferred.data);
    u.activation = set["activation"];
    if (w.pass == Pass::backward_input)
      keep = set["dout"];
    else
      u.dbranch = set["dout"];
  }
  run(stream, [this, w, u, keep](const BlockContext& c) {
    if (keep.data) kernels_.cast({.source = u.dbranch, .destination = keep, .stream = c.stream});
    mlp_backward(c, w, u);
  });
}

}  // namespace sextant

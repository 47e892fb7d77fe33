#include "runtime/weights/llama_forward.hpp"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "core/base/error.hpp"

namespace sextant {

LlamaForward::Memory::Memory(Dtype dtype, std::int64_t rows, std::int64_t cols)
    : data_(static_cast<std::size_t>((rows * cols * size_bytes(dtype) + 7) / 8)),
      dtype_(dtype),
      rows_(rows),
      cols_(cols) {}

LlamaForward::LlamaForward(const ModelSpec& model, const KernelTable& kernels, Dtype dtype,
                           const WeightSource& weights, std::int64_t capacity, int threads)
    : model_(model),
      kernels_(kernels),
      dtype_(dtype),
      capacity_(capacity),
      threads_(threads),
      rope_(model, capacity, accumulator_of(dtype)) {
  SEXTANT_CHECK(kernels.supports(dtype), "GEMMs in a format the kernels do not have");
  constexpr std::int64_t kDoubles = 1 << 22;  // numbers in double precision at a time
  std::vector<double> values;
  for (const ModelSlice& whole : model_tensors(model)) {
    Memory& to =
        weights_.emplace(whole.name, Memory(dtype, whole.model_rows, whole.model_cols)).first->second;
    const std::int64_t step = std::max<std::int64_t>(1, kDoubles / whole.model_cols);
    for (std::int64_t row = 0; row < whole.model_rows; row += step) {
      ModelSlice block = whole;
      block.first_row = row;
      block.rows = std::min(step, whole.model_rows - row);
      values.resize(static_cast<std::size_t>(block.rows * block.cols));
      weights(block, values);
      kernels_.cast({.source = TensorView(values.data(), Dtype::fp64, block.rows, block.cols),
                     .destination = to.view().row_range(row, block.rows)});
    }
  }
  const std::int64_t columns = 2 * std::int64_t{model.n_kv_heads} * model.head_dim;
  for (int layer = 0; layer < model.n_layers; ++layer) keys_values_.emplace_back(dtype, capacity, columns);
}

BlockWork LlamaForward::work(BlockKind kind, std::int64_t tokens) const {
  BlockWork w;
  w.kind = kind;
  w.pass = Pass::forward;
  w.seq_q = static_cast<int>(tokens);
  w.seq_k = static_cast<int>(length_ + tokens);
  w.hidden = model_.hidden;
  w.heads = model_.n_heads;
  w.kv_heads = model_.n_kv_heads;
  w.qk_norm = model_.qk_norm;
  w.window = model_.window;
  w.head_dim = model_.head_dim;
  w.ffn = model_.ffn_hidden;
  w.vocab = model_.vocab_size;
  w.dtype = dtype_;
  return w;
}

AttentionWeights LlamaForward::attention_weights(int layer) {
  using Kind = ParameterKind;
  const auto of = [&](Kind kind) { return weight_or_none(kind, layer); };
  return {.q = of(Kind::q),
          .k = of(Kind::k),
          .v = of(Kind::v),
          .o = of(Kind::o),
          .q_bias = of(Kind::q_bias),
          .k_bias = of(Kind::k_bias),
          .v_bias = of(Kind::v_bias),
          .o_bias = of(Kind::o_bias),
          .q_norm = of(Kind::q_norm),
          .k_norm = of(Kind::k_norm)};
}

MlpWeights LlamaForward::mlp_weights(int layer) {
  using Kind = ParameterKind;
  const auto of = [&](Kind kind) { return weight_or_none(kind, layer); };
  return {.gate = of(Kind::gate),
          .up = of(Kind::up),
          .down = of(Kind::down),
          .gate_bias = of(Kind::gate_bias),
          .up_bias = of(Kind::up_bias),
          .down_bias = of(Kind::down_bias)};
}

struct LlamaForward::Activations {
  Activations(const ModelSpec& m, Dtype dtype, std::int64_t n)
      : after(m.norm_placement == NormPlacement::after),
        stream(dtype, n, m.hidden),
        branch(dtype, n, m.hidden),
        normed(dtype, n, m.hidden),
        input(dtype, after ? n : 0, m.hidden),
        inverse_rms(accumulator_of(dtype), 1, n),
        q(dtype, n, columns(m, m.n_heads)),
        context(dtype, n, columns(m, m.n_heads)),
        lse(accumulator_of(dtype), n, m.n_heads),
        gate(dtype, n, m.ffn_hidden),
        up(dtype, n, m.ffn_hidden),
        raw_q(dtype, normed_rows(m, n), columns(m, m.n_heads)),
        raw_k(dtype, normed_rows(m, n), columns(m, m.n_kv_heads)),
        qk_rms(accumulator_of(dtype), 1,
               normed_rows(m, n) * (m.qk_norm == QkNorm::head ? std::int64_t{m.n_heads} + m.n_kv_heads : 2)),
        activation(dtype, n, m.ffn_hidden) {}
  static std::int64_t columns(const ModelSpec& m, int heads) { return std::int64_t{heads} * m.head_dim; }
  static std::int64_t normed_rows(const ModelSpec& m, std::int64_t n) {
    return m.qk_norm == QkNorm::none ? 0 : n;
  }

  bool after;            // norms stand behind the GEMMs
  bool pending = false;  // a branch that is not yet in the stream
  Memory stream, branch, normed;
  Memory input;  // of norms behind the GEMMs
  Memory inverse_rms, q, context, lse, gate, up;
  Memory raw_q, raw_k, qk_rms;
  Memory activation;
};

void LlamaForward::refuse_unknown(std::span<const std::int32_t> ids) const {
  for (const std::int32_t id : ids)
    if (id < 0 || id >= model_.vocab_size)
      throw ConfigError(Problem{"", "token", fmt::format("{}", id),
                                fmt::format("below the {} words of {}", model_.vocab_size, model_.name),
                                "the tokenizer belongs to another model"});
}

void LlamaForward::norm_after(const BlockContext& c, ParameterKind kind, int layer, Activations& a) {
  norm_after_forward(
      c, {a.stream.view(), a.branch.view(), weight(kind, layer), a.input.view(), a.inverse_rms.view()});
}

void LlamaForward::norm_before(const BlockContext& c, ParameterKind kind, int layer, Activations& a) {
  if (a.after && kind != ParameterKind::norm_final)  // GEMMs read the stream
    return kernels_.cast({.source = a.stream.view(), .destination = a.normed.view()});

  norm_forward(c, {.stream = a.stream.view(),
                   .branch = a.pending ? a.branch.view() : TensorView(),
                   .weight = weight(kind, layer),
                   .input = a.stream.view(),
                   .inverse_rms = a.inverse_rms.view(),
                   .normed = a.normed.view()});
  a.pending = !a.after;
}

void LlamaForward::forward_layer(const BlockContext& c, int layer, std::int64_t n, Activations& a) {
  using Kind = ParameterKind;
  const BlockWork attention = work(BlockKind::attention, n), mlp = work(BlockKind::mlp, n);
  const TensorView kept = keys_values_[static_cast<std::size_t>(layer)].view();
  const AttentionWeights w = attention_weights(layer);
  const QkNormKept norms_kept{a.raw_q.view(), a.raw_k.view(), a.qk_rms.view()};
  norm_before(c, Kind::norm_attention, layer, a);
  qkv_forward(c, attention,
              {.weights = w,
               .normed = a.normed.view(),
               .q = a.q.view(),
               .kv = kept.row_range(length_, n),
               .norms = norms_kept});
  if (model_.qk_norm != QkNorm::none)
    qk_norm_forward(c, attention,
                    {.weights = w, .norms = norms_kept, .q = a.q.view(), .kv = kept.row_range(length_, n)});
  attention_forward(c, attention,
                    {.weights = w,
                     .q = a.q.view(),
                     .keys = kept.row_range(0, length_ + n),
                     .context = a.context.view(),
                     .lse = a.lse.view(),
                     .branch = a.branch.view()});
  if (a.after) norm_after(c, Kind::norm_attention, layer, a);
  norm_before(c, Kind::norm_mlp, layer, a);
  mlp_forward(c, mlp,
              {.weights = mlp_weights(layer),
               .normed = a.normed.view(),
               .gate = a.gate.view(),
               .up = a.up.view(),
               .activation = a.activation.view(),
               .branch = a.branch.view()});
  if (a.after) norm_after(c, Kind::norm_mlp, layer, a);
}

// [tokens, vocabulary]
std::vector<double> LlamaForward::logits_of(const TensorView& normed) {
  using Kind = ParameterKind;
  const Dtype statistic = accumulator_of(dtype_);
  Memory logits(statistic, normed.rows, model_.vocab_size);
  kernels_.gemm({.a = normed,
                 .b = weight(model_.tied_embeddings ? Kind::embedding : Kind::head),
                 .c = logits.view(),
                 .transpose_b = true,
                 .threads = threads_});
  if (model_.normalized_head) {
    Memory inverse(statistic, 1, model_.vocab_size);
    kernels_.row_lengths({.x = weight(Kind::head), .inverse = inverse.view()});
    kernels_.scale_columns({.x = logits.view(), .factors = inverse.view()});
  }
  std::vector<double> values(static_cast<std::size_t>(normed.rows * model_.vocab_size));
  kernels_.cast({.source = logits.view(),
                 .destination = TensorView(values.data(), Dtype::fp64, normed.rows, model_.vocab_size)});
  return values;
}

std::vector<double> LlamaForward::extend(std::span<const std::int32_t> ids, Logits which) {
  const auto n = static_cast<std::int64_t>(ids.size());
  SEXTANT_CHECK(n > 0 && length_ + n <= capacity_, "tokens beyond the sequence");
  refuse_unknown(ids);
  std::vector<std::int32_t> key_positions(static_cast<std::size_t>(length_ + n));
  std::iota(key_positions.begin(), key_positions.end(), 0);
  BlockContext c;
  c.kernels = &kernels_;
  c.norm_eps = model_.norm_eps;
  c.threads = threads_;
  if (model_.position == PositionKind::rope) {
    c.rope_cos = rope_.cos();
    c.rope_sin = rope_.sin();
  }
  const SlopeTable slopes(model_, 0, model_.n_heads, accumulator_of(dtype_));
  c.slopes = slopes.view();
  c.positions = std::span<const std::int32_t>(key_positions).subspan(static_cast<std::size_t>(length_));
  c.key_positions = key_positions;

  Activations a(model_, dtype_, n);
  embedding_forward(
      c, {.ids = ids, .table = weight(ParameterKind::embedding), .rows = a.stream.view(), .first_id = 0});
  for (int layer = 0; layer < model_.n_layers; ++layer) forward_layer(c, layer, n, a);
  norm_before(c, ParameterKind::norm_final, 0, a);
  length_ += n;
  const std::int64_t rows = which == Logits::all ? n : 1;
  return logits_of(a.normed.view().row_range(n - rows, rows));
}

}  // namespace sextant

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
  SEXTANT_CHECK(kernels.supports(dtype), "products in a format the kernels do not have");
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

std::vector<double> LlamaForward::extend(std::span<const std::int32_t> ids, Logits which) {
  using Kind = ParameterKind;
  const auto n = static_cast<std::int64_t>(ids.size());
  SEXTANT_CHECK(n > 0 && length_ + n <= capacity_, "tokens beyond the sequence");
  for (const std::int32_t id : ids)
    if (id < 0 || id >= model_.vocab_size)
      throw ConfigError(Problem{"", "token", fmt::format("{}", id),
                                fmt::format("below the {} words of {}", model_.vocab_size, model_.name),
                                "the tokenizer belongs to another model"});
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

  const Dtype statistic = accumulator_of(dtype_);
  const BlockWork attention = work(BlockKind::attention, n), mlp = work(BlockKind::mlp, n);
  const std::int64_t q_columns = std::int64_t{model_.n_heads} * model_.head_dim;
  const std::int64_t after_rows = model_.norm_placement == NormPlacement::after ? n : 0;
  Memory stream(dtype_, n, model_.hidden), branch(dtype_, n, model_.hidden), normed(dtype_, n, model_.hidden);
  Memory input(dtype_, after_rows, model_.hidden);  // of norms behind the products
  Memory inverse_rms(statistic, 1, n), q(dtype_, n, q_columns), context(dtype_, n, q_columns);
  Memory lse(statistic, n, model_.n_heads), gate(dtype_, n, model_.ffn_hidden),
      up(dtype_, n, model_.ffn_hidden);
  const std::int64_t normed_rows = model_.qk_norm == QkNorm::none ? 0 : n;
  Memory raw_q(dtype_, normed_rows, q_columns),
      raw_k(dtype_, normed_rows, std::int64_t{model_.n_kv_heads} * model_.head_dim);
  const std::int64_t norms =
      model_.qk_norm == QkNorm::head ? std::int64_t{model_.n_heads} + model_.n_kv_heads : 2;
  Memory qk_rms(statistic, 1, normed_rows * norms);
  Memory activation(dtype_, n, model_.ffn_hidden);
  bool pending = false;  // a branch that is not yet in the stream
  const bool after = model_.norm_placement == NormPlacement::after;
  const auto join = [&](ParameterKind kind, int layer) {
    norm_after_forward(c,
                       {stream.view(), branch.view(), weight(kind, layer), input.view(), inverse_rms.view()});
  };
  const auto norm = [&](ParameterKind kind, int layer) {
    if (after && kind != Kind::norm_final)  // products read the stream
      return kernels_.cast({.source = stream.view(), .destination = normed.view()});

    norm_forward(c, {.stream = stream.view(),
                     .branch = pending ? branch.view() : TensorView(),
                     .weight = weight(kind, layer),
                     .input = stream.view(),
                     .inverse_rms = inverse_rms.view(),
                     .normed = normed.view()});
    pending = !after;
  };

  embedding_forward(c, {.ids = ids, .table = weight(Kind::embedding), .rows = stream.view(), .first_id = 0});
  for (int layer = 0; layer < model_.n_layers; ++layer) {
    const TensorView kept = keys_values_[static_cast<std::size_t>(layer)].view();
    const AttentionWeights w = attention_weights(layer);
    const QkNormKept norms_kept{raw_q.view(), raw_k.view(), qk_rms.view()};
    norm(Kind::norm_attention, layer);
    qkv_forward(c, attention,
                {.weights = w,
                 .normed = normed.view(),
                 .q = q.view(),
                 .kv = kept.row_range(length_, n),
                 .norms = norms_kept});
    if (model_.qk_norm != QkNorm::none)
      qk_norm_forward(c, attention,
                      {.weights = w, .norms = norms_kept, .q = q.view(), .kv = kept.row_range(length_, n)});
    attention_forward(c, attention,
                      {.weights = w,
                       .q = q.view(),
                       .keys = kept.row_range(0, length_ + n),
                       .context = context.view(),
                       .lse = lse.view(),
                       .branch = branch.view()});
    if (after) join(Kind::norm_attention, layer);
    norm(Kind::norm_mlp, layer);
    mlp_forward(c, mlp,
                {.weights = mlp_weights(layer),
                 .normed = normed.view(),
                 .gate = gate.view(),
                 .up = up.view(),
                 .activation = activation.view(),
                 .branch = branch.view()});
    if (after) join(Kind::norm_mlp, layer);
  }
  norm(Kind::norm_final, 0);
  length_ += n;

  const std::int64_t rows = which == Logits::all ? n : 1;
  Memory logits(statistic, rows, model_.vocab_size);
  kernels_.gemm({.a = normed.view().row_range(n - rows, rows),
                 .b = weight(model_.tied_embeddings ? Kind::embedding : Kind::head),
                 .c = logits.view(),
                 .transpose_b = true,
                 .threads = threads_});
  if (model_.normalized_head) {
    Memory inverse(statistic, 1, model_.vocab_size);
    kernels_.row_lengths({.x = weight(Kind::head), .inverse = inverse.view()});
    kernels_.scale_columns({.x = logits.view(), .factors = inverse.view()});
  }
  std::vector<double> values(static_cast<std::size_t>(rows * model_.vocab_size));
  kernels_.cast({.source = logits.view(),
                 .destination = TensorView(values.data(), Dtype::fp64, rows, model_.vocab_size)});
  return values;
}

}  // namespace sextant

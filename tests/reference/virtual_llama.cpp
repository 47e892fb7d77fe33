// Ranks, their slices, and the sums and copies between them.
#include <algorithm>

#include "tests/reference/virtual_llama_parts.hpp"

namespace sextant::testing {

VirtualLlama::VirtualLlama(const ModelSpec& model, const VirtualLayout& layout, const NamedTensors& weights)
    : model_(model), layout_(layout), shapes_source_(weights) {
  if (!layout_.kernels) layout_.kernels = &cpu_reference_kernels();
  for (int cp = 0; cp < layout.cp; ++cp)
    for (int tp = 0; tp < layout.tp; ++tp) {
      Rank r;
      r.tp = tp;
      r.cp = cp;
      for (const auto& [name, values] : weights) {
        const Slice s = slice(name, tp);
        std::vector<double> part(static_cast<std::size_t>(s.rows * s.cols));
        for (std::int64_t i = 0; i < s.rows; ++i)
          for (std::int64_t j = 0; j < s.cols; ++j)
            if (s.first_row + i < s.all_rows)  // rows of vocabulary padding stay zero
              part[static_cast<std::size_t>(i * s.cols + j)] =
                  values[static_cast<std::size_t>((s.first_row + i) * s.all_cols + s.first_col + j)];
        r.weights[name] = Matrix(layout.dtype, s.rows, s.cols, part);
      }
      ranks_.push_back(std::move(r));
    }
}

VirtualLlama::Slice VirtualLlama::slice(const std::string& name, int t) const {
  const int tp = layout_.tp;
  const std::int64_t h = model_.hidden, d = model_.head_dim, f = model_.ffn_hidden;
  const auto rows = [&](std::int64_t first, std::int64_t count, std::int64_t all, bool replicated = false) {
    return Slice{first, count, 0, h, all, h, replicated};
  };
  const auto columns = [&](std::int64_t first, std::int64_t count, std::int64_t all) {
    return Slice{0, h, first, count, h, all, false};
  };
  if (ends_with(name, "embed_tokens") || ends_with(name, "lm_head")) {
    const std::int64_t multiple = static_cast<std::int64_t>(layout_.vocab_multiple) * tp;
    const std::int64_t padded = (model_.vocab_size + multiple - 1) / multiple * multiple;
    return rows(t * padded / tp, padded / tp, model_.vocab_size);
  }
  const std::int64_t a = model_.n_heads / tp * d;
  if (ends_with(name, "q_proj")) return rows(t * a, a, model_.n_heads * d);
  if (ends_with(name, "o_proj")) return columns(t * a, a, model_.n_heads * d);
  if (ends_with(name, "k_proj") || ends_with(name, "v_proj")) {
    const std::int64_t heads = std::max(1, model_.n_kv_heads / tp);
    return rows(t * model_.n_kv_heads / tp * d, heads * d, model_.n_kv_heads * d);
  }
  const std::int64_t first = t * f / tp,
                     count = (t + 1) * f / tp - first;  // 95 does not divide: uneven slices
  if (ends_with(name, "gate_proj") || ends_with(name, "up_proj")) return rows(first, count, f);
  if (ends_with(name, "down_proj")) return columns(first, count, f);
  return {0, 1, 0, h, 1, h, true};  // norms
}

BlockWork VirtualLlama::work(const Rank& r, BlockKind kind, Pass pass) const {
  BlockWork w;
  w.kind = kind;
  w.pass = pass;
  w.batch = batch_;
  w.seq_q = seq_ / layout_.cp;
  w.seq_k = seq_;
  w.hidden = model_.hidden;
  w.heads = model_.n_heads / layout_.tp;
  w.kv_heads = std::max(1, model_.n_kv_heads / layout_.tp);
  w.head_dim = model_.head_dim;
  w.ffn = static_cast<int>(slice(layer_name(0, "mlp.gate_proj"), r.tp).rows);
  w.vocab = static_cast<int>(slice(head_name(), r.tp).rows);
  w.tp = layout_.tp;
  w.sequence_parallel = layout_.sequence_parallel;
  w.recompute_core = layout_.recompute_core && kind == BlockKind::attention;
  w.dtype = layout_.dtype;
  return w;
}

BlockContext VirtualLlama::context(const Rank& r) const {
  BlockContext c;
  c.kernels = layout_.kernels;
  c.norm_eps = model_.norm_eps;
  c.rope_cos = rope_.cos();
  c.rope_sin = rope_.sin();
  c.positions = r.positions;
  c.key_positions = key_positions_;
  c.cp = layout_.cp;
  return c;
}

std::string VirtualLlama::head_name() const {
  return model_.tied_embeddings ? "model.embed_tokens.weight" : "lm_head.weight";
}

AttentionWeights VirtualLlama::attention(const Rank& r, int layer, bool gradients) const {
  const auto get = [&](const char* rest) {
    return gradients ? gradient(r, layer_name(layer, rest)) : weight(r, layer_name(layer, rest));
  };
  return {get("self_attn.q_proj"), get("self_attn.k_proj"), get("self_attn.v_proj"), get("self_attn.o_proj")};
}

MlpWeights VirtualLlama::mlp(const Rank& r, int layer, bool gradients) const {
  const auto get = [&](const char* rest) {
    return gradients ? gradient(r, layer_name(layer, rest)) : weight(r, layer_name(layer, rest));
  };
  return {get("mlp.gate_proj"), get("mlp.up_proj"), get("mlp.down_proj")};
}

VirtualLlama::PerRank VirtualLlama::local_matrices() const {
  PerRank all;
  for (const Rank& r : ranks_)
    all.emplace_back(layout_.dtype, local_tokens(work(r, BlockKind::norm, Pass::forward)), model_.hidden);
  return all;
}

VirtualLlama::PerRank VirtualLlama::full_matrices(std::int64_t cols) const {
  PerRank all;
  for (std::size_t i = 0; i < ranks_.size(); ++i)
    all.emplace_back(layout_.dtype, static_cast<std::int64_t>(batch_) * (seq_ / layout_.cp), cols);
  return all;
}

VirtualLlama::PerRank VirtualLlama::gather_tokens(const std::vector<TensorView>& local) const {
  PerRank full = full_matrices(local[0].cols);
  for (const Rank& r : ranks_) {
    const TensorView to = full[static_cast<std::size_t>(r.cp * layout_.tp + r.tp)].view();
    if (!layout_.sequence_parallel) {
      copy(local[static_cast<std::size_t>(r.cp * layout_.tp + r.tp)], to);
      continue;
    }
    for (int t = 0; t < layout_.tp; ++t) {
      const TensorView part = local[static_cast<std::size_t>(r.cp * layout_.tp + t)];
      copy(part, to.row_range(t * part.rows, part.rows));
    }
  }
  return full;
}

VirtualLlama::PerRank VirtualLlama::reduce_tokens(const PerRank& partial) const {
  PerRank out = local_matrices();
  for (int c = 0; c < layout_.cp; ++c) {
    const auto first = static_cast<std::size_t>(c * layout_.tp);
    const TensorView any = partial[first].view();
    const Matrix sum(layout_.dtype, any.rows, any.cols);
    for (int t = 0; t < layout_.tp; ++t)
      layout_.kernels->add(
          {.a = sum.view(), .b = partial[first + static_cast<std::size_t>(t)].view(), .out = sum.view()});
    for (int t = 0; t < layout_.tp; ++t) {
      const TensorView to = out[first + static_cast<std::size_t>(t)].view();
      copy(layout_.sequence_parallel ? sum.view().row_range(t * to.rows, to.rows) : sum.view(), to);
    }
  }
  return out;
}

VirtualLlama::PerRank VirtualLlama::gather_keys(const std::vector<TensorView>& kv) const {
  PerRank out;
  for (const Rank& r : ranks_) {
    const std::int64_t rows = kv[0].rows;
    Matrix all(layout_.dtype, rows * layout_.cp, kv[0].cols);
    for (int c = 0; c < layout_.cp; ++c)
      copy(kv[static_cast<std::size_t>(c * layout_.tp + r.tp)], all.view().row_range(c * rows, rows));
    out.push_back(std::move(all));
  }
  return out;
}

VirtualLlama::PerRank VirtualLlama::scatter_keys(const PerRank& dkeys) const {
  PerRank out;
  for (const Rank& r : ranks_) {
    const std::int64_t rows = dkeys[0].view().rows / layout_.cp;
    Matrix own(layout_.dtype, rows, dkeys[0].view().cols);
    for (int c = 0; c < layout_.cp; ++c)
      layout_.kernels->add(
          {.a = own.view(),
           .b = dkeys[static_cast<std::size_t>(c * layout_.tp + r.tp)].view().row_range(r.cp * rows, rows),
           .out = own.view()});
    out.push_back(std::move(own));
  }
  return out;
}

void VirtualLlama::start(std::span<const std::int32_t> ids, std::span<const std::int32_t> targets,
                         int batch) {
  batch_ = batch;
  seq_ = static_cast<int>(ids.size()) / batch;
  valid_ = std::count_if(targets.begin(), targets.end(), [](std::int32_t t) { return t != kIgnoreTarget; });
  const Dtype statistic = accumulator_of(layout_.dtype);
  rope_ = RopeTable(model_, seq_, statistic);
  key_positions_ = gathered_positions(seq_, layout_.cp);
  for (Rank& r : ranks_) {
    r.positions = context_positions(seq_, layout_.cp, r.cp);
    r.ids.clear();
    r.targets.clear();
    for (int b = 0; b < batch; ++b)
      for (std::int32_t p : r.positions) {
        r.ids.push_back(ids[static_cast<std::size_t>(b * seq_ + p)]);
        r.targets.push_back(targets[static_cast<std::size_t>(b * seq_ + p)]);
      }
    for (const auto& [name, matrix] : r.weights)
      r.gradients[name] = Matrix(statistic, matrix.view().rows, matrix.view().cols);
    if (model_.tied_embeddings)
      r.gradients["head"] = Matrix(statistic, weight(r, head_name()).rows, model_.hidden);
    r.buffers.clear();
    r.saved.clear();
    const auto keep = [&](BlockKind kind) {
      const BlockWork w = work(r, kind, Pass::forward);
      r.buffers.emplace_back(static_cast<std::size_t>(saved_bytes(w).v / 8));
      r.saved.emplace_back(saved_tensors(w), r.buffers.back().data());
    };
    for (int layer = 0; layer < model_.n_layers; ++layer) {
      keep(BlockKind::attention);
      keep(BlockKind::mlp);
    }
    keep(BlockKind::head);
  }
}

NamedTensors VirtualLlama::collect() const {
  NamedTensors sum;
  for (const auto& [name, values] : shapes_source_) sum[name].assign(values.size(), 0.0);
  for (const Rank& r : ranks_)
    for (const auto& [key, matrix] : r.gradients) {
      const std::string name = key == "head" ? head_name() : key;
      const Slice s = slice(name, r.tp);
      // A replicated norm weight has the whole gradient on every tp rank, unless tokens were split among
      // them.
      if (s.replicated && r.tp > 0 && !layout_.sequence_parallel) continue;
      const std::vector<double> part = to_doubles(matrix.view());
      for (std::int64_t i = 0; i < s.rows && s.first_row + i < s.all_rows; ++i)
        for (std::int64_t j = 0; j < s.cols; ++j)
          sum[name][static_cast<std::size_t>((s.first_row + i) * s.all_cols + s.first_col + j)] +=
              part[static_cast<std::size_t>(i * s.cols + j)];
    }
  return sum;
}

StepResult VirtualLlama::run(std::span<const std::int32_t> ids, std::span<const std::int32_t> targets,
                             int batch) {
  start(ids, targets, batch);
  const std::string embedding = "model.embed_tokens.weight";
  const PerRank rows = full_matrices(model_.hidden);
  for (std::size_t i = 0; i < ranks_.size(); ++i)
    embedding_forward(context(ranks_[i]), {.ids = ranks_[i].ids,
                                           .table = weight(ranks_[i], embedding),
                                           .rows = rows[i].view(),
                                           .first_id = slice(embedding, ranks_[i].tp).first_row});
  PerRank streams = reduce_tokens(rows);
  PerRank gradients = local_matrices();
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    ranks_[i].stream = std::move(streams[i]);
    ranks_[i].gradient = std::move(gradients[i]);
  }

  StepResult result;
  for (int layer = 0; layer < model_.n_layers; ++layer) pending_ = mlp_branch(layer);
  result.loss = loss_forward(result.logits);

  norm_gradient(2 * model_.n_layers, "model.norm.weight", head_gradient(), false);
  for (int layer = model_.n_layers - 1; layer >= 0; --layer) {
    mlp_gradient(layer);
    attention_gradient(layer);
  }
  std::vector<TensorView> local;
  for (const Rank& r : ranks_) local.push_back(r.gradient.view());
  const PerRank drows = gather_tokens(local);
  for (std::size_t i = 0; i < ranks_.size(); ++i)
    embedding_backward(context(ranks_[i]), {.ids = ranks_[i].ids,
                                            .table = gradient(ranks_[i], embedding),
                                            .rows = drows[i].view(),
                                            .first_id = slice(embedding, ranks_[i].tp).first_row});
  result.gradients = collect();
  return result;
}

}  // namespace sextant::testing

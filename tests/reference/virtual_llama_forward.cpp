// Forward: norms, the branches of a layer, the loss.
#include <algorithm>

#include "tests/reference/virtual_llama_parts.hpp"

namespace sextant::testing {

VirtualLlama::PerRank VirtualLlama::norm(int set, const std::string& name, const PerRank* branch) {
  std::vector<TensorView> normed;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    Rank& r = ranks_[i];
    const TensorSet& s = r.saved[static_cast<std::size_t>(set)];
    norm_forward(context(r), {.stream = r.stream.view(),
                              .branch = branch ? (*branch)[i].view() : TensorView(),
                              .weight = weight(r, name),
                              .input = s["input"],
                              .inverse_rms = s["inverse_rms"],
                              .normed = s["normed"]});
    normed.push_back(s["normed"]);
  }
  return gather_tokens(normed);
}

VirtualLlama::PerRank VirtualLlama::attention_branch(int layer) {
  const PerRank branch = full_matrices(model_.hidden);
  const PerRank* pending = layer > 0 ? &pending_ : nullptr;
  const PerRank normed = norm(attention_set(layer), layer_name(layer, "input_layernorm"), pending);
  std::vector<TensorView> kv;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const Rank& r = ranks_[i];
    const TensorSet& s = r.saved[static_cast<std::size_t>(attention_set(layer))];
    qkv_forward(
        context(r), work(r, BlockKind::qkv, Pass::forward),
        {.weights = attention(r, layer, false), .normed = normed[i].view(), .q = s["q"], .kv = s["kv"]});
    kv.push_back(s["kv"]);
  }
  const PerRank keys = gather_keys(kv);
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const Rank& r = ranks_[i];
    const BlockWork w = work(r, BlockKind::attention, Pass::forward);
    const TensorSet& s = r.saved[static_cast<std::size_t>(attention_set(layer))];
    std::vector<std::uint64_t> memory(static_cast<std::size_t>(total_bytes(workspace_tensors(w, 0)).v / 8));
    const TensorSet workspace(workspace_tensors(w, 0), memory.data());
    const TensorSet& core = w.recompute_core ? workspace : s;
    attention_forward(context(r), w,
                      {.weights = attention(r, layer, false),
                       .q = s["q"],
                       .keys = keys[i].view(),
                       .context = core["context"],
                       .lse = core["lse"],
                       .branch = branch[i].view()});
  }
  return reduce_tokens(branch);
}

VirtualLlama::PerRank VirtualLlama::mlp_branch(int layer) {
  const PerRank attention_out = attention_branch(layer);
  const PerRank normed = norm(mlp_set(layer), layer_name(layer, "post_attention_layernorm"), &attention_out);
  const PerRank branch = full_matrices(model_.hidden);
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const Rank& r = ranks_[i];
    const TensorSet& s = r.saved[static_cast<std::size_t>(mlp_set(layer))];
    const BlockWork w = work(r, BlockKind::mlp, Pass::forward);
    const Matrix activation(layout_.dtype, w.tokens(), w.ffn);
    mlp_forward(context(r), w,
                {.weights = mlp(r, layer, false),
                 .normed = normed[i].view(),
                 .gate = s["gate"],
                 .up = s["up"],
                 .activation = activation.view(),
                 .branch = branch[i].view()});
  }
  return reduce_tokens(branch);
}

double VirtualLlama::loss_forward(std::vector<double>& logits) {
  const int set = 2 * model_.n_layers;
  const Dtype statistic = accumulator_of(layout_.dtype);
  const PerRank normed = norm(set, "model.norm.weight", &pending_);
  PerRank stats;
  double loss = 0;
  std::vector<std::vector<double>> slices;
  pending_ = full_matrices(model_.hidden);
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    Rank& r = ranks_[i];
    const TensorView w = weight(r, head_name());
    const std::int64_t tokens = normed[i].view().rows;
    HeadWorkspace head(work(r, BlockKind::head, Pass::backward), layout_.head_chunk, w, normed[i].view(),
                       r.targets, slice(head_name(), r.tp).first_row, model_.vocab_size);
    stats.emplace_back(statistic, tokens, 3);
    if (layout_.fused_head) {
      const Matrix softmax(statistic, layout_.head_chunk, 2), chunk_stats(statistic, layout_.head_chunk, 3);
      head_fused(context(r), head.unit, chunk_stats.view(), softmax.view(), 1.0 / static_cast<double>(valid_),
                 &loss, pending_[i].view(), gradient(r, model_.tied_embeddings ? "head" : head_name()));
    } else {
      head_forward(context(r), head.unit, stats[i].view());
    }
    const Matrix whole(layout_.dtype, tokens, w.rows);
    layout_.kernels->gemm({.a = normed[i].view(), .b = w, .c = whole.view(), .transpose_b = true});
    slices.push_back(to_doubles(whole.view()));
  }
  for (int c = 0; c < layout_.cp && !layout_.fused_head; ++c) {
    const std::int64_t tokens = stats[0].view().rows;
    const Matrix gathered(statistic, tokens * layout_.tp, 3);
    for (int t = 0; t < layout_.tp; ++t)
      copy(stats[static_cast<std::size_t>(c * layout_.tp + t)].view(),
           gathered.view().row_range(t * tokens, tokens));
    for (int t = 0; t < layout_.tp; ++t) {
      Rank& r = ranks_[static_cast<std::size_t>(c * layout_.tp + t)];
      double of_rank = 0;
      head_loss(context(r), r.targets, gathered.view(), r.saved[static_cast<std::size_t>(set)]["softmax"],
                &of_rank);
      if (t == 0) loss += of_rank;
    }
  }
  if (layout_.cp == 1) {
    const std::int64_t columns = weight(ranks_[0], head_name()).rows;
    for (std::int64_t row = 0; row < normed[0].view().rows; ++row)
      for (std::int64_t v = 0; v < model_.vocab_size; ++v)
        logits.push_back(slices[static_cast<std::size_t>(v / columns)]
                               [static_cast<std::size_t>(row * columns + v % columns)]);
  }
  return loss / static_cast<double>(valid_);
}

}  // namespace sextant::testing

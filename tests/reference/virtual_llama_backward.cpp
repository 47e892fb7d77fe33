// Backward: the head, then each branch in turn.
#include <algorithm>

#include "tests/reference/virtual_llama_parts.hpp"

namespace sextant::testing {

void VirtualLlama::norm_gradient(int set, const std::string& name, const PerRank& dnormed, bool bypass) {
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    Rank& r = ranks_[i];
    const TensorSet& s = r.saved[static_cast<std::size_t>(set)];
    norm_backward(context(r), {.input = s["input"],
                               .inverse_rms = s["inverse_rms"],
                               .weight = weight(r, name),
                               .dnormed = dnormed[i].view(),
                               .bypass = bypass ? r.gradient.view() : TensorView(),
                               .dstream = r.gradient.view(),
                               .dweight = gradient(r, name)});
  }
}

VirtualLlama::PerRank VirtualLlama::head_gradient() {
  const int set = 2 * model_.n_layers;
  if (layout_.fused_head) return reduce_tokens(pending_);
  std::vector<TensorView> local;
  for (const Rank& r : ranks_) local.push_back(r.saved[static_cast<std::size_t>(set)]["normed"]);
  const PerRank normed = gather_tokens(local), dnormed = full_matrices(model_.hidden);
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    Rank& r = ranks_[i];
    HeadWorkspace head(work(r, BlockKind::head, Pass::backward), layout_.head_chunk, weight(r, head_name()),
                       normed[i].view(), r.targets, slice(head_name(), r.tp).first_row, model_.vocab_size);
    const TensorView softmax = r.saved[static_cast<std::size_t>(set)]["softmax"];
    const TensorView dweight = gradient(r, model_.tied_embeddings ? "head" : head_name());
    const double scale = 1.0 / static_cast<double>(valid_);
    if (layout_.split_backward) {
      head_backward(context(r), head.unit, softmax, scale, dnormed[i].view(), {});
      head_backward(context(r), head.unit, softmax, scale, {}, dweight);
    } else {
      head_backward(context(r), head.unit, softmax, scale, dnormed[i].view(), dweight);
    }
  }
  return reduce_tokens(dnormed);
}

void VirtualLlama::mlp_gradient(int layer) {
  std::vector<TensorView> gradients, local;
  for (const Rank& r : ranks_) {
    gradients.push_back(r.gradient.view());
    local.push_back(r.saved[static_cast<std::size_t>(mlp_set(layer))]["normed"]);
  }
  const PerRank dbranch = gather_tokens(gradients), normed = gather_tokens(local);
  const PerRank dnormed = full_matrices(model_.hidden);
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const Rank& r = ranks_[i];
    const TensorSet& s = r.saved[static_cast<std::size_t>(mlp_set(layer))];
    BlockWork w = work(r, BlockKind::mlp, Pass::backward);
    const Matrix activation(layout_.dtype, w.tokens(), w.ffn);
    const MlpBackward unit{.weights = mlp(r, layer, false),
                           .gradients = mlp(r, layer, true),
                           .normed = normed[i].view(),
                           .gate = s["gate"],
                           .up = s["up"],
                           .activation = activation.view(),
                           .dbranch = dbranch[i].view(),
                           .dnormed = dnormed[i].view()};
    if (layout_.split_backward) {
      w.pass = Pass::backward_input;
      mlp_backward(context(r), w, unit);
      w.pass = Pass::backward_weight;
      mlp_backward(context(r), w, unit);
    } else {
      mlp_backward(context(r), w, unit);
    }
  }
  norm_gradient(mlp_set(layer), layer_name(layer, "post_attention_layernorm"), reduce_tokens(dnormed), true);
}

void VirtualLlama::attention_gradient(int layer) {
  // Both halves of a split backward, one after the other.
  const auto in_halves = [&](const Rank& r, BlockWork w, const auto& backward, const auto& unit) {
    if (!layout_.split_backward) return backward(context(r), w, unit);
    for (const Pass half : {Pass::backward_input, Pass::backward_weight}) {
      w.pass = half;
      backward(context(r), w, unit);
    }
  };
  const auto saved = [&](const Rank& r) -> const TensorSet& {
    return r.saved[static_cast<std::size_t>(attention_set(layer))];
  };
  std::vector<TensorView> gradients, local, kv;
  for (const Rank& r : ranks_) {
    gradients.push_back(r.gradient.view());
    local.push_back(saved(r)["normed"]);
    kv.push_back(saved(r)["kv"]);
  }
  const PerRank dbranch = gather_tokens(gradients), normed = gather_tokens(local), keys = gather_keys(kv);
  PerRank dq, dkeys;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const Rank& r = ranks_[i];
    const TensorSet& s = saved(r);
    const BlockWork w = work(r, BlockKind::attention, Pass::backward);
    std::vector<std::uint64_t> memory(static_cast<std::size_t>(total_bytes(workspace_tensors(w, 0)).v / 8));
    const TensorSet workspace(workspace_tensors(w, 0), memory.data());
    const TensorSet& core = w.recompute_core ? workspace : s;
    dq.emplace_back(layout_.dtype, s["q"].rows, s["q"].cols);
    dkeys.emplace_back(layout_.dtype, keys[i].view().rows, keys[i].view().cols);
    const AttentionBackward unit{.weights = attention(r, layer, false),
                                 .gradients = attention(r, layer, true),
                                 .q = s["q"],
                                 .keys = keys[i].view(),
                                 .context = core["context"],
                                 .lse = core["lse"],
                                 .dbranch = dbranch[i].view(),
                                 .dcontext = workspace["dcontext"],
                                 .core = workspace["core"],
                                 .dq = dq[i].view(),
                                 .dkeys = dkeys[i].view()};
    in_halves(r, w, attention_backward, unit);
  }
  const PerRank dkv = scatter_keys(dkeys), dnormed = full_matrices(model_.hidden);
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const Rank& r = ranks_[i];
    const QkvBackward unit{.weights = attention(r, layer, false),
                           .gradients = attention(r, layer, true),
                           .normed = normed[i].view(),
                           .dq = dq[i].view(),
                           .dkv = dkv[i].view(),
                           .dnormed = dnormed[i].view()};
    in_halves(r, work(r, BlockKind::qkv, Pass::backward), qkv_backward, unit);
  }
  norm_gradient(attention_set(layer), layer_name(layer, "input_layernorm"), reduce_tokens(dnormed), true);
}

}  // namespace sextant::testing

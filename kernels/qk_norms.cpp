// Norms of q and k, a unit of their own behind the GEMMs (BlockKind::qk_norm), and the sums that ranks share of them.
#include <utility>

#include "kernels/block_parts.hpp"

namespace sextant {
namespace {

// Norms of q or k: `parts` of a row one after another, its heads, or the row as one. `y` may be columns of a wider tensor.
struct RowNorm {
  TensorView x, weight, rms;
  int parts = 1;
  std::int64_t whole = 0;  // numbers of a row over all ranks; 0: they are all here
};

template <class F>
void each_part(const RowNorm& n, F&& f) {
  const std::int64_t width = n.x.cols / n.parts;
  for (int part = 0; part < n.parts; ++part) f(part * width, width, part * n.x.rows);
}

void row_norm_forward(const BlockContext& c, const RowNorm& n, const TensorView& y) {
  if (n.whole > 0) {
    c.kernels->inverse_rms({.x = n.rms, .width = n.whole, .eps = c.norm_eps, .stream = c.stream});
    return c.kernels->rmsnorm_apply(
        {.x = n.x, .inverse_rms = n.rms, .weight = n.weight, .y = y, .stream = c.stream});
  }
  each_part(n, [&](std::int64_t first, std::int64_t width, std::int64_t at) {
    c.kernels->rmsnorm_forward({.x = n.x.column_range(first, width),
                                .weight = n.weight,
                                .y = y.column_range(first, width),
                                .inverse_rms = n.rms.column_range(at, n.x.rows),
                                .eps = c.norm_eps,
                                .stream = c.stream});
  });
}
// dy becomes the gradient of what the norm has read. `dots`: of whole rows that are elsewhere in part.
void row_norm_backward(const BlockContext& c, const RowNorm& n, const TensorView& dy, const TensorView& dots,
                       const TensorView& dweight, bool stale) {
  if (stale) c.kernels->zero({.x = dweight, .stream = c.stream});
  each_part(n, [&](std::int64_t first, std::int64_t width, std::int64_t at) {
    const TensorView of_part = dy.column_range(first, width);
    c.kernels->rmsnorm_backward({.x = n.x.column_range(first, width),
                                 .inverse_rms = n.rms.column_range(at, n.x.rows),
                                 .weight = n.weight,
                                 .dy = of_part,
                                 .bypass = {},
                                 .dx = of_part,
                                 .dweight = dweight,
                                 .dots = n.whole > 0 ? dots : TensorView(),
                                 .width = n.whole,
                                 .stream = c.stream});
  });
}

RowNorm norm_of_q(const BlockWork& w, const AttentionWeights& weights, const QkNormKept& kept) {
  const int parts = w.qk_norm == QkNorm::head ? w.heads : 1;
  return {kept.raw_q, weights.q_norm, kept.rms.column_range(0, parts * kept.raw_q.rows), parts,
          norms_over_ranks(w) ? w.tp * kept.raw_q.cols : 0};
}
RowNorm norm_of_k(const BlockWork& w, const AttentionWeights& weights, const QkNormKept& kept) {
  const int parts = w.qk_norm == QkNorm::head ? w.kv_heads : 1;
  const std::int64_t count = parts * kept.raw_k.rows;
  return {kept.raw_k, weights.k_norm, kept.rms.column_range(kept.rms.cols - count, count), parts,
          norms_over_ranks(w) ? w.tp * kept.raw_k.cols : 0};
}
// Of [1, 2 rows]: those of q, those of k.
TensorView half_of(const TensorView& sums, int which) {
  return sums.column_range(which * sums.cols / 2, sums.cols / 2);
}

}  // namespace

void qk_sums_forward(const BlockContext& c, const BlockWork&, const QkNormForward& u) {
  for (const auto& [x, which] : {std::pair{u.norms.raw_q, 0}, {u.norms.raw_k, 1}})
    c.kernels->row_dots({.a = x, .b = x, .out = half_of(u.norms.rms, which), .stream = c.stream});
}

void qk_norm_forward(const BlockContext& c, const BlockWork& w, const QkNormForward& u) {
  const TensorView k = keys_of(w, u.kv);
  row_norm_forward(c, norm_of_q(w, u.weights, u.norms), u.q);
  row_norm_forward(c, norm_of_k(w, u.weights, u.norms), k);
  turn(c, w, u.q, k, Rotation::forward);
}

void qk_sums_backward(const BlockContext& c, const BlockWork& w, const QkNormBackward& u) {
  c.kernels->row_dots({.a = u.q, .b = u.dq, .out = half_of(u.sums, 0), .stream = c.stream});
  c.kernels->row_dots(
      {.a = keys_of(w, u.kv), .b = keys_of(w, u.dkv), .out = half_of(u.sums, 1), .stream = c.stream});
}

void qk_norm_backward(const BlockContext& c, const BlockWork& w, const QkNormBackward& u) {
  const TensorView dk = keys_of(w, u.dkv);
  const bool sums = present(u.sums);
  turn(c, w, u.dq, dk, Rotation::inverse);
  row_norm_backward(c, norm_of_q(w, u.weights, u.norms), u.dq, sums ? half_of(u.sums, 0) : TensorView(),
                    u.gradients.q_norm, u.stale);
  row_norm_backward(c, norm_of_k(w, u.weights, u.norms), dk, sums ? half_of(u.sums, 1) : TensorView(),
                    u.gradients.k_norm, u.stale);
}

}  // namespace sextant

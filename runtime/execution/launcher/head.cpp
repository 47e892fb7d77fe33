// The model's head: logits, loss and both of its gradients, in chunks of rows.
#include <algorithm>
#include <cstdint>

#include "runtime/execution/launcher/launcher.hpp"

namespace sextant {

void StepLauncher::head(const Op& op, const BlockWork& w, StreamId stream) {
  if (w.pass == Pass::backward_weight) return head_backward_half(op, w, stream);
  const TensorSet kept(loss_tensors(w), find(op, OperandUse::loss).data);
  const TensorSet scratch(workspace_tensors(w, head_chunk(w)), head_scratch_);
  HeadUnit u;
  u.weight = weight(find(op, OperandUse::parameter), w.dtype, w.vocab, w.hidden);
  u.normed = normed_of(op, w);
  u.targets = exchange_.targets(op.microbatch);
  u.first_id = std::int64_t{w.vocab} * at_.tp;
  u.vocab = graph_.model.vocab_size;
  u.logits = scratch["logits"];
  if (w.normalized) u.inverse = scratch["inverse"];
  if (!backward(w.pass)) {
    if (head_in_one_sweep()) return;
    const TensorView stats = kept["stats"];
    return run(stream, [u, stats](const BlockContext& c) {
      head_lengths(c, u);
      head_forward(c, u, stats);
    });
  }
  if (scratch.has("dlogits")) u.dlogits = scratch["dlogits"];
  TensorView stats = kept["stats"];
  if (const Range gathered = find(op, OperandUse::stats))
    stats = TensorView(gathered.data, stats.dtype, stats.rows * graph_.plan.tp, stats.cols);
  if (part == Part::evaluate) {
    const TensorView softmax = kept["softmax"];
    return run(stream, [this, u, stats, softmax](const BlockContext& c) {
      head_loss(c, u.targets, stats, softmax, exchange_.loss());
    });
  }
  const HeadBackward to{stats, kept["softmax"], full(find(op, OperandUse::dx), w)};
  if (w.pass == Pass::backward_input) return head_backward_input(u, to, kept["dlogits"], stream);
  const auto ranges = gradients(op);
  const TensorView dweight = weight(ranges.at(0), accumulator_of(w.dtype), w.vocab, w.hidden);
  u.stale = overwrites(op);
  run(stream, [this, u, to, dweight, whole = gradient_is_whole(op)](const BlockContext& c) {
    head_lengths(c, u);
    if (head_in_one_sweep()) {
      head_fused(c, u, to.stats, to.softmax, batch.loss_scale, exchange_.loss(), to.dnormed, dweight);
    } else {
      head_loss(c, u.targets, to.stats, to.softmax, exchange_.loss());
      head_backward(c, u, to.softmax, batch.loss_scale, to.dnormed, dweight);
    }
    if (whole) head_project(c, u, dweight);
  });
}

// Logits' gradients are kept for the weight half, so each chunk gets its own place.
void StepLauncher::head_backward_input(const HeadUnit& u, const HeadBackward& to, const TensorView& dlogits,
                                       StreamId stream) {
  run(stream, [this, u, to, dlogits](const BlockContext& c) {
    head_lengths(c, u);
    head_loss(c, u.targets, to.stats, to.softmax, exchange_.loss());
    for (std::int64_t first = 0; first < u.normed.rows; first += u.logits.rows) {
      const std::int64_t rows = std::min(u.logits.rows, u.normed.rows - first);
      HeadUnit chunk = u;
      chunk.normed = u.normed.row_range(first, rows);
      chunk.targets = u.targets.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(rows));
      chunk.logits = u.logits.row_range(0, rows);
      chunk.dlogits = dlogits.row_range(first, rows);
      head_backward(c, chunk, to.softmax.row_range(first, rows), batch.loss_scale,
                    to.dnormed.row_range(first, rows), {});
    }
  });
}

// Whether the op adds the last of what its gradient is made of before it is reduced.
bool StepLauncher::gradient_is_whole(const Op& op) const {
  return reduces_every_microbatch(graph_.plan, rules_) ||
         op.microbatch + 1 == microbatches_of(graph_.plan, graph_.training, at_.dp);
}

void StepLauncher::head_backward_half(const Op& op, const BlockWork& w, StreamId stream) {
  const TensorView dlogits = TensorSet(loss_tensors(w), find(op, OperandUse::loss).data)["dlogits"];
  const TensorView normed = normed_of(op, w);
  const auto ranges = gradients(op);
  const TensorView dweight = weight(ranges.at(0), accumulator_of(w.dtype), w.vocab, w.hidden);
  // Of a normalized head what lies along its rows is taken out once all tokens are in, which needs the rows and their lengths.
  HeadUnit u;
  const bool projects = w.normalized && gradient_is_whole(op);
  if (projects) {
    u.weight = weight(find(op, OperandUse::parameter), w.dtype, w.vocab, w.hidden);
    u.inverse = TensorSet(workspace_tensors(w, head_chunk(w)), head_scratch_)["inverse"];
  }
  run(stream, [this, u, projects, dlogits, normed, dweight, stale = overwrites(op)](const BlockContext& c) {
    kernels_.gemm({.a = dlogits,
                   .b = normed,
                   .c = dweight,
                   .transpose_a = true,
                   .accumulate = !stale,
                   .threads = c.threads,
                   .stream = c.stream});
    if (!projects) return;
    head_lengths(c, u);
    head_project(c, u, dweight);
  });
}

}  // namespace sextant

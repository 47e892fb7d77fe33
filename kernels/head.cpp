// The head and its loss, chunk of tokens by chunk of tokens (kernels/blocks.hpp).
#include <algorithm>

#include "kernels/blocks.hpp"

namespace sextant {
namespace {

// One chunk: its rows, and the unit restricted to them.
struct Chunk {
  std::int64_t first, rows;
  TensorView normed, logits, dlogits;
  std::span<const std::int32_t> targets;
};

template <class F>
void for_each_chunk(const HeadUnit& u, F&& f) {
  SEXTANT_CHECK(u.logits.rows > 0, "head: no workspace for logits");
  for (std::int64_t first = 0; first < u.normed.rows; first += u.logits.rows) {
    const std::int64_t rows = std::min(u.logits.rows, u.normed.rows - first);
    const TensorView logits = u.logits.row_range(0, rows);
    f(Chunk{first, rows, u.normed.row_range(first, rows), logits,
            u.dlogits.data ? u.dlogits.row_range(0, rows) : logits,
            u.targets.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(rows))});
  }
}

void make_logits(const BlockContext& c, const HeadUnit& u, const Chunk& chunk) {
  c.kernels->gemm({.a = chunk.normed,
                   .b = u.weight,
                   .c = chunk.logits,
                   .transpose_b = true,
                   .threads = c.threads,
                   .stream = c.stream});
  if (u.inverse.data) c.kernels->scale_columns({.x = chunk.logits, .factors = u.inverse, .stream = c.stream});
}

void make_stats(const BlockContext& c, const HeadUnit& u, const Chunk& chunk, const TensorView& stats) {
  c.kernels->cross_entropy_stats({.logits = chunk.logits,
                                  .targets = chunk.targets,
                                  .first_id = u.first_id,
                                  .vocab = u.vocab,
                                  .stats = stats,
                                  .stream = c.stream});
}

void make_gradients(const BlockContext& c, const HeadUnit& u, const Chunk& chunk, const TensorView& softmax,
                    double scale, const TensorView& dnormed, const TensorView& dweight) {
  c.kernels->cross_entropy_gradient({.logits = chunk.logits,
                                     .softmax = softmax,
                                     .targets = chunk.targets,
                                     .first_id = u.first_id,
                                     .vocab = u.vocab,
                                     .scale = scale,
                                     .dlogits = chunk.dlogits,
                                     .stream = c.stream});
  if (u.inverse.data)
    c.kernels->scale_columns({.x = chunk.dlogits, .factors = u.inverse, .stream = c.stream});
  if (dnormed.data)
    c.kernels->gemm({.a = chunk.dlogits,
                     .b = u.weight,
                     .c = dnormed.row_range(chunk.first, chunk.rows),
                     .threads = c.threads,
                     .stream = c.stream});
  if (dweight.data)
    c.kernels->gemm({.a = chunk.dlogits,
                     .b = chunk.normed,
                     .c = dweight,
                     .transpose_a = true,
                     .accumulate = !u.stale || chunk.first > 0,
                     .threads = c.threads,
                     .stream = c.stream});
}

}  // namespace

void head_lengths(const BlockContext& c, const HeadUnit& u) {
  if (u.inverse.data) c.kernels->row_lengths({.x = u.weight, .inverse = u.inverse, .stream = c.stream});
}

void head_project(const BlockContext& c, const HeadUnit& u, const TensorView& dweight) {
  if (u.inverse.data)
    c.kernels->project_rows(
        {.weight = u.weight, .inverse = u.inverse, .dweight = dweight, .stream = c.stream});
}

void head_forward(const BlockContext& c, const HeadUnit& u, const TensorView& stats) {
  for_each_chunk(u, [&](const Chunk& chunk) {
    make_logits(c, u, chunk);
    make_stats(c, u, chunk, stats.row_range(chunk.first, chunk.rows));
  });
}

void head_loss(const BlockContext& c, std::span<const std::int32_t> targets, const TensorView& gathered_stats,
               const TensorView& softmax, double* loss) {
  c.kernels->cross_entropy_combine(
      {.stats = gathered_stats, .targets = targets, .softmax = softmax, .loss = loss, .stream = c.stream});
}

void head_backward(const BlockContext& c, const HeadUnit& u, const TensorView& softmax, double scale,
                   const TensorView& dnormed, const TensorView& dweight) {
  for_each_chunk(u, [&](const Chunk& chunk) {
    make_logits(c, u, chunk);
    make_gradients(c, u, chunk, softmax.row_range(chunk.first, chunk.rows), scale, dnormed, dweight);
  });
}

void head_fused(const BlockContext& c, const HeadUnit& u, const TensorView& stats, const TensorView& softmax,
                double scale, double* loss, const TensorView& dnormed, const TensorView& dweight) {
  for_each_chunk(u, [&](const Chunk& chunk) {
    const TensorView chunk_stats = stats.row_range(0, chunk.rows),
                     chunk_softmax = softmax.row_range(0, chunk.rows);
    make_logits(c, u, chunk);
    make_stats(c, u, chunk, chunk_stats);
    head_loss(c, chunk.targets, chunk_stats, chunk_softmax, loss);
    make_gradients(c, u, chunk, chunk_softmax, scale, dnormed, dweight);
  });
}

}  // namespace sextant

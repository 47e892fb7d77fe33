// System: the GPU's kernels over the vocabulary. Expectation: what the CPU's reference table gives, for fresh random inputs, at
// awkward extents, into poisoned outputs.
#include "tests/cuda/twin.hpp"

namespace sextant::testing {
namespace {

class CudaVocabulary : public GpuTest {};

TEST_F(CudaVocabulary, EmbeddingInSlices) {
  for (const Dtype dtype : kDtypes)
    for (const std::int64_t width : {1, 95, 128, 1300, 4108, 4109})
      for (const int tokens : {1, 7, 129, 700}) {
        if (left_out() || (tokens > 129 && width > 128)) continue;
        std::vector<std::int32_t> list(static_cast<std::size_t>(tokens));
        for (int t = 0; t < tokens; ++t) list[static_cast<std::size_t>(t)] = t % 3 == 0 ? 12 : (t * 31) % 50;
        const TwinList ids(list);
        const Twin rows(dtype, 20, width), dout(dtype, tokens, width),
            dtable(accumulator_of(dtype), 20, width);
        const Twin out = Twin::poisoned(dtype, tokens, width);
        on_both(table(), [&](const KernelTable& k, bool gpu, NativeStream s) {
          k.embedding_forward(
              {.ids = ids.on(gpu), .table = rows.on(gpu), .first_id = 7, .out = out.on(gpu), .stream = s});
          k.embedding_backward({.ids = ids.on(gpu),
                                .dout = dout.on(gpu),
                                .dtable = dtable.on(gpu),
                                .first_id = 7,
                                .stream = s});
        });
        // Additions in token order on either side: the same bits.
        out.expect_alike(0, label("embedding", dtype, tokens, width));
        dtable.expect_alike(0, label("embedding gradient", dtype, tokens, width));
      }
}

// Of which a block cannot look at all at once.
TEST_F(CudaVocabulary, EmbeddingOfAFewWordsInManyTokens) {
  std::vector<std::int32_t> list(2500);
  for (std::size_t t = 0; t < list.size(); ++t)
    list[t] = t % 1100 == 3 ? 7 : static_cast<std::int32_t>(t * t % 3);
  const TwinList ids(list);
  for (const std::int64_t width : {8, 13}) {
    const Twin dout(Dtype::bf16, std::ssize(list), width), dtable(Dtype::fp32, 9, width);
    on_both(table(), [&](const KernelTable& k, bool gpu, NativeStream s) {
      k.embedding_backward({.ids = ids.on(gpu), .dout = dout.on(gpu), .dtable = dtable.on(gpu), .stream = s});
    });
    dtable.expect_alike(0, label("embedding gradient", Dtype::bf16, std::ssize(list), width));
  }
}

// Lengths, scaled logits and the gradient of rows of a head, in any format of logits; a row of zeros among them.
TEST_F(CudaVocabulary, ANormalizedHead) {
  for (const auto& [dtype, of_logits] : {std::pair{Dtype::fp64, Dtype::fp64},
                                         {Dtype::fp32, Dtype::fp32},
                                         {Dtype::bf16, Dtype::fp32},
                                         {Dtype::bf16, Dtype::bf16}})
    for (const std::int64_t rows : {1, 7, 131})
      for (const std::int64_t cols : {1, 24, 95, 1300}) {
        if (left_out()) continue;
        const Dtype wide = accumulator_of(dtype);
        std::vector<double> values = to_doubles(Twin(dtype, rows, cols, 1.0, 0.5).on(false));
        if (rows > 1) std::fill_n(values.begin(), cols, 0.0);
        const Twin weight(dtype, rows, cols, values), logits(of_logits, 5, rows);
        const Twin inverse = Twin::poisoned(wide, 1, rows);
        const auto run = [&](const Twin& dweight, double of_the_gpu) {
          on_both(table(), [&](const KernelTable& k, bool gpu, NativeStream s) {
            k.row_lengths({.x = weight.on(gpu), .inverse = inverse.on(gpu), .stream = s});
            if (gpu && of_the_gpu != 1) k.scale({.x = inverse.on(gpu), .factor = of_the_gpu, .stream = s});
            if (rows > 1) k.zero({.x = logits.on(gpu).column_range(0, 1), .stream = s});  // as padding has it
            k.scale_columns({.x = logits.on(gpu), .factors = inverse.on(gpu), .stream = s});
            k.project_rows({.weight = weight.on(gpu),
                            .inverse = inverse.on(gpu),
                            .dweight = dweight.on(gpu),
                            .stream = s});
          });
        };
        const Twin dweight(wide, rows, cols, 1.0, 0.5), other(wide, rows, cols, 1.0, 0.5);
        run(dweight, 1);
        const std::string what =
            label("normalized head", dtype, rows, cols) + ", logits in " + std::string(name(of_logits));
        inverse.expect_alike(bound_of(wide), what);
        logits.expect_alike(bound_of(of_logits, 2), what);
        if (cols == 1) continue;  // nothing is left of such a gradient but rounding
        dweight.expect_alike(bound_of(wide, 4), what);
        run(other, 1.05);
        for (const Twin* t : {&logits, &other})
          EXPECT_GT(relative_distance(to_doubles(t->downloaded().view()), to_doubles(t->on(false))), 1e-3)
              << "control: " << what;
      }
}

TEST_F(CudaVocabulary, CrossEntropyOverVocabularySlices) {
  for (const auto& [dtype, of_logits] : {std::pair{Dtype::fp64, Dtype::fp64},
                                         {Dtype::fp32, Dtype::fp32},
                                         {Dtype::bf16, Dtype::fp32},
                                         {Dtype::bf16, Dtype::bf16}})
    for (const std::int64_t rows : {1, 7, 129})
      for (const std::int64_t slice : {1, 96, 515, 4096}) {
        if (left_out()) continue;
        const Dtype wide = accumulator_of(dtype);
        const std::int64_t vocab = 2 * slice - slice / 4;  // of two slices; the end of the second is padding
        std::vector<std::int32_t> list(static_cast<std::size_t>(rows));
        for (std::int64_t t = 0; t < rows; ++t)
          list[static_cast<std::size_t>(t)] =
              t % 5 == 3 ? kIgnoreTarget : static_cast<std::int32_t>((t * 7919) % vocab);
        const TwinList targets(list);
        const Twin logits(of_logits, rows, 2 * slice, 20.0);
        const Twin stats = Twin::poisoned(wide, 2 * rows, 3), softmax = Twin::poisoned(wide, rows, 2),
                   loss(Dtype::fp64, 1, 1);
        const Twin dlogits = Twin::poisoned(dtype, rows, 2 * slice);
        on_both(table(), [&](const KernelTable& k, bool gpu, NativeStream s) {
          for (std::int64_t r = 0; r < 2; ++r)
            k.cross_entropy_stats({.logits = logits.on(gpu).column_range(r * slice, slice),
                                   .targets = targets.on(gpu),
                                   .first_id = r * slice,
                                   .vocab = vocab,
                                   .stats = stats.on(gpu).row_range(r * rows, rows),
                                   .stream = s});
          k.cross_entropy_combine({.stats = stats.on(gpu),
                                   .targets = targets.on(gpu),
                                   .softmax = softmax.on(gpu),
                                   .loss = loss.on(gpu).row<double>(),
                                   .stream = s});
          for (std::int64_t r = 0; r < 2; ++r)
            k.cross_entropy_gradient({.logits = logits.on(gpu).column_range(r * slice, slice),
                                      .softmax = softmax.on(gpu),
                                      .targets = targets.on(gpu),
                                      .first_id = r * slice,
                                      .vocab = vocab,
                                      .scale = 0.01,
                                      .dlogits = dlogits.on(gpu).column_range(r * slice, slice),
                                      .stream = s});
        });
        const std::string what =
            label("cross entropy", dtype, rows, slice) + ", logits in " + std::string(name(of_logits));
        softmax.expect_alike(bound_of(wide, 4), what);
        loss.expect_alike(wide == Dtype::fp64 ? 1e-12 : 4e-6, what);
        dlogits.expect_alike(bound_of(dtype, 4), what);
      }
}

}  // namespace
}  // namespace sextant::testing

// System: each kernel of both CPU tables in fp64, fp32 and bf16. Expectation: forward and backward as PyTorch
// autograd gives in float64, at awkward shapes. Numbers: relative norms stated at each test; bf16 is bounded
// by its 8-bit mantissa times a small factor.
#include <zlib.h>

#include "core/graph/block_tensors.hpp"
#include "kernels/positions.hpp"
#include "tests/kernels/operator_cases.hpp"

namespace sextant::testing {
namespace {

TEST(Operators, Rmsnorm) {
  for_each_case("rmsnorm", variants(1e-13, 2e-6, kBf16), [](const OperatorCase& c) {
    const Matrix x = c.input("x"), weight = c.input("weight"), dy = c.input("dy");
    const Matrix y(c.dtype(), x.view().rows, x.view().cols), again(c.dtype(), x.view().rows, x.view().cols);
    const Matrix inverse(c.accumulator(), 1, x.view().rows);
    const KernelTable& k = *c.variant().table;
    k.rmsnorm_forward({.x = x.view(),
                       .weight = weight.view(),
                       .y = y.view(),
                       .inverse_rms = inverse.view(),
                       .eps = c.parameter<double>("eps")});
    c.expect_near(y.view(), "y");
    k.rmsnorm_apply(
        {.x = x.view(), .inverse_rms = inverse.view(), .weight = weight.view(), .y = again.view()});
    EXPECT_EQ(to_doubles(again.view()), to_doubles(y.view())) << c.label();

    const Matrix dx(c.dtype(), x.view().rows, x.view().cols), dweight(c.accumulator(), 1, x.view().cols);
    k.rmsnorm_backward({.x = x.view(),
                        .inverse_rms = inverse.view(),
                        .weight = weight.view(),
                        .dy = dy.view(),
                        .bypass = {},
                        .dx = dx.view(),
                        .dweight = dweight.view()});
    c.expect_near(dx.view(), "dx");
    c.expect_near(dweight.view(), "dweight");

    // In place over dy, with a bypass: the same numbers plus the bypass.
    const Matrix bypass = c.input("x");
    k.rmsnorm_backward({.x = x.view(),
                        .inverse_rms = inverse.view(),
                        .weight = weight.view(),
                        .dy = dy.view(),
                        .bypass = bypass.view(),
                        .dx = dy.view(),
                        .dweight = dweight.view()});
    std::vector<double> sum = c.values("dx");
    const std::vector<double> added = c.values("x");
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += added[i];
    EXPECT_LT(relative_distance(to_doubles(dy.view()), sum), c.variant().bound) << c.label();
  });
}

// Rows of which two ranks have a part each: sums of squares, and of y dy, added up between them. Expectation: what the norm of
// whole rows gives.
TEST(Operators, RmsnormOfRowsOnTwoRanks) {
  for_each_case("rmsnorm", variants(1e-13, 2e-6, kBf16), [](const OperatorCase& c) {
    const Matrix x = c.input("x"), weight = c.input("weight"), dy = c.input("dy");
    const std::int64_t rows = x.view().rows, cols = x.view().cols, first = cols / 3;
    if (first == 0) return;
    const Matrix y(c.dtype(), rows, cols), dx(c.dtype(), rows, cols), dweight(c.accumulator(), 1, cols);
    const Matrix part(c.accumulator(), 2, rows), sums(c.accumulator(), 1, rows),
        dots(c.accumulator(), 1, rows);
    const KernelTable& k = *c.variant().table;
    const auto of = [&](const Matrix& m, int rank) {
      return rank == 0 ? m.view().column_range(0, first) : m.view().column_range(first, cols - first);
    };
    const auto add_up = [&](const Matrix& a, const Matrix& b, const Matrix& out) {
      k.zero({.x = out.view()});
      for (const int rank : {0, 1}) {
        k.row_dots({.a = of(a, rank), .b = of(b, rank), .out = part.view().row_range(rank, 1)});
        k.accumulate({.source = part.view().row_range(rank, 1), .destination = out.view()});
      }
    };
    add_up(x, x, sums);
    k.inverse_rms({.x = sums.view(), .width = cols, .eps = c.parameter<double>("eps")});
    for (const int rank : {0, 1})
      k.rmsnorm_apply(
          {.x = of(x, rank), .inverse_rms = sums.view(), .weight = of(weight, rank), .y = of(y, rank)});
    c.expect_near(y.view(), "y");
    add_up(y, dy, dots);
    for (const int rank : {0, 1})
      k.rmsnorm_backward({.x = of(x, rank),
                          .inverse_rms = sums.view(),
                          .weight = of(weight, rank),
                          .dy = of(dy, rank),
                          .bypass = {},
                          .dx = of(dx, rank),
                          .dweight = of(dweight, rank),
                          .dots = dots.view(),
                          .width = cols});
    c.expect_near(dx.view(), "dx");
    c.expect_near(dweight.view(), "dweight");
    k.rmsnorm_backward({.x = of(x, 0),
                        .inverse_rms = sums.view(),
                        .weight = of(weight, 0),
                        .dy = of(dy, 0),
                        .bypass = {},
                        .dx = of(dx, 0),
                        .dweight = of(dweight, 0)});
    EXPECT_GT(relative_distance(to_doubles(dx.view()), c.values("dx")), c.variant().bound)
        << "control: of its own part alone";
  });
}

TEST(Operators, Rope) {
  for_each_case("rope", variants(1e-12, 1e-5, kBf16), [](const OperatorCase& c) {
    ModelSpec model;
    model.head_dim = c.parameter<int>("head_dim");
    model.rope_theta = c.parameter<double>("theta");
    if (!c.null("scaling")) {
      const auto s = c.parameter<std::vector<double>>("scaling");
      model.rope_scaling = RopeScaling{"llama3", s[0], s[1], s[2], static_cast<int>(s[3])};
    }
    const RopeTable table(model, 8192, c.accumulator());
    const std::vector<std::int32_t> positions = c.integers("positions");
    const Matrix x = c.input("x"), dy = c.input("dy");
    RopeArgs args{.x = x.view(),
                  .cos = table.cos(),
                  .sin = table.sin(),
                  .heads = c.parameter<int>("heads"),
                  .head_dim = model.head_dim,
                  .positions = positions};
    c.variant().table->rope(args);
    c.expect_near(x.view(), "y");
    args.x = dy.view();
    args.inverse = true;
    c.variant().table->rope(args);
    c.expect_near(dy.view(), "dx");
  });
}

// System: rotary embedding with linear scaling, of heads of d numbers at position p. Expectation, in fp64: the pair (i, i + d/2)
// turns by p / factor * theta^(-2i/d), and its gradient back by as much.
TEST(Operators, RopeWithLinearScaling) {
  constexpr int kHeads = 2, kDim = 8, kHalf = kDim / 2;
  const std::vector<std::int32_t> positions = {0, 1, 7, 100, 4095};
  ModelSpec model;
  model.head_dim = kDim;
  model.rope_theta = 10000;
  for (const double factor : {1.0, 2.5, 8.0})
    for (const Dtype dtype : {Dtype::fp64, Dtype::fp32})
      for (const KernelTable* kernels : {&cpu_reference_kernels(), &cpu_kernels()}) {
        model.rope_scaling = RopeScaling{.type = "linear", .factor = factor};
        const RopeTable table(model, 4096, dtype);
        const auto rows = static_cast<std::int64_t>(positions.size());
        std::vector<double> x(static_cast<std::size_t>(rows) * kHeads * kDim);
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<double>(i) + 0.3);
        for (const bool inverse : {false, true}) {
          const Matrix m(dtype, rows, kHeads * kDim, x);
          kernels->rope({.x = m.view(),
                         .cos = table.cos(),
                         .sin = table.sin(),
                         .heads = kHeads,
                         .head_dim = kDim,
                         .positions = positions,
                         .inverse = inverse});
          std::vector<double> expected(x.size());
          for (std::size_t r = 0; r < positions.size(); ++r)
            for (std::size_t h = 0; h < kHeads; ++h)
              for (std::size_t i = 0; i < kHalf; ++i) {
                const double angle = (inverse ? -1 : 1) * positions[r] / factor *
                                     std::pow(10000.0, -2.0 * static_cast<double>(i) / kDim);
                const std::size_t a = (r * kHeads + h) * kDim + i, b = a + kHalf;
                expected[a] = x[a] * std::cos(angle) - x[b] * std::sin(angle);
                expected[b] = x[b] * std::cos(angle) + x[a] * std::sin(angle);
              }
          EXPECT_LT(relative_distance(to_doubles(m.view()), expected), dtype == Dtype::fp64 ? 1e-12 : 1e-6)
              << factor;
        }
      }
}

// longrope by hand: each pair's frequency over a number of its own, of the second table beyond the first training's length, and
// cosines as long as is stated, or as the ratio of both lengths makes them.
TEST(Operators, LongropeTakesATableByTheSequencesLength) {
  ModelSpec model;
  model.head_dim = 4;
  model.rope_theta = 100;
  model.rope_scaling = RopeScaling{.type = "longrope", .factor = 16, .original_max_positions = 8};
  model.rope_scaling->short_factor = {1, 2};
  model.rope_scaling->long_factor = {4, 5};
  EXPECT_EQ(rope_frequencies(model, 8), (std::vector<double>{1.0, std::pow(100.0, -0.5) / 2}));
  EXPECT_EQ(rope_frequencies(model, 9), (std::vector<double>{1.0 / 4, std::pow(100.0, -0.5) / 5}));
  EXPECT_NEAR(rope_magnitude(model), std::sqrt(1 + 4.0 / 3), 1e-15) << "log2 of 16 over log2 of 8";
  model.rope_scaling->attention_factor = 1.25;
  EXPECT_EQ(rope_magnitude(model), 1.25);
  model.rope_scaling->long_factor.clear();
  EXPECT_THROW(rope_frequencies(model, 9), ConfigError);
}

TEST(Operators, Swiglu) {
  for_each_case("swiglu", variants(1e-13, 2e-6, kBf16), [](const OperatorCase& c) {
    const Matrix gate = c.input("gate"), up = c.input("up"), dout = c.input("dout");
    const Matrix out(c.dtype(), gate.view().rows, gate.view().cols);
    c.variant().table->swiglu_forward({.gate = gate.view(), .up = up.view(), .out = out.view()});
    c.expect_near(out.view(), "out");
    c.variant().table->swiglu_backward({.gate = gate.view(), .up = up.view(), .dout = dout.view()});
    c.expect_near(gate.view(), "dgate", 2.0);
    c.expect_near(up.view(), "dup");
    EXPECT_EQ(to_doubles(dout.view()), to_doubles(out.view())) << c.label();
  });
}

TEST(Operators, LinearWithAccumulatedWeightGradient) {
  for_each_case("linear", variants(1e-13, 2e-6, kBf16), [](const OperatorCase& c) {
    const Matrix x = c.input("x"), weight = c.input("weight"), dy = c.input("dy");
    const Matrix dweight = c.statistic("before");
    const Matrix y(c.dtype(), dy.view().rows, dy.view().cols), dx(c.dtype(), x.view().rows, x.view().cols);
    const KernelTable& k = *c.variant().table;
    k.gemm({.a = x.view(), .b = weight.view(), .c = y.view(), .transpose_b = true});
    k.gemm({.a = dy.view(), .b = weight.view(), .c = dx.view()});
    k.gemm({.a = dy.view(), .b = x.view(), .c = dweight.view(), .transpose_a = true, .accumulate = true});
    c.expect_near(y.view(), "y");
    c.expect_near(dx.view(), "dx");
    c.expect_near(dweight.view(), "dweight");
  });
}

TEST(Operators, EmbeddingInSlices) {
  for_each_case("embedding", variants(1e-15, 1e-6, kBf16), [](const OperatorCase& c) {
    const Matrix table = c.input("table"), dout = c.input("dout");
    const std::vector<std::int32_t> ids = c.integers("ids");
    const std::int64_t vocab = table.view().rows, width = table.view().cols;
    for (const std::int64_t slices : {1, 2, 4}) {
      const Matrix sum(c.dtype(), dout.view().rows, width), rows(c.dtype(), dout.view().rows, width);
      const Matrix dtable(c.accumulator(), vocab, width);
      for (std::int64_t s = 0; s < slices; ++s) {
        const std::int64_t first = s * vocab / slices, count = (s + 1) * vocab / slices - first;
        c.variant().table->embedding_forward({.ids = ids,
                                              .table = table.view().row_range(first, count),
                                              .first_id = first,
                                              .out = rows.view()});
        c.variant().table->add({.a = sum.view(), .b = rows.view(), .out = sum.view()});
        c.variant().table->embedding_backward({.ids = ids,
                                               .dout = dout.view(),
                                               .dtable = dtable.view().row_range(first, count),
                                               .first_id = first});
      }
      c.expect_near(sum.view(), "out");
      c.expect_near(dtable.view(), "dtable");
    }
  });
}

TEST(Operators, CrossEntropyOverVocabularySlices) {
  for_each_case("cross_entropy", variants(1e-12, 2e-6, kBf16), [](const OperatorCase& c) {
    const Matrix logits = c.statistic("logits");
    const std::vector<std::int32_t> targets = c.integers("targets");
    const std::int64_t tokens = logits.view().rows, padded = logits.view().cols;
    const auto vocab = c.parameter<std::int64_t>("vocab");
    const KernelTable& k = *c.variant().table;
    for (const std::int64_t ranks : {1, 2, 4, 8}) {
      const auto first = [&](std::int64_t r) { return r * padded / ranks; };
      const Matrix stats(c.accumulator(), ranks * tokens, 3), softmax(c.accumulator(), tokens, 2);
      for (std::int64_t r = 0; r < ranks; ++r)
        k.cross_entropy_stats({.logits = logits.view().column_range(first(r), first(r + 1) - first(r)),
                               .targets = targets,
                               .first_id = first(r),
                               .vocab = vocab,
                               .stats = stats.view().row_range(r * tokens, tokens)});
      double loss = 0;
      k.cross_entropy_combine(
          {.stats = stats.view(), .targets = targets, .softmax = softmax.view(), .loss = &loss});
      EXPECT_LT(relative_distance(std::vector{loss}, c.values("loss")),
                c.dtype() == Dtype::fp64 ? 1e-12 : 2e-6)
          << c.label() << " ranks " << ranks;
      const Matrix dlogits(c.dtype(), tokens, padded);
      for (std::int64_t r = 0; r < ranks; ++r)
        k.cross_entropy_gradient({.logits = logits.view().column_range(first(r), first(r + 1) - first(r)),
                                  .softmax = softmax.view(),
                                  .targets = targets,
                                  .first_id = first(r),
                                  .vocab = vocab,
                                  .scale = c.parameter<double>("scale"),
                                  .dlogits = dlogits.view().column_range(first(r), first(r + 1) - first(r))});
      c.expect_near(dlogits.view(), "dlogits");
    }
  });
}

TEST(Operators, AdamwTwentySteps) {
  for_each_case("adamw", {{&cpu_kernels(), Dtype::fp64, 1e-14}, {&cpu_kernels(), Dtype::fp32, 1e-6}},
                [](const OperatorCase& c) {
                  const Matrix master = c.input("start"), gradients = c.input("gradients");
                  const std::int64_t n = master.view().cols;
                  const Matrix m(c.dtype(), 1, n), v(c.dtype(), 1, n);
                  const ElementRange all{0, n};
                  for (int step = 0; step < 20; ++step) {
                    const AdamwScalars scalars = scalars_of({.rate = c.parameter<double>("rate"),
                                                             .weight_decay = c.parameter<double>("decay"),
                                                             .correction1 = 1 - std::pow(0.9, step + 1),
                                                             .correction2 = 1 - std::pow(0.95, step + 1)});
                    c.variant().table->adamw({.master = master.view(),
                                              .moment1 = m.view(),
                                              .moment2 = v.view(),
                                              .gradient = gradients.view().row_range(step, 1),
                                              .parameter = master.view(),
                                              .decay = {&all, 1},
                                              .scalars = &scalars});
                  }
                  c.expect_near(master.view(), "parameter");
                  c.expect_near(m.view(), "moment1");
                  c.expect_near(v.view(), "moment2");
                });
}

// Negative control: the comparison sees one tensor rolled by one element, in every fixture and format.
TEST(OperatorsControl, RolledTensorIsSeen) {
  for_each_case("attention", variants(1e-12, 5e-6, 2 * kBf16), [](const OperatorCase& c) {
    std::vector<double> rolled = c.values("out");
    std::rotate(rolled.begin(), rolled.begin() + 1, rolled.end());
    EXPECT_GT(relative_distance(rolled, c.values("out")), c.variant().bound) << c.label();
  });
}

// The committed files are those that the generator's manifest names.
TEST(OperatorsControl, ManifestMatchesFiles) {
  std::ifstream stream(operator_folder() / "manifest.json");
  const auto manifest = nlohmann::json::parse(stream);
  ASSERT_EQ(manifest.at("files").size(), 8u);
  for (const auto& [name, entry] : manifest.at("files").items()) {
    std::ifstream file(operator_folder() / name, std::ios::binary);
    const std::string raw((std::istreambuf_iterator<char>(file)), {});
    EXPECT_EQ(raw.size(), entry.at("bytes").get<std::size_t>()) << name;
    EXPECT_EQ(crc32(0, reinterpret_cast<const Bytef*>(raw.data()), static_cast<uInt>(raw.size())),
              entry.at("crc32").get<unsigned long>())
        << name;
  }
}

}  // namespace
}  // namespace sextant::testing

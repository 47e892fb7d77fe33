// System: each kernel of both CPU tables in fp64, fp32 and bf16. Expectation: forward and backward as PyTorch
// autograd gives in float64, at awkward shapes. Numbers: relative norms stated at each test; bf16 is bounded
// by its 8-bit mantissa times a small factor.
#include <zlib.h>

#include "core/graph/block_tensors.hpp"
#include "kernels/positions.hpp"
#include "tests/kernels/operator_cases.hpp"

namespace sextant::testing {
namespace {

constexpr double kBf16 = 1.0 / 128;

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
    args.x = dy.view(), args.inverse = true;
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
  model.head_dim = kDim, model.rope_theta = 10000;
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

// Forward and backward over any choice of query rows and any order of keys.
struct AttentionRun {
  Matrix out, lse, dq, dk, dv;
  AttentionRun(const KernelTable& table, const AttentionShape& shape, const TensorView& q,
               const TensorView& k, const TensorView& v, const TensorView& dout)
      : out(q.dtype, q.rows, q.cols),
        lse(accumulator_of(q.dtype), q.rows, shape.heads),
        dq(q.dtype, q.rows, q.cols),
        dk(q.dtype, k.rows, k.cols),
        dv(q.dtype, k.rows, k.cols) {
    table.attention_forward({.shape = shape, .q = q, .k = k, .v = v, .out = out.view(), .lse = lse.view()});
    const Matrix workspace(
        accumulator_of(q.dtype), 1,
        attention_core_elements(shape.seq_q(), shape.heads, shape.kv_heads, shape.head_dim));
    table.attention_backward({.shape = shape,
                              .q = q,
                              .k = k,
                              .v = v,
                              .out = out.view(),
                              .lse = lse.view(),
                              .dout = dout,
                              .dq = dq.view(),
                              .dk = dk.view(),
                              .dv = dv.view(),
                              .workspace = workspace.view()});
  }
};

AttentionShape shape_of(const OperatorCase& c, const std::vector<std::int32_t>& q,
                        const std::vector<std::int32_t>& k) {
  AttentionShape s;
  s.batch = c.parameter<int>("batch"), s.head_dim = c.parameter<int>("head_dim");
  s.heads = c.parameter<int>("heads"), s.kv_heads = c.parameter<int>("kv_heads");
  s.q_positions = q, s.k_positions = k;
  s.scale = 1.0 / std::sqrt(static_cast<double>(s.head_dim));
  return s;
}

TEST(Operators, Attention) {
  for_each_case("attention", variants(1e-12, 5e-6, 2 * kBf16), [](const OperatorCase& c) {
    const std::vector<std::int32_t> positions = context_positions(c.parameter<int>("seq"), 1, 0);
    const AttentionShape s = shape_of(c, positions, positions);
    const std::int64_t d = s.head_dim, q_cols = s.heads * d, k_cols = s.kv_heads * d;
    const Matrix q = c.input("q", q_cols), dout = c.input("dout", q_cols);
    // Keys and values as they stand in the runtime: side by side in one row.
    const Matrix kv(c.dtype(), s.batch * s.seq_k(), 2 * k_cols);
    const TensorView k = kv.view().column_range(0, k_cols), v = kv.view().column_range(k_cols, k_cols);
    c.variant().table->cast({.source = c.input("k", k_cols).view(), .destination = k});
    c.variant().table->cast({.source = c.input("v", k_cols).view(), .destination = v});
    const AttentionRun run(*c.variant().table, s, q.view(), k, v, dout.view());
    c.expect_near(run.out.view(), "out");
    c.expect_near(run.lse.view(), "lse");
    // One key alone: dq and dk are zero but for rounding, a relative distance says nothing there.
    if (s.seq_k() > 1) {
      c.expect_near(run.dq.view(), "dq");
      c.expect_near(run.dk.view(), "dk");
    }
    c.expect_near(run.dv.view(), "dv");
  });
}

// Context parallelism: queries of one rank against keys gathered rank after rank. Every rank's rows are those
// of the whole sequence, and the ranks' dk and dv add up to the whole's.
TEST(Operators, AttentionOfAContextParallelRank) {
  for_each_case(
      "attention", {{&cpu_kernels(), Dtype::fp64, 1e-12}, {&cpu_kernels(), Dtype::fp32, 5e-6}},
      [](const OperatorCase& c) {
        const int seq = c.parameter<int>("seq"), batch = c.parameter<int>("batch");
        for (const int cp : {2, 5}) {
          if (seq % (2 * cp) != 0) continue;
          const std::vector<std::int32_t> k_positions = gathered_positions(seq, cp);
          const std::int64_t d = c.parameter<int>("head_dim");
          const std::int64_t q_cols = c.parameter<int>("heads") * d,
                             k_cols = c.parameter<int>("kv_heads") * d;
          const Matrix q = c.input("q", q_cols), k = c.input("k", k_cols), v = c.input("v", k_cols);
          const Matrix dout = c.input("dout", q_cols);
          const auto copy = [&](const TensorView& from, std::int64_t i, const TensorView& to,
                                std::int64_t j) {
            c.variant().table->cast({.source = from.row_range(i, 1), .destination = to.row_range(j, 1)});
          };
          const int per = seq / cp;
          const Matrix gathered_k(c.dtype(), batch * seq, k_cols), gathered_v(c.dtype(), batch * seq, k_cols);
          for (int r = 0; r < cp; ++r)
            for (int b = 0; b < batch; ++b)
              for (int i = 0; i < per; ++i) {
                const std::int64_t from = b * seq + k_positions[static_cast<std::size_t>(r * per + i)];
                const std::int64_t to = (r * batch + b) * per + i;
                copy(k.view(), from, gathered_k.view(), to), copy(v.view(), from, gathered_v.view(), to);
              }
          const Matrix out(c.dtype(), batch * seq, q_cols), dq(c.dtype(), batch * seq, q_cols);
          const Matrix dk_sum(c.accumulator(), batch * seq, k_cols),
              dv_sum(c.accumulator(), batch * seq, k_cols);
          for (int r = 0; r < cp; ++r) {
            const std::vector<std::int32_t> own = context_positions(seq, cp, r);
            AttentionShape s = shape_of(c, own, k_positions);
            s.segments = cp;
            const Matrix own_q(c.dtype(), batch * per, q_cols), own_dout(c.dtype(), batch * per, q_cols);
            for (int b = 0; b < batch; ++b)
              for (int i = 0; i < per; ++i) {
                const std::int64_t from = b * seq + own[static_cast<std::size_t>(i)];
                copy(q.view(), from, own_q.view(), b * per + i),
                    copy(dout.view(), from, own_dout.view(), b * per + i);
              }
            const AttentionRun run(*c.variant().table, s, own_q.view(), gathered_k.view(), gathered_v.view(),
                                   own_dout.view());
            for (int b = 0; b < batch; ++b)
              for (int i = 0; i < per; ++i) {
                const std::int64_t to = b * seq + own[static_cast<std::size_t>(i)];
                copy(run.out.view(), b * per + i, out.view(), to),
                    copy(run.dq.view(), b * per + i, dq.view(), to);
              }
            c.variant().table->accumulate({.source = run.dk.view(), .destination = dk_sum.view()});
            c.variant().table->accumulate({.source = run.dv.view(), .destination = dv_sum.view()});
          }
          const Matrix dk(c.dtype(), batch * seq, k_cols), dv(c.dtype(), batch * seq, k_cols);
          for (int r = 0; r < cp; ++r)
            for (int b = 0; b < batch; ++b)
              for (int i = 0; i < per; ++i) {
                const std::int64_t to = b * seq + k_positions[static_cast<std::size_t>(r * per + i)];
                const std::int64_t from = (r * batch + b) * per + i;
                copy(dk_sum.view(), from, dk.view(), to), copy(dv_sum.view(), from, dv.view(), to);
              }
          c.expect_near(out.view(), "out");
          c.expect_near(dq.view(), "dq");
          c.expect_near(dk.view(), "dk");
          c.expect_near(dv.view(), "dv");
        }
      });
}

// Documents that share a sequence: what comes out of each is what the document alone gives, in both sequences of a batch.
TEST(Operators, AttentionKeepsDocumentsApart) {
  constexpr int kSeq = 150, kHeads = 4, kKvHeads = 2, kDim = 8;  // three tiles
  const std::vector<std::vector<std::int32_t>> begins = {{0, 1, 70, 128}, {0, 64, 149}};
  std::vector<std::int32_t> documents;
  for (const auto& list : begins)
    for (std::int32_t p = 0; p < kSeq; ++p) documents.push_back(*(std::ranges::upper_bound(list, p) - 1));
  for (const Variant& v : variants(1e-12, 5e-6, 2 * kBf16)) {
    const auto wave = [&](int heads, double pitch) {
      std::vector<double> values(static_cast<std::size_t>(2 * kSeq * heads * kDim));
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = std::sin(pitch * static_cast<double>(i * i % 9973));
      return Matrix(v.dtype, 2 * kSeq, heads * kDim, values);
    };
    const Matrix q = wave(kHeads, 0.7), dout = wave(kHeads, 1.3), key = wave(kKvHeads, 1.9),
                 value = wave(kKvHeads, 2.3);
    const std::vector<std::int32_t> positions = context_positions(kSeq, 1, 0);
    AttentionShape s;
    s.heads = kHeads, s.kv_heads = kKvHeads, s.head_dim = kDim, s.scale = 1 / std::sqrt(8.0);
    s.batch = 2, s.q_positions = s.k_positions = positions;
    const AttentionRun across(*v.table, s, q.view(), key.view(), value.view(), dout.view());
    s.q_documents = documents;
    const AttentionRun apart(*v.table, s, q.view(), key.view(), value.view(), dout.view());

    const AttentionRun expected(*v.table, s, q.view(), key.view(), value.view(), dout.view());
    s.batch = 1, s.q_documents = {};
    for (std::size_t b = 0; b < begins.size(); ++b)
      for (std::size_t d = 0; d < begins[b].size(); ++d) {
        const std::int64_t begin = begins[b][d];
        const std::int64_t rows = (d + 1 < begins[b].size() ? begins[b][d + 1] : kSeq) - begin;
        s.q_positions = s.k_positions = std::span(positions).first(static_cast<std::size_t>(rows));
        const auto of = [&](const Matrix& m) {
          return m.view().row_range(static_cast<std::int64_t>(b) * kSeq + begin, rows);
        };
        const AttentionRun alone(*v.table, s, of(q), of(key), of(value), of(dout));
        for (const auto& [from, to] : {std::pair{&alone.out, &expected.out},
                                       {&alone.lse, &expected.lse},
                                       {&alone.dq, &expected.dq},
                                       {&alone.dk, &expected.dk},
                                       {&alone.dv, &expected.dv}})
          v.table->cast({.source = from->view(), .destination = of(*to)});
      }
    for (const auto& [got, mixed, want] : {std::tuple{&apart.out, &across.out, &expected.out},
                                           {&apart.lse, &across.lse, &expected.lse},
                                           {&apart.dq, &across.dq, &expected.dq},
                                           {&apart.dk, &across.dk, &expected.dk},
                                           {&apart.dv, &across.dv, &expected.dv}}) {
      const std::vector<double> alone = to_doubles(want->view());
      EXPECT_LT(relative_distance(to_doubles(got->view()), alone), v.bound) << v.table->name;
      EXPECT_GT(relative_distance(to_doubles(mixed->view()), alone), 0.05) << "control: without the mask";
    }
  }
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

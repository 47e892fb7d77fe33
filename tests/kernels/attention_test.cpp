// System: attention of both CPU tables in fp64, fp32 and bf16. Expectation: forward and backward as PyTorch autograd gives in
// float64, at awkward shapes; of a context-parallel rank and of documents apart as of the whole. Numbers: as in
// operators_test.cpp.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/graph/block_tensors.hpp"
#include "kernels/positions.hpp"
#include "tests/kernels/operator_cases.hpp"

namespace sextant::testing {
namespace {

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
  s.batch = c.parameter<int>("batch");
  s.head_dim = c.parameter<int>("head_dim");
  s.heads = c.parameter<int>("heads");
  s.kv_heads = c.parameter<int>("kv_heads");
  s.q_positions = q;
  s.k_positions = k;
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
// NOLINTNEXTLINE(readability-function-size): rows to ranks and back, for each rank in turn
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
                copy(k.view(), from, gathered_k.view(), to);
                copy(v.view(), from, gathered_v.view(), to);
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
                copy(q.view(), from, own_q.view(), b * per + i);
                copy(dout.view(), from, own_dout.view(), b * per + i);
              }
            const AttentionRun run(*c.variant().table, s, own_q.view(), gathered_k.view(), gathered_v.view(),
                                   own_dout.view());
            for (int b = 0; b < batch; ++b)
              for (int i = 0; i < per; ++i) {
                const std::int64_t to = b * seq + own[static_cast<std::size_t>(i)];
                copy(run.out.view(), b * per + i, out.view(), to);
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
                copy(dk_sum.view(), from, dk.view(), to);
                copy(dv_sum.view(), from, dv.view(), to);
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
    s.heads = kHeads;
    s.kv_heads = kKvHeads;
    s.head_dim = kDim;
    s.scale = 1 / std::sqrt(8.0);
    s.batch = 2;
    s.q_positions = s.k_positions = positions;
    const AttentionRun across(*v.table, s, q.view(), key.view(), value.view(), dout.view());
    s.q_documents = documents;
    const AttentionRun apart(*v.table, s, q.view(), key.view(), value.view(), dout.view());

    const AttentionRun expected(*v.table, s, q.view(), key.view(), value.view(), dout.view());
    s.batch = 1;
    s.q_documents = {};
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

}  // namespace
}  // namespace sextant::testing

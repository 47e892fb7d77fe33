// System: products and attention in bf16, each taken apart and measured against fp64 of the same inputs. Expectation: a result
// is away by what its formats round, and by no more:
//   a product into bf16: one rounding, at most 2^-9 of every element; into fp32: k roundings of at most 2^-23 (tensor cores cut
//   off) of sums that are no longer than what they end as;
//   attention: at most twice what fp64 arithmetic is away that rounds at the same places (library_roundings.hpp).
// Controls: the same results with 1 % more of them are too far. The distances are in the report (--gtest_output): "distance ...".
#include <cmath>
#include <string>

#include <fmt/format.h>

#include "core/graph/block_tensors.hpp"
#include "kernels/positions.hpp"
#include "tests/cuda/library_roundings.hpp"
#include "tests/cuda/twin.hpp"

namespace sextant::testing {
namespace {

class CudaRoundings : public GpuTest {
 protected:
  void expect(const std::string& what, std::vector<double> got, const std::vector<double>& exact,
              double bound) {
    const double distance = relative_distance(got, exact);
    RecordProperty("distance " + what, fmt::format("{:.2e} of {:.2e}", distance, bound));
    EXPECT_LE(distance, bound) << what;
    for (double& x : got) x *= 1.01;
    EXPECT_GT(relative_distance(got, exact), bound) << what << ", control";
  }

  void products(bool reference) {
    struct Extent {
      std::int64_t m, n, k;
    };
    for (const Extent e : {Extent{256, 96, 64}, {64, 96, 1024}})
      for (const Dtype into : {Dtype::bf16, Dtype::fp32})
        for (const int form : {0, 1, 2}) {  // of a layer: forward, input's gradient, weight's gradient
          const bool ta = form == 2, tb = form == 0;
          const Twin a(Dtype::bf16, ta ? e.k : e.m, ta ? e.m : e.k),
              b(Dtype::bf16, tb ? e.n : e.k, tb ? e.k : e.n);
          const Twin c = Twin::poisoned(into, e.m, e.n);
          test_gpu()->launch(test_stream(), [&](NativeStream s) {
            cuda_kernels(reference ? KernelSet::reference : KernelSet::fast)
                ->gemm({.a = a.on(true),
                        .b = b.on(true),
                        .c = c.on(true),
                        .transpose_a = ta,
                        .transpose_b = tb,
                        .stream = s});
          });
          synchronize_gpu();
          const Matrix left(Dtype::fp64, a.on(false).rows, a.on(false).cols, to_doubles(a.on(false))),
              right(Dtype::fp64, b.on(false).rows, b.on(false).cols, to_doubles(b.on(false))),
              exact(Dtype::fp64, e.m, e.n);
          cpu_reference_kernels().gemm(
              {.a = left.view(), .b = right.view(), .c = exact.view(), .transpose_a = ta, .transpose_b = tb});
          const double sums = static_cast<double>(e.k) * 0x1p-23;
          expect(fmt::format("product {}x{}x{} form {} into {}{}", e.m, e.n, e.k, form, name(into),
                             reference ? ", tiles" : ""),
                 to_doubles(c.downloaded().view()), to_doubles(exact.view()),
                 into == Dtype::bf16 ? 0x1p-9 + sums : sums);
        }
  }

  struct Attention {
    int batch, heads, kv_heads, d, seq, window = 0;
    bool alibi = false;
    std::int64_t rows() const { return std::int64_t{batch} * seq; }
  };
  // Results of one way to compute it; in fp64 where nothing of them is to be rounded.
  struct Results {
    Results(Dtype dtype, const Attention& c)
        : out(dtype, c.rows(), c.heads * c.d),
          lse(accumulator_of(dtype), c.rows(), c.heads),
          dq(dtype, c.rows(), c.heads * c.d),
          dk(dtype, c.rows(), c.kv_heads * c.d),
          dv(dtype, c.rows(), c.kv_heads * c.d) {}
    Matrix out, lse, dq, dk, dv;
  };

  // NOLINTNEXTLINE(readability-function-size): of each shape the operands, both devices and all results
  void attention(bool reference) {
    for (const Attention& c : {Attention{2, 4, 4, 16, 64},
                               {1, 4, 1, 64, 96},
                               {1, 2, 2, 128, 130},
                               {1, 4, 2, 32, 80, 21},
                               {1, 4, 4, 32, 80, 0, true}}) {
      std::vector<std::int32_t> list(static_cast<std::size_t>(c.seq));
      for (std::size_t i = 0; i < list.size(); ++i) list[i] = static_cast<std::int32_t>(i);
      const TwinList positions(list);
      const Twin slopes(Dtype::fp32, 1, c.heads, alibi_slopes(c.heads));
      const Twin q(Dtype::bf16, c.rows(), c.heads * c.d), k(Dtype::bf16, c.rows(), c.kv_heads * c.d),
          v(Dtype::bf16, c.rows(), c.kv_heads * c.d), dout(Dtype::bf16, c.rows(), c.heads * c.d);
      const Results like(Dtype::bf16, c), exact(Dtype::fp64, c);
      const auto poisoned = [](const Matrix& m) {
        return Twin::poisoned(m.view().dtype, m.view().rows, m.view().cols);
      };
      const Twin out = poisoned(like.out), lse = poisoned(like.lse), dq = poisoned(like.dq),
                 dk = poisoned(like.dk), dv = poisoned(like.dv),
                 workspace =
                     Twin::poisoned(Dtype::fp32, 1, attention_core_elements(c.seq, c.heads, c.kv_heads, c.d));
      const auto shape = [&](bool gpu) {
        return AttentionShape{.batch = c.batch,
                              .heads = c.heads,
                              .kv_heads = c.kv_heads,
                              .head_dim = c.d,
                              .q_positions = positions.on(gpu),
                              .k_positions = positions.on(gpu),
                              .window = c.window,
                              .slopes = c.alibi ? slopes.on(gpu) : TensorView(),
                              .scale = 1 / std::sqrt(static_cast<double>(c.d))};
      };
      test_gpu()->launch(test_stream(), [&](NativeStream s) {
        const KernelTable& table = *cuda_kernels(reference ? KernelSet::reference : KernelSet::fast);
        table.attention_forward({.shape = shape(true),
                                 .q = q.on(true),
                                 .k = k.on(true),
                                 .v = v.on(true),
                                 .out = out.on(true),
                                 .lse = lse.on(true),
                                 .stream = s});
        table.attention_backward({.shape = shape(true),
                                  .q = q.on(true),
                                  .k = k.on(true),
                                  .v = v.on(true),
                                  .out = out.on(true),
                                  .lse = lse.on(true),
                                  .dout = dout.on(true),
                                  .dq = dq.on(true),
                                  .dk = dk.on(true),
                                  .dv = dv.on(true),
                                  .workspace = workspace.on(true),
                                  .stream = s});
      });
      synchronize_gpu();
      const auto in_fp64 = [&](const Results& r, bool rounds) {
        attention_in_fp64({.shape = shape(false),
                           .q = q.on(false),
                           .k = k.on(false),
                           .v = v.on(false),
                           .out = r.out.view(),
                           .lse = r.lse.view()},
                          rounds);
        attention_gradient_in_fp64({.shape = shape(false),
                                    .q = q.on(false),
                                    .k = k.on(false),
                                    .v = v.on(false),
                                    .out = r.out.view(),
                                    .lse = r.lse.view(),
                                    .dout = dout.on(false),
                                    .dq = r.dq.view(),
                                    .dk = r.dk.view(),
                                    .dv = r.dv.view(),
                                    .workspace = {}},
                                   rounds);
      };
      in_fp64(exact, false);
      in_fp64(like, !reference);
      const auto compare = [&](const char* what, const Twin& got, const Matrix& rounded,
                               const Matrix& right) {
        const std::vector<double> truth = to_doubles(right.view());
        expect(fmt::format("attention d{} seq{}{}{} {}{}", c.d, c.seq, c.window ? " window" : "",
                           c.alibi ? " alibi" : "", what, reference ? ", tiles" : ""),
               to_doubles(got.downloaded().view()), truth,
               2 * relative_distance(to_doubles(rounded.view()), truth));
      };
      compare("out", out, like.out, exact.out);
      compare("dq", dq, like.dq, exact.dq);
      compare("dk", dk, like.dk, exact.dk);
      compare("dv", dv, like.dv, exact.dv);
    }
  }
};

TEST_F(CudaRoundings, GemmsByTiles) { products(true); }
TEST_F(CudaRoundings, GemmsByTheLibrary) { products(false); }
TEST_F(CudaRoundings, AttentionByTiles) { attention(true); }
TEST_F(CudaRoundings, AttentionByTheLibrary) { attention(false); }

}  // namespace
}  // namespace sextant::testing

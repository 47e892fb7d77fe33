// System: matrix products and attention on the GPU, through the libraries and by own tiles. Expectation: what the
// CPU's reference table gives, for fresh random inputs, odd extents, any alignment, into poisoned outputs.
#include "core/block_tensors.hpp"
#include "kernels/positions.hpp"
#include "tests/cuda/twin.hpp"

namespace sextant::testing {
namespace {

class CudaProducts : public GpuTest {};

struct AttentionCase {
  int batch, heads, kv_heads, d, seq, cp;
};

struct AttentionTwins {
  const Twin &q, &kv, &out, &lse, &dout, &dq, &dkv, &workspace;  // kv and dkv: keys, then values
};
void both_passes(const KernelTable& k, bool gpu, NativeStream stream, const AttentionShape& shape,
                 const AttentionTwins& t) {
  const std::int64_t cols = std::int64_t{shape.kv_heads} * shape.head_dim;
  const auto keys = [&](const Twin& x) { return x.on(gpu).column_range(0, cols); };
  const auto values = [&](const Twin& x) { return x.on(gpu).column_range(cols, cols); };
  k.attention_forward({.shape = shape,
                       .q = t.q.on(gpu),
                       .k = keys(t.kv),
                       .v = values(t.kv),
                       .out = t.out.on(gpu),
                       .lse = t.lse.on(gpu),
                       .stream = stream});
  k.attention_backward({.shape = shape,
                        .q = t.q.on(gpu),
                        .k = keys(t.kv),
                        .v = values(t.kv),
                        .out = t.out.on(gpu),
                        .lse = t.lse.on(gpu),
                        .dout = t.dout.on(gpu),
                        .dq = t.dq.on(gpu),
                        .dk = keys(t.dkv),
                        .dv = values(t.dkv),
                        .workspace = t.workspace.on(gpu),
                        .stream = stream});
}

TEST_F(CudaProducts, AttentionTilesAndLibrary) {
  for (const bool reference : {true, false})
    for (const Dtype dtype : kDtypes)
      for (const AttentionCase c : {AttentionCase{1, 1, 1, 64, 1, 1},
                                    {2, 2, 2, 64, 7, 1},
                                    {1, 4, 1, 128, 129, 1},
                                    {2, 8, 1, 64, 129, 1},
                                    {1, 4, 4, 128, 256, 1},
                                    {1, 8, 2, 128, 192, 1},
                                    {1, 2, 1, 16, 40, 1},
                                    {1, 3, 3, 20, 33, 1},
                                    {2, 4, 2, 64, 80, 2},
                                    {1, 2, 2, 32, 120, 5},
                                    {1, 2, 1, 160, 40, 1},
                                    {1, 1, 1, 256, 33, 1}})
        for (int rank = 0; rank < c.cp; ++rank) {
          if (left_out() || (dtype == Dtype::fp64 && c.d > 128)) continue;  // below
          const std::int64_t q_rows = static_cast<std::int64_t>(c.batch) * c.seq / c.cp,
                             k_rows = static_cast<std::int64_t>(c.batch) * c.seq;
          const std::int64_t q_cols = static_cast<std::int64_t>(c.heads) * c.d,
                             k_cols = static_cast<std::int64_t>(c.kv_heads) * c.d;
          const Dtype wide = accumulator_of(dtype);
          const TwinList q_positions(context_positions(c.seq, c.cp, rank)),
              k_positions(gathered_positions(c.seq, c.cp));
          const Twin q(dtype, q_rows, q_cols), kv(dtype, k_rows, 2 * k_cols), dout(dtype, q_rows, q_cols);
          const Twin out = Twin::poisoned(dtype, q_rows, q_cols), lse = Twin::poisoned(wide, q_rows, c.heads),
                     dq = Twin::poisoned(dtype, q_rows, q_cols),
                     dkv = Twin::poisoned(dtype, k_rows, 2 * k_cols);
          const Twin workspace =
              Twin::poisoned(wide, 1, attention_core_elements(c.seq / c.cp, c.heads, c.kv_heads, c.d));
          on_both(*cuda_kernels(reference), [&](const KernelTable& k, bool gpu, NativeStream s) {
            const AttentionShape shape{.batch = c.batch,
                                       .heads = c.heads,
                                       .kv_heads = c.kv_heads,
                                       .head_dim = c.d,
                                       .q_positions = q_positions.on(gpu),
                                       .k_positions = k_positions.on(gpu),
                                       .segments = c.cp,
                                       .plain = c.cp == 1,
                                       .scale = 1 / std::sqrt(static_cast<double>(c.d))};
            both_passes(k, gpu, s, shape, {q, kv, out, lse, dout, dq, dkv, workspace});
          });
          const std::string what = label(reference ? "attention tiles" : "attention", dtype, c.seq, c.d,
                                         c.heads * 100 + c.kv_heads * 10 + c.cp);
          const double bound = bound_of(dtype, 3);
          out.expect_alike(bound, what + " out");
          lse.expect_alike(dtype == Dtype::bf16 ? 1e-4 : bound_of(wide, 3), what + " lse");
          if (c.seq > 1) dq.expect_alike(bound, what + " dq");
          for (const bool values : {false, true}) {  // of one token dk is but rounding
            if (c.seq == 1 && !values) continue;
            const auto got = to_doubles(dkv.downloaded().view().column_range(values * k_cols, k_cols)),
                       expected = to_doubles(dkv.on(false).column_range(values * k_cols, k_cols));
            EXPECT_LE(relative_distance(got, expected), bound) << what << (values ? " dv" : " dk");
          }
        }
}

// What shared memory does not hold is refused with its size, and nothing runs into it.
// Own tiles give the same figures, many times later: whether the library served is asked by itself.
TEST_F(CudaProducts, TheLibraryServesPlainAttention) {
  if (cuda_libraries().attention.empty()) GTEST_SKIP() << "cuDNN was not found";
  for (const int d : {64, 128})
    for (const int kv_heads : {1, 2, 8}) {
      const std::int64_t rows = 256, q_cols = 8L * d, k_cols = std::int64_t{kv_heads} * d;
      const TwinList positions(context_positions(256, 1, 0));
      const Twin q(Dtype::bf16, rows, q_cols), kv(Dtype::bf16, rows, 2 * k_cols),
          dout(Dtype::bf16, rows, q_cols);
      const Twin out = Twin::poisoned(Dtype::bf16, rows, q_cols), lse = Twin::poisoned(Dtype::fp32, rows, 8),
                 dq = Twin::poisoned(Dtype::bf16, rows, q_cols),
                 dkv = Twin::poisoned(Dtype::bf16, rows, 2 * k_cols);
      const Twin core = Twin::poisoned(Dtype::fp32, 1, attention_core_elements(256, 8, kv_heads, d));
      on_both(table(), [&](const KernelTable& k, bool gpu, NativeStream s) {
        const AttentionShape shape{.batch = 1,
                                   .heads = 8,
                                   .kv_heads = kv_heads,
                                   .head_dim = d,
                                   .q_positions = positions.on(gpu),
                                   .k_positions = positions.on(gpu),
                                   .plain = true,
                                   .scale = 1 / std::sqrt(static_cast<double>(d))};
        both_passes(k, gpu, s, shape, {q, kv, out, lse, dout, dq, dkv, core});
      });
    }
  EXPECT_EQ(attention_fallback().find("refused"), std::string::npos) << attention_fallback();
  EXPECT_EQ(attention_second_choice(), "");
}

TEST_F(CudaProducts, HeadsBeyondTheSharedMemoryAreRefused) {
  const auto said = [&](Dtype dtype, int d) -> std::string {
    const Dtype wide = accumulator_of(dtype);
    const TwinList positions({0, 1, 2});
    const Twin x(dtype, 3, d), kv(dtype, 3, 2 * d), lse(wide, 3, 1),
        core(wide, 1, attention_core_elements(3, 1, 1, d));
    const AttentionShape shape{.batch = 1,
                               .heads = 1,
                               .kv_heads = 1,
                               .head_dim = d,
                               .q_positions = positions.on(true),
                               .k_positions = positions.on(true),
                               .plain = true};
    const TensorView k = kv.on(true).column_range(0, d), v = kv.on(true).column_range(d, d);
    try {
      test_gpu()->launch(test_stream(), [&](NativeStream s) {
        table().attention_backward({.shape = shape,
                                    .q = x.on(true),
                                    .k = k,
                                    .v = v,
                                    .out = x.on(true),
                                    .lse = lse.on(true),
                                    .dout = x.on(true),
                                    .dq = x.on(true),
                                    .dk = k,
                                    .dv = v,
                                    .workspace = core.on(true),
                                    .stream = s});
      });
    } catch (const BackendError& error) {
      return error.what();
    }
    synchronize_gpu();
    return "";
  };
  EXPECT_EQ(said(Dtype::fp64, 128), "");
  EXPECT_EQ(said(Dtype::bf16, 256), "");
  EXPECT_NE(said(Dtype::fp64, 256).find("heads of 256 channels in fp64 takes 257 KiB of shared memory"),
            std::string::npos)
      << said(Dtype::fp64, 256);
  EXPECT_NE(said(Dtype::bf16, 264).find("at most 256 channels"), std::string::npos);
}

TEST_F(CudaProducts, MatrixProducts) {
  struct Extent {
    std::int64_t m, n, k;
  };
  for (const bool reference : {true, false})
    for (const Dtype dtype : kDtypes)
      for (const bool into_wide : {false, true})
        for (const Extent e : {Extent{1, 1, 1}, {7, 129, 95}, {128, 64, 256}, {129, 1, 1000}, {512, 384, 96}})
          for (const int form : {0, 1, 2, 3}) {
            const bool ta = form & 1, tb = form & 2;
            const Dtype c_type = into_wide ? accumulator_of(dtype) : dtype;
            for (const bool accumulate : {false, true}) {
              if (left_out()) continue;
              const Twin a(dtype, ta ? e.k : e.m, ta ? e.m : e.k),
                  b(dtype, tb ? e.n : e.k, (tb ? e.k : e.n) + 8);
              const Twin c = accumulate ? Twin(c_type, e.m, e.n + 8) : Twin::poisoned(c_type, e.m, e.n + 8);
              on_both(*cuda_kernels(reference), [&](const KernelTable& k, bool gpu, NativeStream s) {
                k.gemm({.a = a.on(gpu),
                        .b = b.on(gpu).column_range(0, tb ? e.k : e.n),
                        .c = c.on(gpu).column_range(0, e.n),
                        .transpose_a = ta,
                        .transpose_b = tb,
                        .accumulate = accumulate,
                        .stream = s});
              });
              const auto got = to_doubles(c.downloaded().view().column_range(0, e.n)),
                         expected = to_doubles(c.on(false).column_range(0, e.n));
              EXPECT_LE(relative_distance(got, expected), bound_of(c_type, 4))
                  << label(reference ? "gemm tiles" : "gemm", dtype, e.m, e.n, e.k) << " form " << form
                  << (into_wide ? " wide" : "") << (accumulate ? " accumulate" : "");
            }
          }
}

}  // namespace
}  // namespace sextant::testing

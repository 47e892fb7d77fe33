// Conversions, the exponential, flat-state kernels and positions: properties rather than fixtures.
#include "kernels/cpu/element.hpp"

#include <limits>
#include <set>

#include <gtest/gtest.h>

#include "core/graph/block_tensors.hpp"
#include "kernels/positions.hpp"
#include "tests/reference/matrix.hpp"

namespace sextant::testing {
namespace {

TEST(Bfloat16, EveryValueSurvivesAndRoundingIsToNearestEven) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Bfloat16 x{static_cast<std::uint16_t>(bits)};
    const float wide = cpu::load(x);
    if (wide != wide) {
      const float back = cpu::load(cpu::store<Bfloat16>(wide));
      EXPECT_TRUE(back != back) << bits;
      continue;
    }
    EXPECT_EQ(cpu::store<Bfloat16>(wide), x) << bits;
    if ((bits & 0x7f80u) == 0x7f80u) continue;  // infinities have no upper neighbour
    // Halfway to the next value goes to the even one; a hair beyond goes up.
    const auto half = std::bit_cast<float>((bits << 16) | 0x8000u),
               more = std::bit_cast<float>((bits << 16) | 0x8001u);
    EXPECT_EQ(cpu::store<Bfloat16>(half).bits, bits + (bits & 1u)) << bits;
    EXPECT_EQ(cpu::store<Bfloat16>(more).bits, bits + 1u) << bits;
  }
}

TEST(Exponential, FloatIsWithinItsStatedError) {
  double worst = 0;
  for (int i = -873000; i <= 887000; ++i) {
    const float x = static_cast<float>(i) * 1e-4f;
    const double exact = std::exp(static_cast<double>(x));
    worst = std::max(worst, std::abs(static_cast<double>(cpu::exponential(x)) / exact - 1));
  }
  EXPECT_LT(worst, 2e-7);
  EXPECT_EQ(cpu::exponential(0.0f), 1.0f);
  EXPECT_EQ(cpu::exponential(-std::numeric_limits<float>::infinity()), 0.0f);
  EXPECT_EQ(cpu::exponential(-1e30f), 0.0f);
  EXPECT_EQ(cpu::exponential(89.0f), std::numeric_limits<float>::infinity());
  EXPECT_EQ(cpu::exponential(std::numeric_limits<float>::infinity()), std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(cpu::exponential(std::numeric_limits<float>::quiet_NaN())));
}

TEST(Sums, OrderDependsOnLengthAlone) {
  std::vector<float> x(1000);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = 1.0f / static_cast<float>(i + 1);
  for (std::int64_t n : {0, 1, 15, 16, 17, 31, 1000}) {
    double exact = 0;
    for (std::int64_t i = 0; i < n; ++i) exact += static_cast<double>(x[static_cast<std::size_t>(i)]);
    for (std::size_t offset : {0u, 1u, 3u}) {  // addresses of any alignment
      std::vector<float> moved(offset, 0.0f);
      moved.insert(moved.end(), x.begin(), x.end());
      const float* p = moved.data() + offset;
      EXPECT_EQ(cpu::sum_lanes<float>(n, [&](std::int64_t i) { return p[i]; }),
                cpu::sum_lanes<float>(n, [&](std::int64_t i) { return x[static_cast<std::size_t>(i)]; }));
    }
    EXPECT_NEAR(cpu::sum_lanes<float>(n, [&](std::int64_t i) { return x[static_cast<std::size_t>(i)]; }),
                exact, 1e-6 * exact);
  }
}

std::vector<double> ramp(std::int64_t n, double scale = 1.0) {
  std::vector<double> values(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i)
    values[static_cast<std::size_t>(i)] = scale * std::sin(0.7 * static_cast<double>(i));
  return values;
}

// A shard is updated as the whole is, bit for bit, wherever it is cut and wherever decay begins and ends.
TEST(Adamw, ShardsAndDecayRangesAgreeWithTheWhole) {
  constexpr std::int64_t n = 203;
  const std::vector<ElementRange> decay = {{3, 50}, {50, 90}, {120, 203}};
  const AdamwScalars scalars =
      scalars_of({.rate = 1e-2, .gradient_scale = 0.3, .correction1 = 0.1, .correction2 = 0.05});
  for (const Dtype dtype : {Dtype::fp64, Dtype::fp32, Dtype::bf16}) {
    const Dtype a = accumulator_of(dtype);
    const auto run = [&](const std::vector<std::int64_t>& cuts) {
      const Matrix master(a, 1, n, ramp(n)), m(a, 1, n, ramp(n, 0.1)),
          v(a, 1, n, std::vector<double>(n, 0.2));
      const Matrix gradient(a, 1, n, ramp(n, 2.0)), parameter(dtype, 1, n);
      for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
        const std::int64_t first = cuts[i], count = cuts[i + 1] - first;
        std::vector<ElementRange> own;
        for (const ElementRange& r : decay)
          if (r.end > first && r.begin < first + count) own.push_back({r.begin - first, r.end - first});
        const auto part = [&](const Matrix& x) { return x.view().column_range(first, count); };
        cpu_kernels().adamw({.master = part(master),
                             .moment1 = part(m),
                             .moment2 = part(v),
                             .gradient = part(gradient),
                             .parameter = part(parameter),
                             .decay = own,
                             .scalars = &scalars});
      }
      return std::pair(to_doubles(master.view()), to_doubles(parameter.view()));
    };
    const auto whole = run({0, n});
    EXPECT_EQ(run({0, 1, 64, 64, 130, n}), whole);
    // The mask matters exactly where it says: undecayed elements equal those of a run without decay.
    const Matrix master(a, 1, n, ramp(n)), m(a, 1, n, ramp(n, 0.1)), v(a, 1, n, std::vector<double>(n, 0.2));
    const Matrix gradient(a, 1, n, ramp(n, 2.0)), parameter(dtype, 1, n);
    cpu_kernels().adamw({.master = master.view(),
                         .moment1 = m.view(),
                         .moment2 = v.view(),
                         .gradient = gradient.view(),
                         .parameter = parameter.view(),
                         .decay = {},
                         .scalars = &scalars});
    const std::vector<double> plain = to_doubles(master.view());
    for (std::int64_t i = 1; i < n; ++i) {  // element 0 of the ramp is 0: decay cannot move it
      const bool decayed = (i >= 3 && i < 90) || i >= 120;
      EXPECT_EQ(plain[static_cast<std::size_t>(i)] != whole.first[static_cast<std::size_t>(i)], decayed) << i;
    }
  }
}

TEST(Adamw, SkippedStepLeavesEverything) {
  const Matrix master(Dtype::fp32, 1, 5, ramp(5)), m(Dtype::fp32, 1, 5), v(Dtype::fp32, 1, 5);
  const Matrix gradient(Dtype::fp32, 1, 5, std::vector<double>(5, std::nan("")));
  const AdamwScalars scalars{.step = 1, .skip = true};
  cpu_kernels().adamw({.master = master.view(),
                       .moment1 = m.view(),
                       .moment2 = v.view(),
                       .gradient = gradient.view(),
                       .parameter = master.view(),
                       .decay = {},
                       .scalars = &scalars});
  EXPECT_EQ(to_doubles(master.view()), to_doubles(Matrix(Dtype::fp32, 1, 5, ramp(5)).view()));
  EXPECT_EQ(to_doubles(m.view()), std::vector<double>(5, 0.0));
}

TEST(FlatState, NormAccumulateScaleZero) {
  const Matrix x(Dtype::fp32, 3, 37, ramp(111));
  const KernelTable& k = cpu_kernels();
  double whole = 0, parts = 0, expected = 0;
  for (double value : to_doubles(x.view())) expected += value * value;
  k.squared_norm({.x = x.view(), .sum = &whole});
  for (std::int64_t r = 0; r < 3; ++r) k.squared_norm({.x = x.view().row_range(r, 1), .sum = &parts});
  EXPECT_NEAR(whole, expected, 1e-13 * expected);
  EXPECT_NEAR(parts, whole, 1e-14 * whole);

  const Matrix sum(Dtype::fp32, 3, 37, std::vector<double>(111, 1.0));
  k.accumulate({.source = x.view(), .destination = sum.view()});
  k.scale({.x = sum.view(), .factor = 2.0});
  EXPECT_FLOAT_EQ(static_cast<float>(to_doubles(sum.view())[5]), static_cast<float>(2 * (1 + std::sin(3.5))));
  k.zero({.x = sum.view().column_range(1, 2)});
  const std::vector<double> after = to_doubles(sum.view());
  EXPECT_EQ(after[37 + 1], 0.0);
  EXPECT_EQ(after[37 + 2], 0.0);
  EXPECT_NE(after[37 + 3], 0.0);
}

TEST(Kernels, UnsupportedFormatIsAnError) {
  EXPECT_FALSE(cpu_kernels().supports(Dtype::fp16));
  TensorView x(nullptr, Dtype::fp16, 1, 1);
  EXPECT_THROW(cpu_kernels().scale({.x = x}), BackendError);
}

// A query with no visible key gives zeros, no NaN, forward and backward.
TEST(Attention, NoVisibleKey) {
  const std::vector<std::int32_t> q_positions = {0, 5}, k_positions = {3, 4};
  AttentionShape s;
  s.heads = s.kv_heads = 1;
  s.head_dim = 4;
  s.q_positions = q_positions;
  s.k_positions = k_positions;
  const Matrix q(Dtype::fp32, 2, 4, ramp(8)), k(Dtype::fp32, 2, 4, ramp(8)), out(Dtype::fp32, 2, 4),
      lse(Dtype::fp32, 2, 1);
  const Matrix dq(Dtype::fp32, 2, 4), dk(Dtype::fp32, 2, 4), dv(Dtype::fp32, 2, 4);
  const Matrix workspace(Dtype::fp32, 1, attention_core_elements(2, 1, 1, 4));
  cpu_kernels().attention_forward(
      {.shape = s, .q = q.view(), .k = k.view(), .v = k.view(), .out = out.view(), .lse = lse.view()});
  cpu_kernels().attention_backward({.shape = s,
                                    .q = q.view(),
                                    .k = k.view(),
                                    .v = k.view(),
                                    .out = out.view(),
                                    .lse = lse.view(),
                                    .dout = q.view(),
                                    .dq = dq.view(),
                                    .dk = dk.view(),
                                    .dv = dv.view(),
                                    .workspace = workspace.view()});
  for (int c = 0; c < 4; ++c) EXPECT_EQ(out.view().row<float>(0)[c], 0.0f);
  EXPECT_NE(out.view().row<float>(1)[1], 0.0f);
  for (const Matrix* x : {&out, &dq, &dk, &dv})
    for (double value : to_doubles(x->view())) EXPECT_TRUE(std::isfinite(value));
}

TEST(ContextPositions, CoverTheSequenceWithEqualWork) {
  for (const int cp : {1, 2, 3, 4}) {
    const int seq = 24 * cp;
    std::set<std::int32_t> seen;
    std::set<std::int64_t> work;
    for (int rank = 0; rank < cp; ++rank) {
      std::int64_t visible = 0;
      for (const std::int32_t p : context_positions(seq, cp, rank)) {
        seen.insert(p);
        visible += p + 1;
      }
      work.insert(visible);
    }
    EXPECT_EQ(seen.size(), static_cast<std::size_t>(seq));
    EXPECT_EQ(work.size(), 1u) << "ranks of cp " << cp << " see different numbers of keys";
    EXPECT_EQ(gathered_positions(seq, cp).size(), static_cast<std::size_t>(seq));
  }
  EXPECT_THROW(context_positions(10, 2, 0), std::logic_error);
}

TEST(BlockTensors, SavedBytesOfALayer) {
  BlockWork w;
  w.kind = BlockKind::attention;
  w.dtype = Dtype::bf16;
  w.batch = 2;
  w.seq_q = 64;
  w.seq_k = 128;
  w.hidden = 32;
  w.heads = 4;
  w.kv_heads = 2;
  w.head_dim = 16;
  w.ffn = 96;
  // input, normed 128 x 32; inverse_rms 128 fp32; q, context 128 x 64; kv 128 x 64; lse 128 x 4 fp32
  EXPECT_EQ(saved_bytes(w).v, 2 * 128 * 32 * 2 + 128 * 4 + 3 * 128 * 64 * 2 + 128 * 4 * 4);
  w.recompute_core = true;
  EXPECT_EQ(saved_bytes(w).v, 2 * 128 * 32 * 2 + 128 * 4 + 2 * 128 * 64 * 2);
  w.kind = BlockKind::mlp;
  EXPECT_EQ(saved_bytes(w).v, 2 * 128 * 32 * 2 + 128 * 4 + 2 * 128 * 96 * 2);
  w.sequence_parallel = true;
  w.tp = 2;
  EXPECT_EQ(saved_bytes(w).v, 2 * 64 * 32 * 2 + 64 * 4 + 2 * 128 * 96 * 2);
  w.kind = BlockKind::norm;
  EXPECT_EQ(saved_bytes(w).v, 0);
  const BlockTensor odd{"odd", 1, 3, Dtype::fp32};
  EXPECT_EQ(odd.bytes().v, 64);
}

}  // namespace
}  // namespace sextant::testing

// System: what kernels make of numbers that are not finite, of batches without tokens or targets, and of ids at the ends of a
// vocabulary. Expectation: NaN and infinity reach the norm of the gradients, which leaves the step out; neighbours do not change.
#include <functional>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "tests/reference/matrix.hpp"

namespace sextant::testing {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInfinity = HUGE_VAL;
constexpr std::int64_t kRows = 3, kWidth = 8;

std::vector<double> some(std::int64_t n) {
  std::vector<double> values(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = 0.25 + 0.125 * static_cast<double>(i % 7);
  return values;
}

Dtype accumulator(Dtype dtype) { return dtype == Dtype::fp64 ? Dtype::fp64 : Dtype::fp32; }

// One kernel from rows of x to rows of the result.
struct ByRow {
  const char* name;
  std::function<void(const Matrix& x, const Matrix& y)> run;
};

// NOLINTNEXTLINE(readability-function-size): a table of kernels
std::vector<ByRow> by_row(Dtype dtype) {
  const KernelTable& k = cpu_kernels();
  const Dtype wide = accumulator(dtype);
  const auto row = [=](std::int64_t rows) { return Matrix(dtype, rows, kWidth, some(rows * kWidth)); };
  return {
      {"gemm",
       [=](const Matrix& x, const Matrix& y) {
         const Matrix w = row(kWidth);
         k.gemm({.a = x.view(), .b = w.view(), .c = y.view(), .transpose_b = true});
       }},
      {"norm",
       [=](const Matrix& x, const Matrix& y) {
         const Matrix w = row(1), inverse(wide, 1, kRows);
         k.rmsnorm_forward({.x = x.view(), .weight = w.view(), .y = y.view(), .inverse_rms = inverse.view()});
       }},
      {"swiglu, gate",
       [=](const Matrix& x, const Matrix& y) {
         const Matrix up = row(kRows);
         k.swiglu_forward({.gate = x.view(), .up = up.view(), .out = y.view()});
       }},
      {"swiglu, up",
       [=](const Matrix& x, const Matrix& y) {
         const Matrix gate = row(kRows);
         k.swiglu_forward({.gate = gate.view(), .up = x.view(), .out = y.view()});
       }},
      {"add",
       [=](const Matrix& x, const Matrix& y) {
         const Matrix b = row(kRows);
         k.add({.a = x.view(), .b = b.view(), .out = y.view()});
       }},
      {"rope",
       [=](const Matrix& x, const Matrix& y) {
         const std::vector<std::int32_t> positions = {0, 1, 2};
         const Matrix cos(wide, kRows, kWidth / 2, some(kRows * kWidth / 2));
         k.cast({.source = x.view(), .destination = y.view()});
         k.rope({.x = y.view(),
                 .cos = cos.view(),
                 .sin = cos.view(),
                 .heads = 1,
                 .head_dim = kWidth,
                 .positions = positions});
       }},
      {"embedding",
       [=](const Matrix& x, const Matrix& y) {
         const std::vector<std::int32_t> ids = {0, 1, 2};
         k.embedding_forward({.ids = ids, .table = x.view(), .out = y.view()});
       }},
      {"attention, query",
       [=](const Matrix& x, const Matrix& y) {
         const std::vector<std::int32_t> positions = {0, 1, 2};
         AttentionShape s;
         s.heads = s.kv_heads = 1;
         s.head_dim = static_cast<int>(kWidth);
         s.scale = 0.5;
         s.q_positions = s.k_positions = positions;
         const Matrix key = row(kRows), lse(wide, kRows, 1);
         k.attention_forward({.shape = s,
                              .q = x.view(),
                              .k = key.view(),
                              .v = key.view(),
                              .out = y.view(),
                              .lse = lse.view()});
       }},
  };
}

bool finite(std::span<const double> values) {
  return std::all_of(values.begin(), values.end(), [](double x) { return std::isfinite(x); });
}

class NotFinite : public ::testing::TestWithParam<Dtype> {};

TEST_P(NotFinite, StaysInItsRowAndIsSeenThere) {
  for (const ByRow& kernel : by_row(GetParam())) {
    const auto result = [&](double spoiled) {
      std::vector<double> values = some(kRows * kWidth);
      values[kWidth + 3] = spoiled;
      const Matrix x(GetParam(), kRows, kWidth, values), y(GetParam(), kRows, kWidth);
      kernel.run(x, y);
      return to_doubles(y.view());
    };
    const std::vector<double> plain = result(0.5);
    ASSERT_TRUE(finite(plain)) << kernel.name;
    for (const double bad : {kNan, kInfinity}) {
      const std::vector<double> got = result(bad);
      for (const std::size_t row : {0U, 2U})
        for (std::size_t i = row * kWidth; i < (row + 1) * kWidth; ++i)
          EXPECT_EQ(got[i], plain[i]) << kernel.name << " of " << bad << ", element " << i;
      EXPECT_FALSE(finite(std::span(got).subspan(kWidth, kWidth))) << kernel.name << " hides " << bad;
    }
  }
}

// A key or value that is not finite spoils every query that sees it. A key spoils none before it; a value may: what is hidden has
// the weight 0, and 0 times NaN is NaN, as in PyTorch.
TEST_P(NotFinite, KeysAndValuesSpoilTheQueriesThatSeeThem) {
  const Dtype dtype = GetParam();
  const std::vector<std::int32_t> positions = {0, 1, 2};
  AttentionShape s;
  s.heads = s.kv_heads = 1;
  s.head_dim = static_cast<int>(kWidth);
  s.scale = 0.5;
  s.q_positions = s.k_positions = positions;
  for (const bool of_value : {false, true}) {
    std::vector<double> values = some(kRows * kWidth);
    const Matrix good(dtype, kRows, kWidth, values);
    values[kWidth + 3] = kNan;
    const Matrix bad(dtype, kRows, kWidth, values), out(dtype, kRows, kWidth),
        lse(accumulator(dtype), kRows, 1);
    cpu_kernels().attention_forward({.shape = s,
                                     .q = good.view(),
                                     .k = of_value ? good.view() : bad.view(),
                                     .v = of_value ? bad.view() : good.view(),
                                     .out = out.view(),
                                     .lse = lse.view()});
    const std::vector<double> got = to_doubles(out.view());
    EXPECT_TRUE(of_value || finite(std::span(got).first(kWidth)));
    for (const std::size_t row : {1U, 2U})
      EXPECT_FALSE(finite(std::span(got).subspan(row * kWidth, kWidth))) << of_value << ", query " << row;
  }
}

// What decides whether a step is left out.
TEST_P(NotFinite, ReachesTheNormOfTheGradients) {
  for (const double bad : {kNan, kInfinity, -kInfinity})
    for (const std::size_t at : {0U, 7U, 40U, 63U}) {
      std::vector<double> values = some(64);
      values[at] = bad;
      const Matrix x(GetParam(), 1, 64, values), sum(accumulator(GetParam()), 1, 64, some(64));
      double norm = 0, added = 0;
      cpu_kernels().squared_norm({.x = x.view(), .sum = &norm});
      EXPECT_FALSE(std::isfinite(norm)) << bad << " at " << at;
      cpu_kernels().accumulate({.source = x.view(), .destination = sum.view()});
      cpu_kernels().squared_norm({.x = sum.view(), .sum = &added});
      EXPECT_FALSE(std::isfinite(added)) << bad << " at " << at << ", accumulated";
    }
}

// Cross entropy of `ranks` slices of the vocabulary.
struct Losses {
  double loss = 0;
  std::vector<double> gradients;
};
Losses cross_entropy(Dtype dtype, const std::vector<double>& logits, std::span<const std::int32_t> targets,
                     std::int64_t vocab, std::int64_t padded, int ranks) {
  const KernelTable& k = cpu_kernels();
  const auto tokens = static_cast<std::int64_t>(targets.size());
  const Matrix x(accumulator(dtype), tokens, padded, logits), stats(accumulator(dtype), ranks * tokens, 3),
      softmax(accumulator(dtype), tokens, 2), d(dtype, tokens, padded);
  const auto slice = [&](const Matrix& m, int r) {
    return m.view().column_range(r * padded / ranks, padded / ranks);
  };
  for (int r = 0; r < ranks; ++r)
    k.cross_entropy_stats({.logits = slice(x, r),
                           .targets = targets,
                           .first_id = r * padded / ranks,
                           .vocab = vocab,
                           .stats = stats.view().row_range(r * tokens, tokens)});
  Losses found;
  k.cross_entropy_combine(
      {.stats = stats.view(), .targets = targets, .softmax = softmax.view(), .loss = &found.loss});
  for (int r = 0; r < ranks; ++r)
    k.cross_entropy_gradient({.logits = slice(x, r),
                              .softmax = softmax.view(),
                              .targets = targets,
                              .first_id = r * padded / ranks,
                              .vocab = vocab,
                              .dlogits = slice(d, r)});
  found.gradients = to_doubles(d.view());
  return found;
}

TEST_P(NotFinite, TargetsAtTheEndsOfTheVocabularyAndOfItsSlices) {
  constexpr std::int64_t kVocab = 13, kPadded = 16;
  for (const int ranks : {1, 2, 4})
    for (const std::int32_t target : {0, 3, 4, 7, 8, 11, 12}) {
      const std::vector<double> logits = some(kPadded);
      double sum = 0;
      for (std::size_t i = 0; i < kVocab; ++i) sum += std::exp(logits[i]);
      const double expected = std::log(sum) - logits[static_cast<std::size_t>(target)];
      const Losses found = cross_entropy(GetParam(), logits, std::span(&target, 1), kVocab, kPadded, ranks);
      EXPECT_NEAR(found.loss, expected, 1e-5) << target << ", ranks " << ranks;
      for (std::size_t i = kVocab; i < kPadded; ++i) EXPECT_EQ(found.gradients[i], 0) << "padding";
      EXPECT_LT(found.gradients[static_cast<std::size_t>(target)], 0);
      EXPECT_NEAR(std::accumulate(found.gradients.begin(), found.gradients.end(), 0.0), 0.0, 2e-2);
    }
}

TEST_P(NotFinite, ABatchWithoutTargetsHasNeitherLossNorGradient) {
  const std::vector<std::int32_t> none(kRows, kIgnoreTarget), one = {kIgnoreTarget, 2, kIgnoreTarget};
  const std::vector<double> logits = some(kRows * 16);
  for (const int ranks : {1, 4}) {
    const Losses masked = cross_entropy(GetParam(), logits, none, 13, 16, ranks);
    EXPECT_EQ(masked.loss, 0);
    for (const double g : masked.gradients) EXPECT_EQ(g, 0);
    const Losses control = cross_entropy(GetParam(), logits, one, 13, 16, ranks);
    EXPECT_GT(control.loss, 0);
    for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(control.gradients[i], 0) << "a row that is masked";
  }
}

// Logits as large as their format: the loss is 0, or infinite, and never NaN; a gradient stays between -1 and 1.
TEST_P(NotFinite, LogitsThatOverflow) {
  const double most = GetParam() == Dtype::fp64 ? 1e308 : 3e38;
  for (const int ranks : {1, 4}) {
    std::vector<double> logits(16, -most);
    logits[5] = most;
    const std::int32_t right = 5, other = 6;
    const Losses sure = cross_entropy(GetParam(), logits, std::span(&right, 1), 16, 16, ranks);
    EXPECT_EQ(sure.loss, 0) << ranks;
    const Losses wrong = cross_entropy(GetParam(), logits, std::span(&other, 1), 16, 16, ranks);
    EXPECT_FALSE(std::isnan(wrong.loss)) << ranks;
    EXPECT_GT(wrong.loss, 1e30) << ranks;
    for (const double g : wrong.gradients) EXPECT_LE(std::abs(g), 1) << ranks;
    for (const double bad : {kNan, kInfinity}) {
      logits[2] = bad;
      EXPECT_FALSE(std::isfinite(cross_entropy(GetParam(), logits, std::span(&right, 1), 16, 16, ranks).loss))
          << bad << ", ranks " << ranks;
      logits[2] = -most;
    }
  }
}

// A slice has the ids from first_id on; all others are another rank's, whatever they are.
TEST_P(NotFinite, IdsAtTheEndsOfASlice) {
  constexpr std::int64_t kFirst = 100;
  constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min(), kMost = -(kLeast + 1);
  const std::vector<std::int32_t> ids = {100, 102, 99, 103, 0, -1, kLeast, kMost};
  const auto n = static_cast<std::int64_t>(ids.size());
  const Matrix table(GetParam(), kRows, kWidth, some(kRows * kWidth)),
      out(GetParam(), n, kWidth, some(n * kWidth)), dout(GetParam(), n, kWidth, some(n * kWidth)),
      dtable(accumulator(GetParam()), kRows, kWidth);
  cpu_kernels().embedding_forward({.ids = ids, .table = table.view(), .first_id = kFirst, .out = out.view()});
  cpu_kernels().embedding_backward(
      {.ids = ids, .dout = dout.view(), .dtable = dtable.view(), .first_id = kFirst});
  const std::vector<double> rows = to_doubles(out.view()), stored = to_doubles(table.view()),
                            d = to_doubles(dout.view()), dt = to_doubles(dtable.view());
  for (std::size_t c = 0; c < kWidth; ++c) {
    EXPECT_EQ(rows[c], stored[c]);
    EXPECT_EQ(rows[kWidth + c], stored[2 * kWidth + c]);
    for (std::size_t other = 2; other < ids.size(); ++other)
      EXPECT_EQ(rows[other * kWidth + c], 0) << ids[other];
    EXPECT_EQ(dt[c], d[c]);
    EXPECT_EQ(dt[kWidth + c], 0) << "nobody asked for it";
    EXPECT_EQ(dt[2 * kWidth + c], d[kWidth + c]);
  }
}

// A batch without tokens is lawful, and touches nothing.
TEST_P(NotFinite, ABatchWithoutTokens) {
  const KernelTable& k = cpu_kernels();
  const Dtype dtype = GetParam(), wide = accumulator(dtype);
  const Matrix none(dtype, 0, kWidth), weight(dtype, kWidth, kWidth, some(kWidth * kWidth)),
      statistic(wide, 1, 0), gradient(wide, 1, kWidth, some(kWidth)),
      wgradient(wide, kWidth, kWidth, some(kWidth * kWidth));
  const std::vector<double> before = to_doubles(gradient.view()), wbefore = to_doubles(wgradient.view());
  const TensorView first = weight.view().row_range(0, 1);
  k.rmsnorm_forward({.x = none.view(), .weight = first, .y = none.view(), .inverse_rms = statistic.view()});
  k.rmsnorm_backward({.x = none.view(),
                      .inverse_rms = statistic.view(),
                      .weight = first,
                      .dy = none.view(),
                      .bypass = {},
                      .dx = none.view(),
                      .dweight = gradient.view()});
  k.swiglu_forward({.gate = none.view(), .up = none.view(), .out = none.view()});
  k.add({.a = none.view(), .b = none.view(), .out = none.view()});
  k.embedding_forward({.ids = {}, .table = weight.view(), .out = none.view()});
  k.embedding_backward({.ids = {}, .dout = none.view(), .dtable = wgradient.view()});
  k.bias_gradient({.dy = none.view(), .dbias = gradient.view()});
  double norm = 0.5;
  k.squared_norm({.x = none.view(), .sum = &norm});
  EXPECT_EQ(norm, 0.5);
  EXPECT_EQ(to_doubles(gradient.view()), before);
  EXPECT_EQ(to_doubles(wgradient.view()), wbefore);
  const Losses nothing = cross_entropy(dtype, {}, {}, 13, 16, 2);
  EXPECT_EQ(nothing.loss, 0);
}

INSTANTIATE_TEST_SUITE_P(Formats, NotFinite, ::testing::Values(Dtype::fp32, Dtype::bf16, Dtype::fp64),
                         [](const auto& format) { return std::string(name(format.param)); });

}  // namespace
}  // namespace sextant::testing

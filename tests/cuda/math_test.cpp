// System: the arithmetic of one element that the GPU's kernels run (kernels/cuda/math.hpp), here on the host.
// Expectation: what the CPU's table gives; Adam, rotations and norms in every bit.
#include "kernels/cuda/math.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "kernels/cuda/two_float.hpp"
#include "kernels/positions.hpp"
#include "tests/reference/matrix.hpp"

namespace sextant::testing {
namespace {

template <class A>
constexpr Dtype kType = sizeof(A) == 8 ? Dtype::fp64 : Dtype::fp32;

std::vector<double> normal(std::size_t n, double deviation = 1.0, double mean = 0.0) {
  static std::mt19937_64 engine(12);
  std::normal_distribution<double> distribution(mean, deviation);
  std::vector<double> values(n);
  for (double& v : values) v = distribution(engine);
  return values;
}

template <class A>
class CudaMath : public ::testing::Test {};
using Formats = ::testing::Types<float, double>;
TYPED_TEST_SUITE(CudaMath, Formats);

TYPED_TEST(CudaMath, Adamw) {
  using A = TypeParam;
  constexpr std::int64_t n = 1000;
  const Matrix master(kType<A>, 1, n, normal(n)), m(kType<A>, 1, n, normal(n)),
      v(kType<A>, 1, n, normal(n, 0.1, 1.0)), gradient(kType<A>, 1, n, normal(n));
  std::vector<A> p(n), m1(n), v1(n);
  for (std::int64_t i = 0; i < n; ++i) {
    const auto at = static_cast<std::size_t>(i);
    p[at] = master.view().template row<A>()[i];
    m1[at] = m.view().template row<A>()[i];
    v1[at] = v.view().template row<A>()[i];
  }
  const AdamwScalars s =
      scalars_of({.rate = 1e-3, .gradient_scale = 0.3, .correction1 = 0.271, .correction2 = 0.0975});
  const ElementRange all{0, n};
  cpu_kernels().adamw({.master = master.view(),
                       .moment1 = m.view(),
                       .moment2 = v.view(),
                       .gradient = gradient.view(),
                       .parameter = master.view(),
                       .decay = {&all, 1},
                       .scalars = &s});
  const cuda::AdamwFactors<A> f{.keep = static_cast<A>(s.keep),
                                .scale = static_cast<A>(s.gradient_scale),
                                .beta1 = static_cast<A>(0.9),
                                .beta2 = static_cast<A>(0.95),
                                .rest1 = static_cast<A>(1.0 - 0.9),
                                .rest2 = static_cast<A>(1.0 - 0.95),
                                .step = static_cast<A>(s.step),
                                .root2 = static_cast<A>(s.root2),
                                .eps = static_cast<A>(1e-8)};
  for (std::int64_t i = 0; i < n; ++i) {
    const auto at = static_cast<std::size_t>(i);
    p[at] = cuda::adamw_element(f, gradient.view().template row<A>()[i], p[at], m1[at], v1[at]);
    ASSERT_EQ(p[at], master.view().template row<A>()[i]) << i;
    ASSERT_EQ(m1[at], m.view().template row<A>()[i]) << i;
    ASSERT_EQ(v1[at], v.view().template row<A>()[i]) << i;
  }
}

TYPED_TEST(CudaMath, SwigluAndItsGradient) {
  using A = TypeParam;
  constexpr std::int64_t n = 1000;
  const Matrix gate(kType<A>, 1, n, normal(n, 4.0)), up(kType<A>, 1, n, normal(n)),
      dout(kType<A>, 1, n, normal(n)), out(kType<A>, 1, n);
  std::vector<double> y, dgate, dup, activation;
  for (std::int64_t i = 0; i < n; ++i) {
    A g = gate.view().template row<A>()[i], u = up.view().template row<A>()[i],
      d = dout.view().template row<A>()[i];
    y.push_back(cuda::swiglu_element(g, u));
    cuda::swiglu_gradient(g, u, d);
    dgate.push_back(g);
    dup.push_back(u);
    activation.push_back(d);
  }
  cpu_kernels().swiglu_forward({.gate = gate.view(), .up = up.view(), .out = out.view()});
  cpu_kernels().swiglu_backward({.gate = gate.view(), .up = up.view(), .dout = dout.view()});
  const double bound = sizeof(A) == 8 ? 1e-15 : 3e-7;
  EXPECT_LT(relative_distance(y, to_doubles(out.view())), bound);
  EXPECT_LT(relative_distance(dgate, to_doubles(gate.view())), bound);
  EXPECT_LT(relative_distance(dup, to_doubles(up.view())), bound);
  EXPECT_LT(relative_distance(activation, to_doubles(dout.view())), bound);
}

TYPED_TEST(CudaMath, RotationsAndNorms) {
  using A = TypeParam;
  constexpr int d = 64;
  ModelSpec model;
  model.head_dim = d;
  const RopeTable angles(model, 50, kType<A>);
  const std::vector<std::int32_t> positions = {49};
  for (const bool inverse : {false, true}) {
    const Matrix x(kType<A>, 1, d, normal(d));
    std::vector<A> own(x.view().template row<A>(), x.view().template row<A>() + d);
    cpu_kernels().rope({.x = x.view(),
                        .cos = angles.cos(),
                        .sin = angles.sin(),
                        .heads = 1,
                        .head_dim = d,
                        .positions = positions,
                        .inverse = inverse});
    for (std::size_t i = 0; i < d / 2; ++i) {
      cuda::rope_pair(own[i], own[i + d / 2], angles.cos().template row<A>(49)[i],
                      angles.sin().template row<A>(49)[i], inverse ? A(-1) : A(1));
      EXPECT_EQ(own[i], x.view().template row<A>()[i]);
      EXPECT_EQ(own[i + d / 2], x.view().template row<A>()[i + d / 2]);
    }
  }
  const Matrix x(kType<A>, 1, d, normal(d)), w(kType<A>, 1, d, normal(d)), y(kType<A>, 1, d),
      r(kType<A>, 1, 1);
  cpu_kernels().rmsnorm_forward({.x = x.view(), .weight = w.view(), .y = y.view(), .inverse_rms = r.view()});
  for (std::int64_t i = 0; i < d; ++i)
    EXPECT_EQ(cuda::rmsnorm_element(x.view().template row<A>()[i], r.view().template row<A>()[0],
                                    w.view().template row<A>()[i]),
              y.view().template row<A>()[i]);
}

TYPED_TEST(CudaMath, OnlineSoftmaxInAnyPieces) {
  using A = TypeParam;
  const std::vector<double> x = normal(777, 30.0);
  const auto over = [&](std::size_t first, std::size_t last) {
    cuda::SoftmaxState<A> s{-INFINITY, A(0)};
    std::size_t i = first;
    for (; i + 4 <= last; i += 4) {
      const A pack[4] = {static_cast<A>(x[i]), static_cast<A>(x[i + 1]), static_cast<A>(x[i + 2]),
                         static_cast<A>(x[i + 3])};
      cuda::softmax_add(s, pack);
    }
    for (; i < last; ++i) {
      const A one[1] = {static_cast<A>(x[i])};
      cuda::softmax_add(s, one);
    }
    return s;
  };
  const auto whole = over(0, x.size());
  const auto empty = over(0, 0);
  const auto cut = cuda::softmax_merge(cuda::softmax_merge(over(0, 100), empty), over(100, x.size()));
  long double sum = 0;
  for (const double v : x)
    sum += std::exp(static_cast<long double>(static_cast<A>(v)) - static_cast<long double>(whole.highest));
  const double bound = sizeof(A) == 8 ? 1e-13 : 1e-5;
  EXPECT_EQ(whole.highest, cut.highest);
  EXPECT_NEAR(static_cast<double>(whole.sum / static_cast<A>(sum)), 1.0, bound);
  EXPECT_NEAR(static_cast<double>(cut.sum / static_cast<A>(sum)), 1.0, bound);
  EXPECT_EQ(cuda::softmax_merge(empty, empty).sum, A(0));
  cuda::SoftmaxState<A> bad{-INFINITY, A(0)};
  const A unlucky[2] = {static_cast<A>(NAN), A(0)}, fine[1] = {A(1)};
  cuda::softmax_add(bad, unlucky);
  cuda::softmax_add(bad, fine);
  cuda::SoftmaxState<A> hidden{-INFINITY, A(0)};
  const A nothing[2] = {-INFINITY, -INFINITY};
  cuda::softmax_add(hidden, nothing);
  EXPECT_EQ(hidden.sum, A(0));
  EXPECT_TRUE(std::isnan(static_cast<double>(bad.sum)));  // a bad logit is not lost
}

// As threads and blocks of squared_norm add: lanes settle after 4, then neighbours in pairs.
double norm_of(const std::vector<float>& x, std::size_t lanes) {
  std::vector<cuda::TwoFloat> sums(lanes, {0, 0});
  for (std::size_t i = 0; i < x.size(); i += 4 * lanes)
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      for (std::size_t k = i + 4 * lane; k < std::min(x.size(), i + 4 * lane + 4); ++k)
        cuda::add_square(sums[lane], x[k]);
      cuda::settle(sums[lane]);
    }
  for (std::size_t n = lanes / 2; n > 0; n /= 2)
    for (std::size_t lane = 0; lane < n; ++lane) sums[lane] += sums[lane + n];
  return cuda::in_fp64(sums[0]);
}

// Numbers: 1e7 squares about 1e-20, 1 and 1e20 and as many equal ones, against long double. A lane's n additions leave at
// most n 2^-43, in practice a hundredth of that; fp32 alone (the control) is off in the third digit.
TEST(TwoFloat, SumsOfSquaresAreRightWithoutFp64) {
  std::mt19937 engine(7);
  std::normal_distribution<float> normal_number;
  for (const float scale : {1e-10f, 1.0f, 1e10f, 0.0f}) {
    std::vector<float> x(10'000'001, 0.1f);
    for (float& v : x)
      if (scale != 0) v = scale * normal_number(engine);
    long double exact = 0;
    float plain = 0;
    for (const float v : x) {
      exact += static_cast<long double>(v) * v;
      plain += v * v;
    }
    for (const std::size_t lanes : {std::size_t{1}, std::size_t{1024}})
      EXPECT_NEAR(norm_of(x, lanes) / static_cast<double>(exact), 1.0, 1e-8 / static_cast<double>(lanes))
          << scale << " " << lanes;
    EXPECT_GT(std::abs(plain / static_cast<double>(exact) - 1), 1e-4) << scale;
  }
}

TEST(TwoFloat, WhatComesFirstChangesNoBit) {
  for (const auto& [x, y] : {std::pair(cuda::TwoFloat{1.0f, 3e-9f}, cuda::TwoFloat{3e5f, -7e-3f}),
                             {{2.0f, 1e-8f}, {2.0f, -1e-8f}}}) {
    cuda::TwoFloat a = x, b = y;
    a += y;
    b += x;
    EXPECT_EQ(a.high, b.high);
    EXPECT_EQ(a.low, b.low);
  }
}

TEST(TwoFloat, WhatIsNotFiniteStaysSo) {
  for (const float bad : {2e19f, std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(norm_of({1, 2, bad, 3, bad, 5}, 4), std::numeric_limits<double>::infinity());
    EXPECT_EQ(norm_of({1, 2, 3, bad, 5}, 1), std::numeric_limits<double>::infinity());
  }
  EXPECT_TRUE(std::isnan(norm_of({1, NAN, 3}, 2)));
  EXPECT_EQ(norm_of({}, 4), 0.0);
}

}  // namespace
}  // namespace sextant::testing

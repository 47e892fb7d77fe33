// The arithmetic of one element, for the GPU's kernels and for tests that hold it against the CPU's table on a
// machine without a GPU. A is float or double; no memory, no rounding to bf16.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/host_device.hpp"

namespace sextant::cuda {

SEXTANT_BOTH float exponential(float x) { return expf(x); }
SEXTANT_BOTH double exponential(double x) { return exp(x); }
SEXTANT_BOTH float fused(float a, float b, float c) { return fmaf(a, b, c); }
SEXTANT_BOTH double fused(double a, double b, double c) { return fma(a, b, c); }
SEXTANT_BOTH float root(float x) { return sqrtf(x); }
SEXTANT_BOTH double root(double x) { return sqrt(x); }

// AdamW (Loshchilov & Hutter 2019) with its scalars worked out: the same expressions in the same order as the
// CPU's, so that with contraction off a host that updates a part gives the same bits.
template <class A>
struct AdamwFactors {
  A keep, scale, beta1, beta2, rest1, rest2, step, root2, eps;
};
template <class A>
SEXTANT_BOTH A adamw_element(const AdamwFactors<A>& f, A gradient, A master, A& m, A& v) {
  const A d = gradient * f.scale;
  m = f.beta1 * m + f.rest1 * d;
  v = f.beta2 * v + f.rest2 * (d * d);
  return master * f.keep - f.step * (m / (root(v) * f.root2 + f.eps));
}

// `quick`: what is rounded to bf16 does not see some units in the last place of fp32, and a division that is right to the
// last bit takes half of a SwiGLU's instructions.
template <bool quick = false, class A>
SEXTANT_BOTH A sigmoid(A x) {
#ifdef __CUDA_ARCH__
  if constexpr (quick)
    return __fdividef(1.0f, 1.0f + __expf(-x));
  else
#endif
    return A(1) / (A(1) + exponential(-x));
}
template <bool quick = false, class A>
SEXTANT_BOTH A swiglu_element(A gate, A up) {
  return gate * sigmoid<quick>(gate) * up;
}
// gate and up become their gradients, dout becomes silu(gate) * up.
template <bool quick = false, class A>
SEXTANT_BOTH void swiglu_gradient(A& gate, A& up, A& dout) {
  const A s = sigmoid<quick>(gate), silu = gate * s, u = up, d = dout;
  const A dgate = d * u * (s * (A(1) + gate * (A(1) - s)));
  gate = dgate;
  up = d * silu;
  dout = silu * u;
}

// The pair (i, i + d/2) of a head, by the angle of its position; `sign` -1 turns back.
template <class A>
SEXTANT_BOTH void rope_pair(A& first, A& second, A cosine, A sine, A sign) {
  const A a = first, b = second, s = sign * sine;
  first = a * cosine - b * s;
  second = b * cosine + a * s;
}

template <class A>
SEXTANT_BOTH A rmsnorm_element(A x, A inverse_rms, A weight) {
  return x * inverse_rms * weight;
}
// `along`: sum(w dy x) r^2 / n.
template <class A>
SEXTANT_BOTH A rmsnorm_gradient(A x, A inverse_rms, A weight, A dy, A along) {
  return inverse_rms * (dy * weight - x * along);
}

// Running maximum and sum of exp(x - maximum) (Milakov & Gimelshein 2018); empty is {-inf, 0}.
template <class A>
struct SoftmaxState {
  A highest, sum;
};
template <class A>
SEXTANT_BOTH A shift_of(A highest) {
  return highest == -INFINITY ? A(0) : highest;  // nothing seen yet: exp(-inf - 0) = 0
}
// Some at once: the sum is scaled for the highest of them alone.
template <class A, int N>
SEXTANT_BOTH void softmax_add(SoftmaxState<A>& s, const A (&x)[N]) {
  A highest = s.highest;
  for (int i = 0; i < N; ++i) highest = x[i] > highest ? x[i] : highest;
  if (highest > s.highest) {
    s.sum *= exponential(s.highest - highest);
    s.highest = highest;
  }
  const A shift = shift_of(highest);
  for (int i = 0; i < N; ++i) s.sum += exponential(x[i] - shift);
}
template <class A>
SEXTANT_BOTH SoftmaxState<A> softmax_merge(SoftmaxState<A> a, SoftmaxState<A> b) {
  const A highest = a.highest > b.highest ? a.highest : b.highest, shift = shift_of(highest);
  return {highest, a.sum * exponential(a.highest - shift) + b.sum * exponential(b.highest - shift)};
}

template <class A>
SEXTANT_BOTH A cross_entropy_gradient_element(A logit, A highest, A inverse_sum, bool target, A scale) {
  const A probability = exponential(logit - highest) * inverse_sum;
  return (target ? probability - A(1) : probability) * scale;
}

}  // namespace sextant::cuda

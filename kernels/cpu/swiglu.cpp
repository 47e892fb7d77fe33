// SwiGLU (Shazeer 2020): out = silu(gate) * up, silu(g) = g * sigmoid(g).
// d silu / dg = sigmoid(g) * (1 + g * (1 - sigmoid(g))).
#include "kernels/cpu/element.hpp"
#include "kernels/cpu/kernels.hpp"

namespace sextant::cpu {
namespace {

template <class A>
A sigmoid(A x) {
  return A{1} / (A{1} + exponential(-x));
}

}  // namespace

void swiglu_forward(const SwigluForwardArgs& g) {
  SEXTANT_CHECK(g.gate.rows == g.out.rows && g.up.rows == g.out.rows && g.gate.cols == g.out.cols &&
                    g.up.cols == g.out.cols,
                "swiglu: extents disagree");
  with_type(g.gate.dtype, [&]<class T>() {
    for (std::int64_t t = 0; t < g.out.rows; ++t) {
      const T* gate = g.gate.row<T>(t);
      const T* up = g.up.row<T>(t);
      T* out = g.out.row<T>(t);
      for (std::int64_t i = 0; i < g.out.cols; ++i) {
        const auto x = load(gate[i]);
        out[i] = store<T>(x * sigmoid(x) * load(up[i]));
      }
    }
  });
}

void swiglu_backward(const SwigluBackwardArgs& g) {
  SEXTANT_CHECK(g.gate.rows == g.dout.rows && g.up.rows == g.dout.rows && g.gate.cols == g.dout.cols &&
                    g.up.cols == g.dout.cols,
                "swiglu: extents disagree");
  with_type(g.gate.dtype, [&]<class T>() {
    using A = Accumulator<T>;
    for (std::int64_t t = 0; t < g.dout.rows; ++t) {
      T* gate = g.gate.row<T>(t);
      T* up = g.up.row<T>(t);
      T* dout = g.dout.row<T>(t);
      for (std::int64_t i = 0; i < g.dout.cols; ++i) {
        const A x = load(gate[i]), u = load(up[i]), d = load(dout[i]);
        const A s = sigmoid(x), silu = x * s;
        gate[i] = store<T>(d * u * (s * (A{1} + x * (A{1} - s))));
        up[i] = store<T>(d * silu);
        dout[i] = store<T>(silu * u);
      }
    }
  });
}

}  // namespace sextant::cpu

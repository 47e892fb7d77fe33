// AdamW (Loshchilov & Hutter 2019), decay decoupled: p *= 1 - rate*decay; p -= rate * mhat / (sqrt(vhat) +
// eps).
#include <algorithm>

#include "kernels/cpu/element.hpp"
#include "kernels/cpu/kernels.hpp"
#include "kernels/parallel.hpp"

namespace sextant::cpu {
namespace {

template <class T>
void update(const AdamwArgs& g, std::int64_t begin, std::int64_t end, bool decays) {
  using A = Accumulator<T>;
  const AdamwScalars& s = *g.scalars;
  const A keep = decays ? static_cast<A>(s.keep) : A(1), scale = static_cast<A>(s.gradient_scale);
  const A beta1 = static_cast<A>(g.beta1), beta2 = static_cast<A>(g.beta2);
  const A rest1 = static_cast<A>(1.0 - g.beta1), rest2 = static_cast<A>(1.0 - g.beta2);
  const A step = static_cast<A>(s.step), root2 = static_cast<A>(s.root2);
  const A eps = static_cast<A>(g.eps);
  A* master = g.master.row<A>();
  A* m = g.moment1.row<A>();
  A* v = g.moment2.row<A>();
  const A* gradient = g.gradient.row<A>();
  T* parameter = g.parameter.row<T>();
  for (std::int64_t i = begin; i < end; ++i) {
    const A d = gradient[i] * scale;
    m[i] = beta1 * m[i] + rest1 * d;
    v[i] = beta2 * v[i] + rest2 * (d * d);
    const A p = master[i] * keep - step * (m[i] / (std::sqrt(v[i]) * root2 + eps));
    master[i] = p;
    parameter[i] = store<T>(p);
  }
}

}  // namespace

void adamw(const AdamwArgs& g) {
  const std::int64_t n = g.master.cols;
  SEXTANT_CHECK(g.moment1.cols == n && g.moment2.cols == n && g.gradient.cols == n && g.parameter.cols == n &&
                    g.scalars != nullptr,
                "adamw: extents disagree");
  if (g.scalars->skip) return;
  with_type(g.parameter.dtype, [&]<class T>() {
    const auto apply = [&](std::int64_t first, std::int64_t last, bool decays) {
      parallel_for(last - first, 1 << 16, [&](std::int64_t begin, std::int64_t end) {
        update<T>(g, first + begin, first + end, decays);
      });
    };
    std::int64_t at = 0;
    for (const ElementRange& range : g.decay) {
      const std::int64_t begin = std::clamp<std::int64_t>(range.begin, at, n);
      const std::int64_t end = std::clamp<std::int64_t>(range.end, begin, n);
      apply(at, begin, false);
      apply(begin, end, true);
      at = end;
    }
    apply(at, n, false);
  });
}

}  // namespace sextant::cpu

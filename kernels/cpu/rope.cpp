// Rotary position embedding (Su et al. 2021) on halves of a head, as Hugging Face stores LLaMA's q and k.
#include "kernels/cpu/element.hpp"
#include "kernels/cpu/kernels.hpp"

namespace sextant::cpu {

void rope(const RopeArgs& g) {
  const int half = g.head_dim / 2;
  SEXTANT_CHECK(g.x.cols == static_cast<std::int64_t>(g.heads) * g.head_dim && g.head_dim % 2 == 0 &&
                    g.cos.cols == half && g.sin.cols == half && !g.positions.empty(),
                "rope: extents disagree");
  with_type(g.x.dtype, [&]<class T>() {
    using A = Accumulator<T>;
    for (std::int64_t t = 0; t < g.x.rows; ++t) {
      const std::int32_t position = g.positions[static_cast<std::size_t>(t) % g.positions.size()];
      SEXTANT_CHECK(position >= 0 && position < g.cos.rows, "rope: position beyond the table");
      const A* cosine = g.cos.row<A>(position);
      const A* sine = g.sin.row<A>(position);
      const A sign = g.inverse ? A{-1} : A{1};
      for (int head = 0; head < g.heads; ++head) {
        T* first = g.x.row<T>(t) + static_cast<std::int64_t>(head) * g.head_dim;
        T* second = first + half;
        for (int i = 0; i < half; ++i) {
          const A a = load(first[i]), b = load(second[i]), s = sign * sine[i];
          first[i] = store<T>(a * cosine[i] - b * s);
          second[i] = store<T>(b * cosine[i] + a * s);
        }
      }
    }
  });
}

}  // namespace sextant::cpu

// Normal numbers by their place in a tensor, by all cores: any number of threads gives the same.
#include <algorithm>

#include "kernels/counter_normal.hpp"
#include "kernels/cpu/element.hpp"
#include "kernels/cpu/kernels.hpp"
#include "kernels/parallel.hpp"

namespace sextant::cpu {
namespace {

// Numbers `index` and on of the tensor.
template <class T>
void run_of(const RandomNormalArgs& g, std::uint64_t index, T* to, std::int64_t n) {
  const auto value = [&](double normal) { return store<T>(g.mean + g.deviation * normal); };
  std::int64_t i = 0;
  if ((index & 1) != 0 && n > 0) to[i++] = value(counter::normal(g.key, index));
  for (; i + 2 <= n; i += 2) {
    const counter::Pair both = counter::normal_pair(g.key, (index + static_cast<std::uint64_t>(i)) >> 1);
    to[i] = value(both.first);
    to[i + 1] = value(both.second);
  }
  if (i < n) to[i] = value(counter::normal(g.key, index + static_cast<std::uint64_t>(i)));
}

}  // namespace

void random_normal(const RandomNormalArgs& g) {
  SEXTANT_CHECK(g.x.rows == 1 && g.cols > 0, "random numbers: extents disagree");
  with_type(g.x.dtype, [&]<class T>() {
    T* const to = g.x.row<T>();
    parallel_for(g.x.cols, 1 << 14, [&](std::int64_t begin, std::int64_t end) {
      while (begin < end) {
        const std::int64_t at = g.begin + begin, row = at / g.cols, col = at % g.cols;
        const std::int64_t n = std::min(end - begin, g.cols == g.model_cols ? end - begin : g.cols - col);
        run_of(g, static_cast<std::uint64_t>((g.first_row + row) * g.model_cols + g.first_col + col),
               to + begin, n);
        begin += n;
      }
    });
  });
}

}  // namespace sextant::cpu

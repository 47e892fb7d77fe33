// Rows of a vocabulary slice, and their gradient: repeated tokens add up in their order, always the same way.
#include <algorithm>
#include <vector>

#include "kernels/cpu/element.hpp"
#include "kernels/cpu/kernels.hpp"

namespace sextant::cpu {

void embedding_forward(const EmbeddingForwardArgs& g) {
  SEXTANT_CHECK(g.out.rows == static_cast<std::int64_t>(g.ids.size()) && g.out.cols == g.table.cols,
                "embedding: extents disagree");
  with_type(g.table.dtype, [&]<class T>() {
    for (std::int64_t t = 0; t < g.out.rows; ++t) {
      const std::int64_t row = g.ids[static_cast<std::size_t>(t)] - g.first_id;
      if (row >= 0 && row < g.table.rows)
        std::copy_n(g.table.row<T>(row), g.table.cols, g.out.row<T>(t));
      else
        std::fill_n(g.out.row<T>(t), g.out.cols, T{});
    }
  });
}

// What the tokens of one row add up to is added to it once: a tied head's gradient that is there already is added to that
// sum, in whichever place the two meet.
void embedding_backward(const EmbeddingBackwardArgs& g) {
  SEXTANT_CHECK(g.dout.rows == static_cast<std::int64_t>(g.ids.size()) && g.dout.cols == g.dtable.cols,
                "embedding: extents disagree");
  thread_local std::vector<std::int64_t> tokens;
  tokens.clear();
  for (std::int64_t t = 0; t < g.dout.rows; ++t)
    if (const std::int64_t row = g.ids[static_cast<std::size_t>(t)] - g.first_id;
        row >= 0 && row < g.dtable.rows)
      tokens.push_back(t);
  const auto id = [&](std::int64_t t) { return g.ids[static_cast<std::size_t>(t)]; };
  std::ranges::stable_sort(tokens, {}, id);
  with_type(g.dout.dtype, [&]<class T>() {
    using A = Accumulator<T>;
    thread_local std::vector<A> sum;
    for (std::size_t i = 0; i < tokens.size();) {
      const auto row = id(tokens[i]);
      sum.assign(static_cast<std::size_t>(g.dout.cols), A{});
      for (; i < tokens.size() && id(tokens[i]) == row; ++i) {
        const T* dout = g.dout.row<T>(tokens[i]);
        for (std::size_t c = 0; c < sum.size(); ++c) sum[c] += load(dout[c]);
      }
      A* dtable = g.dtable.row<A>(row - g.first_id);
      for (std::size_t c = 0; c < sum.size(); ++c) dtable[c] += sum[c];
    }
  });
}

}  // namespace sextant::cpu

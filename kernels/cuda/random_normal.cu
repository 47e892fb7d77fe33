// Normal numbers by their place in a tensor: the bits of kernels/cpu/random_normal.cpp. Compiled without contraction.
#include "kernels/counter_normal.hpp"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/kernels.hpp"

namespace sextant::cuda {
namespace {

template <class T>
struct RandomNormal {
  static constexpr int kWidth = kWidthOf<T>;
  T* x;
  std::uint64_t key, first;  // first: the place of x[0] in the tensor, of a slice of whole rows
  std::int64_t begin, cols, first_row, first_col, model_cols;
  double mean, deviation;
  __device__ std::uint64_t place(std::int64_t c) const {
    if (cols == model_cols) return first + static_cast<std::uint64_t>(c);
    const std::int64_t at = begin + c, row = at / cols;
    return static_cast<std::uint64_t>((first_row + row) * model_cols + first_col + (at - row * cols));
  }
  __device__ T value(double normal) const { return narrow<T>(mean + deviation * normal); }
  template <int W>
  __device__ void element(std::int64_t, std::int64_t c) const {
    Pack<T, W> out;
    const std::uint64_t at = place(c);
    if (W > 1 && cols == model_cols && (at & 1) == 0) {  // both numbers of a pair are wanted
#pragma unroll
      for (int i = 0; i + 1 < W; i += 2) {
        const counter::Pair both = counter::normal_pair(key, (at + i) >> 1);
        out.v[i] = value(both.first);
        out.v[i + 1] = value(both.second);
      }
    } else {
      for (int i = 0; i < W; ++i) out.v[i] = value(counter::normal(key, place(c + i)));
    }
    write(x + c, out);
  }
};

}  // namespace

void random_normal(const RandomNormalArgs& g) {
  SEXTANT_CHECK(g.x.rows == 1 && g.cols > 0, "random numbers: extents disagree");
  with_type(g.x.dtype, [&]<class T>() {
    const auto first = static_cast<std::uint64_t>(g.first_row * g.model_cols + g.first_col + g.begin);
    map(stream_of(g.stream),
        RandomNormal<T>{g.x.row<T>(), g.key, first, g.begin, g.cols, g.first_row, g.first_col, g.model_cols,
                        g.mean, g.deviation},
        1, 0, g.x.cols, aligned(g.x), "random numbers");
  });
}

}  // namespace sextant::cuda

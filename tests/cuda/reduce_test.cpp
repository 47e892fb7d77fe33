// System: sums and maxima over the parts of ranks that share a GPU. Expectation: the bits of the CPU's sum in pairs by place
// (runtime/communicators/ordered_sum.hpp), for every number of parts up to 17 and for 64, at lengths and alignments that split
// packs, into memory of its own and into a part's. Control: two parts that change places.
#include <cmath>
#include <limits>

#include "kernels/cuda/kernels.hpp"
#include "runtime/communicators/ordered_sum.hpp"
#include "tests/cuda/twin.hpp"

namespace sextant::testing {
namespace {

class CudaReduce : public GpuTest {
 protected:
  // The parts are rows of `x`; what comes of them, on either side.
  static std::vector<double> reduced(const Twin& x, std::int64_t shift, std::int64_t n, bool maximum,
                                     bool gpu, bool swapped) {
    const std::int64_t count = x.on(false).rows;
    const Twin out = Twin::poisoned(x.on(false).dtype, 1, x.on(false).cols);
    std::vector<const void*> parts;
    for (std::int64_t p = 0; p < count; ++p)
      parts.push_back(x.on(gpu).row_range(p, 1).column_range(shift, n).data);
    if (swapped) std::swap(parts.front(), parts.back());
    const TensorView to = out.on(gpu).column_range(shift, n);
    if (!gpu) {
      reduce_in_order(parts, to.data, n, to.dtype, maximum ? Reduction::max : Reduction::sum);
      return to_doubles(to);
    }
    test_gpu()->launch(test_stream(), [&](NativeStream s) {
      cuda::reduce_in_order(parts, to.data, n, to.dtype, maximum, s);
    });
    synchronize_gpu();
    return to_doubles(out.downloaded().view().column_range(shift, n));
  }
};

TEST_F(CudaReduce, GivesTheBitsOfTheCpu) {
  for (const Dtype dtype : kDtypes)
    for (const std::int64_t parts : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 64})
      for (const bool maximum : {false, true}) {
        const Twin x(dtype, parts, 1040);
        for (const std::int64_t shift : {0, 1})
          EXPECT_EQ(reduced(x, shift, 1031, maximum, true, false),
                    reduced(x, shift, 1031, maximum, false, false))
              << label("reduce", dtype, parts, 1031, shift) << (maximum ? " maximum" : "");
      }
}

TEST_F(CudaReduce, AnotherOrderIsSeen) {
  const Twin x(Dtype::fp32, 5, 1040);
  EXPECT_NE(reduced(x, 0, 1031, false, true, true), reduced(x, 0, 1031, false, false, false));
}

}  // namespace
}  // namespace sextant::testing

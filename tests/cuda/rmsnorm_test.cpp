// System: the GPU's root-mean-square norm and its gradient. Expectation: what the CPU's reference table gives, as in kernels_test.cpp.
#include "tests/cuda/twin.hpp"

namespace sextant::testing {
namespace {

class CudaRmsnorm : public GpuTest {};

TEST_F(CudaRmsnorm, Rmsnorm) {
  for_each_extent([&](Dtype dtype, std::int64_t rows, std::int64_t cols, std::int64_t gap) {
    const Dtype wide = accumulator_of(dtype);
    const Twin x(dtype, rows, cols + gap), weight(dtype, 1, cols, 0.2, 1.0), dy(dtype, rows, cols + gap),
        bypass(dtype, rows, cols + gap), dweight(wide, 1, cols);
    const Twin y = Twin::poisoned(dtype, rows, cols + gap), again = Twin::poisoned(dtype, rows, cols + gap),
               inverse = Twin::poisoned(wide, 1, rows), dx = Twin::poisoned(dtype, rows, cols + gap);
    on_both(table(), [&](const KernelTable& k, bool gpu, NativeStream s) {
      const auto at = [&](const Twin& t) { return t.on(gpu).column_range(0, cols); };
      k.rmsnorm_forward({.x = at(x),
                         .weight = weight.on(gpu),
                         .y = at(y),
                         .inverse_rms = inverse.on(gpu),
                         .eps = 1e-5,
                         .stream = s});
      k.rmsnorm_apply({.x = at(x),
                       .inverse_rms = inverse.on(gpu),
                       .weight = weight.on(gpu),
                       .y = at(again),
                       .stream = s});
      RmsnormBackwardArgs args{.x = at(x),
                               .inverse_rms = inverse.on(gpu),
                               .weight = weight.on(gpu),
                               .dy = at(dy),
                               .bypass = {},
                               .dx = at(dx),
                               .dweight = dweight.on(gpu),
                               .stream = s};
      k.rmsnorm_backward(args);
      args.bypass = at(bypass);
      args.dx = at(dy);  // in place
      k.rmsnorm_backward(args);
    });
    const std::string what = label("rmsnorm", dtype, rows, cols, gap);
    const double bound = bound_of(dtype, 4);
    y.expect_columns_alike(0, cols, bound, what);
    again.expect_columns_alike(0, cols, bound, what);
    inverse.expect_alike(bound_of(wide), what);
    if (cols > 1) dx.expect_columns_alike(0, cols, bound, what);  // of one column dx is but rounding
    dy.expect_columns_alike(0, cols, bound, what);
    dweight.expect_alike(bound, what);
    EXPECT_EQ(to_doubles(again.downloaded().view().column_range(0, cols)),
              to_doubles(y.downloaded().view().column_range(0, cols)))
        << what;
  });
}

// A third of rows that several ranks have: the norm both ways with sums of whole rows.
TEST_F(CudaRmsnorm, RmsnormOfRowsOnSeveralRanks) {
  for_each_extent([&](Dtype dtype, std::int64_t rows, std::int64_t cols, std::int64_t gap) {
    const Dtype wide = accumulator_of(dtype);
    const Twin x(dtype, rows, cols + gap), weight(dtype, 1, cols, 0.2, 1.0), dy(dtype, rows, cols + gap),
        squares(wide, 1, rows, 0.1, 3.0 * static_cast<double>(cols)),
        sums(wide, 1, rows, static_cast<double>(cols), 10.0 * static_cast<double>(cols)),
        dweight(wide, 1, cols);
    const Twin dx = Twin::poisoned(dtype, rows, cols + gap);
    const auto backward = [&](std::int64_t gpu_width) {
      on_both(table(), [&](const KernelTable& k, bool gpu, NativeStream s) {
        const auto at = [&](const Twin& t) { return t.on(gpu).column_range(0, cols); };
        k.rmsnorm_backward({.x = at(x),
                            .inverse_rms = squares.on(gpu),
                            .weight = weight.on(gpu),
                            .dy = at(dy),
                            .bypass = {},
                            .dx = at(dx),
                            .dweight = dweight.on(gpu),
                            .dots = sums.on(gpu),
                            .width = gpu ? gpu_width : 3 * cols,
                            .stream = s});
      });
    };
    on_both(table(), [&](const KernelTable& k, bool gpu, NativeStream s) {
      k.inverse_rms({.x = squares.on(gpu), .width = 3 * cols, .eps = 1e-5, .stream = s});
    });
    const std::string what = label("rmsnorm of a part", dtype, rows, cols, gap);
    squares.expect_alike(bound_of(wide), what);
    backward(3 * cols);
    dx.expect_columns_alike(0, cols, bound_of(dtype, 4), what);
    dweight.expect_alike(bound_of(dtype, 4), what);
    backward(4 * cols);  // control: of rows of another width
    const Matrix wrong = dx.downloaded();
    EXPECT_GT(relative_distance(to_doubles(wrong.view().column_range(0, cols)),
                                to_doubles(dx.on(false).column_range(0, cols))),
              bound_of(dtype, 4))
        << what;
  });
}

// More rows than blocks, so that a block goes over several; rows of one and two packs a thread, and longer ones.
TEST_F(CudaRmsnorm, RmsnormBackwardOverManyRowsAndWideOnes) {
  struct Extent {
    std::int64_t rows, cols;
  };
  for (const Dtype dtype : {Dtype::fp32, Dtype::bf16})
    for (const Extent e : {Extent{700, 136}, {515, 95}, {3, 5120}, {300, 8192}, {2, 12288}})
      for (const bool in_place : {false, true}) {
        if (left_out()) continue;
        const Dtype wide = accumulator_of(dtype);
        const Twin x(dtype, e.rows, e.cols), weight(dtype, 1, e.cols, 0.2, 1.0), dy(dtype, e.rows, e.cols),
            bypass(dtype, e.rows, e.cols), inverse(wide, 1, e.rows, 0.1, 1.0), dweight(wide, 1, e.cols);
        const Twin dx = Twin::poisoned(dtype, e.rows, e.cols);
        on_both(table(), [&](const KernelTable& k, bool gpu, NativeStream s) {
          k.rmsnorm_backward({.x = x.on(gpu),
                              .inverse_rms = inverse.on(gpu),
                              .weight = weight.on(gpu),
                              .dy = dy.on(gpu),
                              .bypass = in_place ? bypass.on(gpu) : TensorView(),
                              .dx = (in_place ? bypass : dx).on(gpu),
                              .dweight = dweight.on(gpu),
                              .stream = s});
        });
        const std::string what = label("rmsnorm backward", dtype, e.rows, e.cols);
        (in_place ? bypass : dx).expect_alike(bound_of(dtype, 4), what);
        dweight.expect_alike(bound_of(dtype, 4), what);
      }
}

// The stream, its copy and the norm of a sum in one kernel, also of rows that do not fit in shared memory.
TEST_F(CudaRmsnorm, ResidualAndRmsnorm) {
  const auto compare = [&](Dtype dtype, std::int64_t rows, std::int64_t cols, std::int64_t gap, bool adds,
                           bool keeps) {
    const Dtype wide = accumulator_of(dtype);
    const Twin x(dtype, rows, cols + gap), branch(dtype, rows, cols + gap), weight(dtype, 1, cols, 0.2, 1.0);
    const Twin y = Twin::poisoned(dtype, rows, cols + gap), kept = Twin::poisoned(dtype, rows, cols + gap),
               inverse = Twin::poisoned(wide, 1, rows);
    on_both(table(), [&](const KernelTable& k, bool gpu, NativeStream s) {
      const auto at = [&](const Twin& t) { return t.on(gpu).column_range(0, cols); };
      k.rmsnorm_forward({.x = at(x),
                         .weight = weight.on(gpu),
                         .y = at(y),
                         .inverse_rms = inverse.on(gpu),
                         .branch = adds ? at(branch) : TensorView(),
                         .kept = keeps ? at(kept) : TensorView(),
                         .eps = 1e-5,
                         .stream = s});
    });
    const std::string what = label(adds ? "residual and rmsnorm" : "kept rmsnorm", dtype, rows, cols, gap);
    x.expect_columns_alike(0, cols, 0, what);
    branch.expect_alike(0, what);                 // one addition, rounded alike
    kept.expect_columns_alike(0, cols, 0, what);  // of keeps = false: poisoned on both sides
    y.expect_columns_alike(0, cols, bound_of(dtype, 4), what);
    inverse.expect_alike(bound_of(wide), what);
  };
  for_each_extent([&](Dtype dtype, std::int64_t rows, std::int64_t cols, std::int64_t gap) {
    for (const bool adds : {false, true})
      for (const bool keeps : {false, true}) compare(dtype, rows, cols, gap, adds, keeps);
  });
  compare(Dtype::bf16, 7, 32768, 0, true, true);
  compare(Dtype::fp32, 3, 20001, 0, true, true);
}

}  // namespace
}  // namespace sextant::testing

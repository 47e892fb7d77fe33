// System: the whole runtime on a GPU over one batch of every architecture. Expectation: the loss and the gradient of every
// parameter as computed elsewhere in float64, as for CPU ranks (tests/reference/layouts_test.cpp). Numbers: relative norm
// 1e-10 in fp64 and 1e-5 in fp32, for own tiles and for the libraries'; in bf16 3e-2 to 6e-2, by the depth of the
// case, and 1e-3 of the loss.
#include "tests/cuda/gpu_ranks.hpp"
#include "tests/cuda/twin.hpp"
#include "tests/reference/gradient_trials.hpp"

namespace sextant::testing {
namespace {

class CudaGradients : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    SEXTANT_NEEDS_REFERENCE();
  }
};

void expect_all(Dtype dtype, double bound, bool reference) {
  for (const GradientTrial& trial : kGradientTrials)
    for (const char* key : trial.layouts)
      if (!left_out())
        expect_gradients(trial.fixture, key, dtype, dtype == Dtype::bf16 ? trial.bf16_bound : bound,
                         ranks_of_a_gpu(reference));
}

TEST_F(CudaGradients, InFp64) { expect_all(Dtype::fp64, 1e-10, true); }
TEST_F(CudaGradients, InFp32ByTiles) { expect_all(Dtype::fp32, 1e-5, true); }
TEST_F(CudaGradients, InFp32ByLibraries) { expect_all(Dtype::fp32, 1e-5, false); }
TEST_F(CudaGradients, InBf16ByTiles) { expect_all(Dtype::bf16, 0, true); }
TEST_F(CudaGradients, InBf16ByLibraries) { expect_all(Dtype::bf16, 0, false); }

TEST_F(CudaGradients, WrongOnesAreSeen) {
  expect_wrong_gradients_are_seen("gqa-odd", "mbs4", Dtype::fp64, 1e-10, ranks_of_a_gpu(true));
  expect_wrong_gradients_are_seen("gqa-odd", "mbs4", Dtype::fp32, 1e-5, ranks_of_a_gpu(false));
  for (const GradientTrial& trial : kGradientTrials)
    expect_wrong_gradients_are_seen(trial.fixture, trial.layouts.front(), Dtype::bf16, trial.bf16_bound,
                                    ranks_of_a_gpu(false));
}

}  // namespace
}  // namespace sextant::testing

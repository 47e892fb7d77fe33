// System: the whole runtime on a GPU over one batch of every architecture. Expectation: the loss and the gradient of every
// parameter as computed elsewhere in float64, as for CPU ranks (tests/reference/layouts_test.cpp). Numbers: relative norm
// 1e-10 in fp64 and 1e-5 in fp32, for own tiles and for the libraries'; 6e-2 in bf16, that of the CPU's kernels.
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
      if (!left_out()) expect_gradients(trial.fixture, key, dtype, bound, ranks_of_a_gpu(reference));
}

TEST_F(CudaGradients, InFp64) { expect_all(Dtype::fp64, 1e-10, true); }
TEST_F(CudaGradients, InFp32ByTiles) { expect_all(Dtype::fp32, 1e-5, true); }
TEST_F(CudaGradients, InFp32ByLibraries) { expect_all(Dtype::fp32, 1e-5, false); }
TEST_F(CudaGradients, InBf16) {
  for (const bool reference : {true, false})
    expect_gradients("deep", "mbs8", Dtype::bf16, 6e-2, ranks_of_a_gpu(reference));
}

TEST_F(CudaGradients, WrongOnesAreSeen) {
  expect_wrong_gradients_are_seen(Dtype::fp64, 1e-10, ranks_of_a_gpu(true));
  expect_wrong_gradients_are_seen(Dtype::fp32, 1e-5, ranks_of_a_gpu(false));
}

}  // namespace
}  // namespace sextant::testing

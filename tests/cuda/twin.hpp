// The same matrix twice: in the host's memory for the CPU's kernels and on the GPU for its own. A call is made on
// both sides with the same arguments; what it wrote is compared, and so is what it must not have touched.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/cuda_kernels.hpp"
#include "runtime/devices/host_access.hpp"
#include "runtime/devices/make_device.hpp"
#include "tests/reference/matrix.hpp"

namespace sextant::testing {

// The GPU of the tests, or nullptr and why there is none.
inline Device* test_gpu(std::string* why = nullptr) {
  static std::string reason;
  static const std::unique_ptr<Device> device = [] {
    std::unique_ptr<Device> made;
    if (cuda_gpus(reason).empty()) return made;
    try {
      made = make_cuda_device({.rehearses = false});
    } catch (const BackendError& error) {
      reason = error.what();
    }
    return made;
  }();
  if (why) *why = reason;
  return device.get();
}

#define SEXTANT_NEEDS_GPU()                                                         \
  if (std::string why_no_gpu; ::sextant::testing::test_gpu(&why_no_gpu) == nullptr) \
  GTEST_SKIP() << "no usable GPU: " << why_no_gpu

inline StreamId test_stream() {
  static const StreamId stream = test_gpu()->create_stream("test");
  return stream;
}
inline void synchronize_gpu() { test_gpu()->synchronize(test_gpu()->record(test_stream())); }

class Twin {
 public:
  // Random values about `mean`; every run of the tests draws others unless a seed is given (--gtest_random_seed).
  Twin(Dtype dtype, std::int64_t rows, std::int64_t cols, double deviation = 1.0, double mean = 0.0)
      : Twin(dtype, rows, cols, random(rows * cols, deviation, mean)) {}
  Twin(Dtype dtype, std::int64_t rows, std::int64_t cols, const std::vector<double>& values)
      : host_(dtype, rows, cols, values),
        memory_(*test_gpu(), Space::device, Bytes(std::max<std::int64_t>(host_.view().bytes(), 1))) {
    upload();
  }
  // An output: every byte 0xff, which is NaN in every format.
  static Twin poisoned(Dtype dtype, std::int64_t rows, std::int64_t cols) {
    Twin twin(dtype, rows, cols, std::vector<double>(static_cast<std::size_t>(rows * cols), 0.0));
    std::memset(twin.host_.view().data, 0xff, static_cast<std::size_t>(twin.host_.view().bytes()));
    twin.upload();
    return twin;
  }
  void upload() const {
    test_gpu()->transfer(memory_.data(), host_.view().data, Bytes(host_.view().bytes()));
  }

  TensorView on(bool gpu) const {
    TensorView view = host_.view();
    if (gpu) view.data = memory_.data();
    return view;
  }
  Matrix downloaded() const {
    const TensorView view = host_.view();
    Matrix copy(view.dtype, view.rows, view.cols);
    test_gpu()->transfer(copy.view().data, memory_.data(), Bytes(view.bytes()));
    return copy;
  }
  // Both sides are alike within a relative norm; bound 0: in every bit.
  void expect_alike(double bound, const std::string& what) const {
    const Matrix got = downloaded();
    if (bound == 0) {
      EXPECT_EQ(std::memcmp(got.view().data, host_.view().data, static_cast<std::size_t>(got.view().bytes())),
                0)
          << what;
      return;
    }
    EXPECT_LE(relative_distance(to_doubles(got.view()), to_doubles(host_.view())), bound) << what;
  }
  // The same for some columns; the others must be as they were on both sides, poison (which equals nothing) too.
  void expect_columns_alike(std::int64_t first, std::int64_t count, double bound,
                            const std::string& what) const {
    const Matrix got = downloaded();
    for (const auto& [begin, n, near] : {std::tuple{std::int64_t{0}, first, 0.0},
                                         {first, count, bound},
                                         {first + count, host_.view().cols - first - count, 0.0}}) {
      if (n <= 0) continue;
      const TensorView gpu = got.view().column_range(begin, n), cpu = host_.view().column_range(begin, n);
      if (near == 0)
        EXPECT_TRUE(same_bits(gpu, cpu)) << what << ": columns " << begin << " to " << begin + n;
      else
        EXPECT_LE(relative_distance(to_doubles(gpu), to_doubles(cpu)), near) << what;
    }
  }

 private:
  static bool same_bits(const TensorView& a, const TensorView& b) {
    const std::int64_t element = size_bytes(a.dtype);
    for (std::int64_t r = 0; r < a.rows; ++r)
      if (std::memcmp(static_cast<const std::byte*>(a.data) + r * a.stride * element,
                      static_cast<const std::byte*>(b.data) + r * b.stride * element,
                      static_cast<std::size_t>(a.cols * element)) != 0)
        return false;
    return true;
  }
  static std::vector<double> random(std::int64_t n, double deviation, double mean) {
    static std::mt19937_64 engine(
        static_cast<std::uint64_t>(::testing::UnitTest::GetInstance()->random_seed()) +
        std::random_device{}());
    std::normal_distribution<double> normal(mean, deviation);
    std::vector<double> values(static_cast<std::size_t>(n));
    for (double& v : values) v = normal(engine);
    return values;
  }
  Matrix host_;
  Allocation memory_;
};

// Whole numbers on both sides.
class TwinList {
 public:
  explicit TwinList(std::vector<std::int32_t> values)
      : values_(std::move(values)),
        memory_(*test_gpu(), Space::device, Bytes(static_cast<std::int64_t>(4 * values_.size() + 4))) {
    test_gpu()->transfer(memory_.data(), values_.data(),
                         Bytes(static_cast<std::int64_t>(4 * values_.size())));
  }
  std::span<const std::int32_t> on(bool gpu) const {
    if (!gpu) return values_;
    return {reinterpret_cast<const std::int32_t*>(memory_.data()), values_.size()};
  }

 private:
  std::vector<std::int32_t> values_;
  Allocation memory_;
};

// Calls `f(table, gpu, stream)` for the CPU and then for the GPU, and waits.
template <class F>
void on_both(const KernelTable& gpu_table, F&& f) {
  f(cpu_reference_kernels(), false, NativeStream{});
  test_gpu()->launch(test_stream(), [&](NativeStream stream) { f(gpu_table, true, stream); });
  synchronize_gpu();
}

// How far two ways of rounding may be apart, as a relative norm.
inline double bound_of(Dtype dtype, double factor = 1) {
  return factor * (dtype == Dtype::fp64 ? 1e-13 : dtype == Dtype::fp32 ? 2e-6 : 1.0 / 256);
}

inline constexpr Dtype kDtypes[] = {Dtype::fp64, Dtype::fp32, Dtype::bf16};

inline std::string label(const char* what, Dtype dtype, std::int64_t rows, std::int64_t cols,
                         std::int64_t more = 0) {
  return std::string(what) + " " + std::string(name(dtype)) + " " + std::to_string(rows) + "x" +
         std::to_string(cols) + (more ? " +" + std::to_string(more) : "");
}

// Whether a case of a large grid is left out: none on a GPU; where SEXTANT_SHARE says n, as on an emulated one, all but
// the first of each test and every n-th, others in every run.
inline bool left_out() {
  static const unsigned share = [] {
    const char* given = std::getenv("SEXTANT_SHARE");
    return static_cast<unsigned>(given ? std::max(1, std::atoi(given)) : 1);
  }();
  static const ::testing::TestInfo* last = nullptr;
  const auto* const now = ::testing::UnitTest::GetInstance()->current_test_info();
  if (std::exchange(last, now) != now) return false;
  static unsigned at = std::random_device{}();
  return ++at % share != 0;
}

// Calls f(dtype, rows, cols, gap): matrices of cols + gap columns, of which the kernel is given `cols`.
template <class F>
void for_each_extent(F&& f) {
  for (const Dtype dtype : kDtypes)
    for (const std::int64_t rows : {1, 7, 129})
      for (const std::int64_t cols : {1, 8, 95, 128, 1000, 4096})
        for (const std::int64_t gap : {0, 3, 16})
          if (!left_out()) f(dtype, rows, cols, gap);
}

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override { SEXTANT_NEEDS_GPU(); }
  const KernelTable& table() { return *cuda_kernels(); }
};

}  // namespace sextant::testing

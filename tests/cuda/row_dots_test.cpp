// System: the GPU's sums over rows of products, which norms over heads of several ranks add up. Expectation: what the CPU's
// reference gives, for fresh random inputs, at awkward extents, with and without 16-byte alignment. Numbers: of the sum of the
// terms' sizes, 1e-13 in fp64 and 2e-6 else. Controls: kernels with one mistake each.
#include <cmath>

#include "tests/cuda/twin.hpp"

namespace sextant::testing {
namespace {

class CudaRowDots : public GpuTest {};

// Sums of a row's squares and products by `table`; which of them are not the CPU's, and where they wrote outside.
std::string unlike_dots(const KernelTable& table, Dtype dtype, std::int64_t rows, std::int64_t cols,
                        std::int64_t gap) {
  const Dtype wide = accumulator_of(dtype);
  const Twin x(dtype, rows, cols + gap), y(dtype, rows, cols + gap);
  const Twin squares = Twin::poisoned(wide, 1, rows + 1), dots = Twin::poisoned(wide, 1, rows + 1);
  on_both(table, [&](const KernelTable& k, bool gpu, NativeStream s) {
    const auto at = [&](const Twin& t) { return t.on(gpu).column_range(0, cols); };
    const auto out = [&](const Twin& t) { return t.on(gpu).column_range(0, rows); };
    k.row_dots({.a = at(x), .b = at(x), .out = out(squares), .stream = s});
    k.row_dots({.a = at(x), .b = at(y), .out = out(dots), .stream = s});
  });
  // What cancels in a sum of products is no error of it: as far off as a sum of its terms' sizes allows.
  const std::vector<double> of_x = to_doubles(x.on(false)), of_y = to_doubles(y.on(false));
  const std::vector<double> cpu_squares = to_doubles(squares.on(false)),
                            cpu_dots = to_doubles(dots.on(false)),
                            gpu_squares = to_doubles(squares.downloaded().view()),
                            gpu_dots = to_doubles(dots.downloaded().view());
  std::string found;
  for (std::int64_t r = 0; r < rows; ++r) {
    double sizes = 0;
    for (std::int64_t c = 0; c < cols; ++c) {
      const auto i = static_cast<std::size_t>(r * (cols + gap) + c);
      sizes += std::abs(of_x[i] * of_y[i]);
    }
    const auto i = static_cast<std::size_t>(r);
    // Negated, so that what is no number is too far.
    if (!(std::abs(gpu_squares[i] - cpu_squares[i]) <= bound_of(wide) * cpu_squares[i]))
      found += " squares of row " + std::to_string(r);
    if (!(std::abs(gpu_dots[i] - cpu_dots[i]) <= bound_of(wide) * sizes))
      found += " products of row " + std::to_string(r);
  }
  if (!std::isnan(gpu_squares.back()) || !std::isnan(gpu_dots.back())) found += " what stands behind them";
  return found;
}

TEST_F(CudaRowDots, AreTheCpus) {
  for (const Dtype dtype : kDtypes)
    for (const std::int64_t rows : {1, 7, 129})
      for (const std::int64_t cols : {1, 8, 95, 128, 1000, 4096})
        for (const std::int64_t gap : {0, 3, 16})
          if (!left_out()) {
            EXPECT_EQ(unlike_dots(table(), dtype, rows, cols, gap), "")
                << label("dots of rows", dtype, rows, cols, gap);
          }
  // More rows than blocks, whose sums take turns with two places. Fibers take a minute.
  if (left_out()) return;
  EXPECT_EQ(unlike_dots(table(), Dtype::fp32, 65536 + 100, 1, 0), "");
}

// Controls: a kernel with one mistake is seen, in the longest rows as well.
// NOLINTNEXTLINE(readability-function-size): a table of faulty kernels
TEST_F(CudaRowDots, FaultyOnesAreSeen) {
  static const auto right = table().row_dots;
  struct Faulty {
    const char* what;
    void (*row_dots)(const RowDotsArgs&);
  };
  const Faulty kFaulty[] = {{"the last column is lost",
                             [](const RowDotsArgs& g) {
                               RowDotsArgs part = g;
                               part.a = g.a.column_range(0, g.a.cols - 1);
                               part.b = g.b.column_range(0, g.b.cols - 1);
                               right(part);
                             }},
                            {"a warp's share is lost",
                             [](const RowDotsArgs& g) {
                               RowDotsArgs part = g;
                               part.a = g.a.column_range(32, g.a.cols - 32);
                               part.b = g.b.column_range(32, g.b.cols - 32);
                               right(part);
                             }},
                            {"the last row is not written",
                             [](const RowDotsArgs& g) {
                               const std::int64_t rows = g.a.rows - 1;
                               RowDotsArgs part = g;
                               part.a = g.a.row_range(0, rows);
                               part.b = g.b.row_range(0, rows);
                               part.out = g.out.column_range(0, rows);
                               right(part);
                             }},
                            {"the second operand is not read",
                             [](const RowDotsArgs& g) {
                               RowDotsArgs part = g;
                               part.b = g.a;
                               right(part);
                             }},
                            {"rows are one too far",
                             [](const RowDotsArgs& g) {
                               const std::int64_t rows = g.a.rows - 1;
                               RowDotsArgs part = g;
                               right(part);
                               part.a = g.a.row_range(1, rows);
                               part.b = g.b.row_range(1, rows);
                               part.out = g.out.column_range(0, rows);
                               right(part);
                             }},
                            {"one sum too many is written", [](const RowDotsArgs& g) {
                               RowDotsArgs part = g;
                               right(part);
                               part.a = g.a.row_range(0, 1);
                               part.b = g.b.row_range(0, 1);
                               part.out = TensorView(
                                   static_cast<std::byte*>(g.out.data) + g.a.rows * size_bytes(g.out.dtype),
                                   g.out.dtype, 1, 1);
                               right(part);
                             }}};
  for (const Faulty& faulty : kFaulty) {
    KernelTable wrong = table();
    wrong.row_dots = faulty.row_dots;
    for (const Dtype dtype : kDtypes)
      for (const std::int64_t cols : {128, 4096})
        EXPECT_NE(unlike_dots(wrong, dtype, 7, cols, 3), "")
            << faulty.what << ": " << label("dots of rows", dtype, 7, cols, 3);
  }
}

}  // namespace
}  // namespace sextant::testing

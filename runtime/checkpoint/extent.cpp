#include "runtime/checkpoint/extent.hpp"

#include <algorithm>
#include <iterator>
#include <map>

#include <fmt/format.h>

namespace sextant {

std::string to_string(const Extent& e) {
  return fmt::format("[{}:{},{}:{}]", e.row, e.row + e.rows, e.col, e.col + e.cols);
}

Extent intersection(const Extent& a, const Extent& b) {
  Extent both;
  both.row = std::max(a.row, b.row);
  both.col = std::max(a.col, b.col);
  both.rows = std::max<std::int64_t>(0, std::min(a.row + a.rows, b.row + b.rows) - both.row);
  both.cols = std::max<std::int64_t>(0, std::min(a.col + a.cols, b.col + b.cols) - both.col);
  return both;
}

std::vector<SliceExtent> extents_of(const ModelSlice& s, ElementRange range, std::int64_t most) {
  std::vector<SliceExtent> found;
  const std::int64_t end = std::min(range.end, s.real_rows() * s.cols);
  for (std::int64_t at = range.begin; at < end;) {
    const std::int64_t row = at / s.cols, col = at % s.cols;
    Extent e{s.first_row + row, s.first_col + col, 1, std::min(s.cols - col, end - at)};
    if (col == 0 && e.cols == s.cols)
      e.rows = std::min((end - at) / s.cols, std::max<std::int64_t>(1, most / s.cols));
    found.push_back({e, at});
    at += e.elements();
  }
  return found;
}

// A line sweeps over the rows; `open` holds the extents it cuts, by first column.
std::optional<std::string> cover_problem(std::span<const Extent> extents, std::int64_t rows,
                                         std::int64_t cols) {
  std::vector<const Extent*> by_row, by_end;
  std::int64_t covered = 0;
  for (const Extent& e : extents) {
    const bool inside = e.row >= 0 && e.col >= 0 && e.rows > 0 && e.cols > 0 && e.rows <= rows &&
                        e.cols <= cols && e.row <= rows - e.rows && e.col <= cols - e.cols;
    if (!inside) return fmt::format("{} is outside of [0:{},0:{}]", to_string(e), rows, cols);
    if (__builtin_add_overflow(covered, e.elements(), &covered))
      return std::string("more elements than it has");
    by_row.push_back(&e);
    by_end.push_back(&e);
  }
  std::ranges::sort(by_row, {}, [](const Extent* e) { return e->row; });
  std::ranges::sort(by_end, {}, [](const Extent* e) { return e->row + e->rows; });
  std::map<std::int64_t, const Extent*> open;
  std::size_t closed = 0;
  for (const Extent* e : by_row) {
    for (; closed < by_end.size() && by_end[closed]->row + by_end[closed]->rows <= e->row; ++closed)
      open.erase(by_end[closed]->col);
    const auto after = open.lower_bound(e->col);
    const Extent* other = nullptr;
    if (after != open.end() && after->first < e->col + e->cols) other = after->second;
    if (after != open.begin()) {
      const Extent* before = std::prev(after)->second;
      if (before->col + before->cols > e->col) other = before;
    }
    if (other) return fmt::format("{} and {} overlap", to_string(*other), to_string(*e));
    open[e->col] = e;
  }
  if (covered != rows * cols)
    return fmt::format("{} of {} elements are not there", rows * cols - covered, rows * cols);
  return {};
}

}  // namespace sextant

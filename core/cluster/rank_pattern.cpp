#include "core/cluster/rank_pattern.hpp"

#include <algorithm>
#include <numeric>

namespace sextant {

namespace {
struct Digit {
  int stride = 1, extent = 1;
  bool member = false;
  int fixed = -1;  // value, when only one is wanted
};

bool aligned(const std::vector<Digit>& digits, int block) {
  return std::ranges::all_of(digits, [block](const Digit& d) {
    const int end = d.stride * d.extent;
    return block % end == 0 || d.stride % block == 0 || (block % d.stride == 0 && end % block == 0);
  });
}

// The smallest block of whole periods at which all digits align; the world when there is none.
int choose_block(const std::vector<Digit>& digits, int world, int period) {
  if (period <= 0 || period >= world) return world;
  int best = world;
  const auto consider = [&](long block) {
    if (block < best && world % block == 0 && aligned(digits, static_cast<int>(block)))
      best = static_cast<int>(block);
  };
  consider(period);
  for (const Digit& d : digits) {
    consider(std::lcm<long>(period, d.stride));
    consider(std::lcm<long>(period, static_cast<long>(d.stride) * d.extent));
  }
  return best;
}

// All sums of one value per digit, ascending: strides grow and never overlap.
std::vector<int> sums(const std::vector<Digit>& digits) {
  std::vector<int> out{0};
  for (const Digit& d : digits) {
    const std::size_t n = out.size();
    const int first = d.fixed < 0 ? 0 : d.fixed, last = d.fixed < 0 ? d.extent - 1 : d.fixed;
    out.reserve(n * static_cast<std::size_t>(last - first + 1));
    for (int value = first + 1; value <= last; ++value)
      for (std::size_t i = 0; i < n; ++i) out.push_back(out[i] + value * d.stride);
    for (std::size_t i = 0; i < n; ++i) out[i] += first * d.stride;
  }
  return out;
}
}  // namespace

RankPattern::RankPattern(const RankGrid& grid, std::initializer_list<Axis> axes, int stage, int period) {
  std::vector<Digit> digits;
  for (const Axis axis : {Axis::tp, Axis::cp, Axis::dp, Axis::pp}) {
    const bool member = std::ranges::find(axes, axis) != axes.end();
    const Digit d{grid.stride(axis), grid.extent(axis), member, axis == Axis::pp && !member ? stage : -1};
    world_ *= d.extent;
    if (member) size_ *= d.extent;
    if (d.extent > 1) digits.push_back(d);
  }
  std::ranges::sort(digits, {}, &Digit::stride);
  block_ = choose_block(digits, world_, period);

  std::vector<Digit> in, out, out_of_stage, of_stage;
  for (const Digit& d : digits) {
    const int below = d.stride >= block_ ? 1 : std::min(d.extent, block_ / d.stride),
              above = d.extent / below;
    if (d.member) {
      if (below > 1) in.push_back({d.stride, below, true, -1});
      repeats_ *= above;
    } else if (below > 1) {
      out.push_back({d.stride, below, false, -1});
      out_of_stage.push_back({d.stride, below, false, d.fixed < 0 ? -1 : d.fixed % below});
    }
    // The stage keeps its whole digit; the others need only their part inside the block.
    if (d.fixed >= 0)
      of_stage.push_back(d);
    else if (below > 1)
      of_stage.push_back({d.stride, below, d.member, -1});
  }
  offsets_ = sums(in);
  bases_ = sums(out);
  stage_bases_ = sums(out_of_stage);
  stage_ranks_ = sums(of_stage);
}

void RankPattern::members(int base, std::vector<int>& out) const {
  out.resize(offsets_.size());
  std::ranges::transform(offsets_, out.begin(), [base](int offset) { return base + offset; });
}

}  // namespace sextant

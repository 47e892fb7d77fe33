// Cross entropy of a vocabulary slice: loss = log(sum exp(l)) - l[target]; dl = (softmax(l) - onehot) *
// scale.
#include <algorithm>
#include <limits>
#include <type_traits>

#include "kernels/cpu/element.hpp"
#include "kernels/cpu/kernels.hpp"

namespace sextant::cpu {
namespace {

// Columns of a slice that are real vocabulary.
std::int64_t valid_columns(std::int64_t slice, std::int64_t first_id, std::int64_t vocab) {
  return std::clamp<std::int64_t>(vocab - first_id, 0, slice);
}

}  // namespace

void cross_entropy_stats(const CrossEntropyStatsArgs& g) {
  SEXTANT_CHECK(g.stats.rows == g.logits.rows && g.stats.cols == 3 &&
                    g.logits.rows == static_cast<std::int64_t>(g.targets.size()),
                "cross entropy: extents disagree");
  const std::int64_t valid = valid_columns(g.logits.cols, g.first_id, g.vocab);
  with_type(g.logits.dtype, [&]<class T>() {
    using A = Accumulator<T>;
    for (std::int64_t t = 0; t < g.logits.rows; ++t) {
      const T* logits = g.logits.row<T>(t);
      A* stats = g.stats.row<A>(t);
      const A highest = max_lanes<A>(valid, -std::numeric_limits<A>::infinity(),
                                     [&](std::int64_t i) { return load(logits[i]); });
      const std::int64_t target = g.targets[static_cast<std::size_t>(t)] - g.first_id;
      stats[0] = highest;
      stats[1] = sum_exponentials(logits, valid, highest);
      stats[2] = target >= 0 && target < valid ? load(logits[target]) : A{0};
    }
  });
}

void cross_entropy_combine(const CrossEntropyCombineArgs& g) {
  const std::int64_t rows = g.softmax.rows, ranks = rows ? g.stats.rows / rows : 0;
  SEXTANT_CHECK(g.stats.rows == ranks * rows && g.softmax.cols == 2 &&
                    rows == static_cast<std::int64_t>(g.targets.size()),
                "cross entropy: extents disagree");
  with_type(g.stats.dtype, [&]<class A>() {
    double loss = 0;
    for (std::int64_t t = 0; t < rows; ++t) {
      double highest = -std::numeric_limits<double>::infinity(), sum = 0, target = 0;
      for (std::int64_t r = 0; r < ranks; ++r)
        highest = std::max(highest, static_cast<double>(load(g.stats.row<A>(r * rows + t)[0])));
      for (std::int64_t r = 0; r < ranks; ++r) {
        const A* part = g.stats.row<A>(r * rows + t);
        // A slice that is all padding has max -inf and sum 0; its factor would be exp(-inf) = 0 anyway.
        sum += static_cast<double>(load(part[1])) * std::exp(static_cast<double>(load(part[0])) - highest);
        target += static_cast<double>(load(part[2]));
      }
      g.softmax.row<A>(t)[0] = store<A>(highest);
      g.softmax.row<A>(t)[1] = store<A>(1.0 / sum);
      if (g.targets[static_cast<std::size_t>(t)] != kIgnoreTarget) loss += std::log(sum) - (target - highest);
    }
    if (g.loss) *g.loss += loss;
  });
}

void cross_entropy_gradient(const CrossEntropyGradientArgs& g) {
  SEXTANT_CHECK(g.dlogits.rows == g.logits.rows && g.dlogits.cols == g.logits.cols &&
                    g.softmax.rows == g.logits.rows && g.softmax.cols == 2 &&
                    g.logits.rows == static_cast<std::int64_t>(g.targets.size()),
                "cross entropy: extents disagree");
  const std::int64_t slice = g.logits.cols, valid = valid_columns(slice, g.first_id, g.vocab);
  const auto fill = [&]<class T, class L>() {
    using A = Accumulator<T>;
    const A scale = static_cast<A>(g.scale);
    for (std::int64_t t = 0; t < g.logits.rows; ++t) {
      const L* logits = g.logits.row<L>(t);
      T* dlogits = g.dlogits.row<T>(t);
      const std::int32_t target = g.targets[static_cast<std::size_t>(t)];
      if (target == kIgnoreTarget) {
        std::fill_n(dlogits, slice, T{});
        continue;
      }
      const A highest = g.softmax.row<A>(t)[0], inverse_sum = g.softmax.row<A>(t)[1];
      const auto probability = [&](std::int64_t i) {
        return exponential(load(logits[i]) - highest) * inverse_sum;
      };
      const std::int64_t own = target - g.first_id;
      const A at_target = own >= 0 && own < valid ? (probability(own) - A{1}) * scale : A{0};
      for (std::int64_t i = 0; i < valid; ++i) dlogits[i] = store<T>(probability(i) * scale);
      std::fill_n(dlogits + valid, slice - valid, T{});
      if (own >= 0 && own < valid) dlogits[own] = store<T>(at_target);
    }
  };
  with_type(g.dlogits.dtype, [&]<class T>() {
    if (g.logits.dtype == g.dlogits.dtype) return fill.template operator()<T, T>();
    if constexpr (!std::is_same_v<T, Accumulator<T>>) fill.template operator()<T, Accumulator<T>>();
  });
}

}  // namespace sextant::cpu

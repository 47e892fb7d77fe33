// Attention in fp64, exact, or rounded to bf16 where a fused kernel of a library rounds (Dao et al. 2022, cuDNN's graphs):
// the probabilities before they meet V, and dS before it meets K and Q, as tensor cores take no wider factors. Causal
// attention of one segment, over a window and with ALiBi's distances where it has them: what a library's kernel may be away
// from, by its formats alone.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/kernel_table.hpp"
#include "tests/reference/matrix.hpp"

namespace sextant::testing {

inline double to_bf16(double x) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(x));
  return std::bit_cast<float>((bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u);
}

// Rows of a matrix in fp64, and back in its own format.
class Wide {
 public:
  explicit Wide(const TensorView& view) : view_(view), values_(to_doubles(view)) {}
  double* at(std::int64_t row, std::int64_t col) {
    return values_.data() + static_cast<std::size_t>(row * view_.cols + col);
  }
  void zero() { std::fill(values_.begin(), values_.end(), 0.0); }
  void put() {
    cpu_kernels().cast(
        {.source = {values_.data(), Dtype::fp64, view_.rows, view_.cols}, .destination = view_});
  }

 private:
  TensorView view_;
  std::vector<double> values_;
};

// Calls f(row of the query, its column, row of the first key that it sees, their column, how many it sees) for every query of
// every head.
template <class F>
void for_each_query(const AttentionShape& s, F&& f) {
  SEXTANT_CHECK(s.segments == 1 && s.seq_q() == s.seq_k() && s.q_documents.empty(), "one document");
  for (int b = 0; b < s.batch; ++b)
    for (int h = 0; h < s.heads; ++h)
      for (std::int64_t i = 0; i < s.seq_q(); ++i) {
        const std::int64_t first = s.window > 0 && i >= s.window ? i - s.window + 1 : 0;
        f(b * s.seq_q() + i, std::int64_t{h} * s.head_dim, b * s.seq_k() + first,
          std::int64_t{h / (s.heads / s.kv_heads)} * s.head_dim, i + 1 - first);
      }
}

// What ALiBi takes off the scores of a head, by tokens between query and key.
inline double by_distance(const AttentionShape& s, std::int64_t head) {
  return s.slopes.data ? to_doubles(s.slopes)[static_cast<std::size_t>(head)] : 0;
}

inline double dot(const double* a, const double* b, int n) {
  double sum = 0;
  for (int c = 0; c < n; ++c) sum += a[c] * b[c];
  return sum;
}

inline void attention_in_fp64(const AttentionForwardArgs& g, bool rounds) {
  const int d = g.shape.head_dim;
  Wide q(g.q), k(g.k), v(g.v), out(g.out), lse(g.lse);
  out.zero();
  for_each_query(g.shape, [&](std::int64_t row, std::int64_t col, std::int64_t key, std::int64_t key_col,
                              std::int64_t n) {
    std::vector<double> score;
    const double slope = by_distance(g.shape, col / d);
    double highest = -HUGE_VAL, sum = 0;
    for (std::int64_t j = 0; j < n; ++j) {
      score.push_back(g.shape.scale * dot(q.at(row, col), k.at(key + j, key_col), d) -
                      slope * static_cast<double>(n - 1 - j));
      highest = std::max(highest, score.back());
    }
    double* const to = out.at(row, col);
    for (std::int64_t j = 0; j < n; ++j) {
      const double p = std::exp(score[static_cast<std::size_t>(j)] - highest),
                   factor = rounds ? to_bf16(p) : p;
      sum += p;
      for (int c = 0; c < d; ++c) to[c] += factor * v.at(key + j, key_col)[c];
    }
    for (int c = 0; c < d; ++c) to[c] /= sum;
    *lse.at(row, col / d) = highest + std::log(sum);
  });
  out.put();
  lse.put();
}

inline void attention_gradient_in_fp64(const AttentionBackwardArgs& g, bool rounds) {
  const int d = g.shape.head_dim;
  Wide q(g.q), k(g.k), v(g.v), out(g.out), dout(g.dout), lse(g.lse), dq(g.dq), dk(g.dk), dv(g.dv);
  dq.zero();
  dk.zero();
  dv.zero();
  for_each_query(g.shape, [&](std::int64_t row, std::int64_t col, std::int64_t key, std::int64_t key_col,
                              std::int64_t n) {
    const double along = dot(dout.at(row, col), out.at(row, col), d), slope = by_distance(g.shape, col / d);
    for (std::int64_t j = key; j < key + n; ++j) {
      const double p = std::exp(g.shape.scale * dot(q.at(row, col), k.at(j, key_col), d) -
                                slope * static_cast<double>(key + n - 1 - j) - *lse.at(row, col / d));
      const double ds = p * (dot(dout.at(row, col), v.at(j, key_col), d) - along);
      const double p_factor = rounds ? to_bf16(p) : p,
                   ds_factor = g.shape.scale * (rounds ? to_bf16(ds) : ds);
      for (int c = 0; c < d; ++c) {
        dv.at(j, key_col)[c] += p_factor * dout.at(row, col)[c];
        dq.at(row, col)[c] += ds_factor * k.at(j, key_col)[c];
        dk.at(j, key_col)[c] += ds_factor * q.at(row, col)[c];
      }
    }
  });
  dq.put();
  dk.put();
  dv.put();
}

// The CPU's table with a library's roundings, for runs of one rank.
inline const KernelTable& kernels_that_round_as_libraries() {
  static const KernelTable table = [] {
    KernelTable own = cpu_reference_kernels();
    own.attention_forward = [](const AttentionForwardArgs& g) { attention_in_fp64(g, true); };
    own.attention_backward = [](const AttentionBackwardArgs& g) { attention_gradient_in_fp64(g, true); };
    return own;
  }();
  return table;
}

}  // namespace sextant::testing

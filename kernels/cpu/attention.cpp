// Causal attention in tiles with online softmax (Milakov & Gimelshein 2018; Dao et al. 2022): no matrix of
// seq x seq. Backward after Dao 2023: P is made again from the saved log-sum-exp;
//   dV = P^T dO,  dP = dO V^T,  dS = P * (dP - rowsum(dO * O)),  dQ = dS K scale,  dK = dS^T Q scale.
// Tiles are held in the accumulator's format; a tile without a visible key is skipped, a wholly visible one
// is not masked. Tile sums run over keys in ascending tile order. A query sees keys from the beginning of its document, or
// of its window where that is later, to itself.
#include <algorithm>
#include <limits>
#include <vector>

#include "core/graph/block_tensors.hpp"
#include "kernels/cpu/element.hpp"
#include "kernels/cpu/kernels.hpp"
#include "kernels/cpu/tile_gemm.hpp"

namespace sextant::cpu {
namespace {

constexpr std::int64_t kTile = 64;  // queries and keys of a tile: 64 x 64 scores stay in the first cache

// Where key j of sequence b stands among the rows of a gathered key tensor.
struct KeyRows {
  std::int64_t batch, per_segment, sequence;
  std::int64_t operator()(std::int64_t j) const {
    return (j / per_segment * batch + sequence) * per_segment + j % per_segment;
  }
};

enum class Visible : std::uint8_t { none, some, all };

// Tile buffers of one call; sized once a call, freed with it.
template <class A>
struct Tile {
  std::vector<A> memory;
  std::int64_t stride;
  Tile(std::int64_t rows, std::int64_t columns)
      : memory(static_cast<std::size_t>(rows * columns)), stride(columns) {}
  A* row(std::int64_t r) { return memory.data() + r * stride; }
  A* data() { return memory.data(); }
  StridedOperand<A> plain() const { return {memory.data(), stride, 1}; }
  StridedOperand<A> transposed() const { return {memory.data(), 1, stride}; }
};

template <class T>
class AttentionCore {
 public:
  using A = Accumulator<T>;

  explicit AttentionCore(const AttentionShape& shape)
      : shape_(shape),
        head_dim_(shape.head_dim),
        padded_(padded_columns<A>(shape.head_dim)),
        scale_(static_cast<A>(shape.scale)) {}

  // Scores are held transposed, keys by queries: queries lie along the vectors, so that maxima and sums of a
  // query need no reduction across lanes, and keys are read where they stand.
  void forward(const AttentionForwardArgs& g) {
    Tile<A> qt(padded_, kTile), k(kTile, padded_), v(kTile, padded_), scores(kTile, kTile), o(kTile, padded_);
    for (std::int64_t b = 0; b < shape_.batch; ++b) {
      const KeyRows key{shape_.batch, shape_.seq_k() / shape_.segments, b};
      for (int head = 0; head < shape_.heads; ++head) {
        const int kv_head = head / (shape_.heads / shape_.kv_heads);
        for (std::int64_t q0 = 0; q0 < shape_.seq_q(); q0 += kTile) {
          const std::int64_t nq = std::min(kTile, shape_.seq_q() - q0);
          load_queries_transposed(g.q, b, head, q0, nq, qt);
          std::fill(o.memory.begin(), o.memory.end(), A{0});
          OnlineSoftmax softmax;
          for (std::int64_t k0 = 0; k0 < shape_.seq_k(); k0 += kTile) {
            const std::int64_t nk = std::min(kTile, shape_.seq_k() - k0);
            const Visible visible = tile_visibility(b, q0, nq, k0, nk);
            if (visible == Visible::none) continue;
            load_rows(g.k, key, kv_head, k0, nk, k);
            load_rows(g.v, key, kv_head, k0, nk, v);
            tile_gemm<A>(nk, kTile, head_dim_, k.plain(), qt.data(), kTile, scores.data(), kTile, false);
            add_distances(scores, head, q0, nq, k0, nk);
            if (visible == Visible::some) hide_keys(scores, b, q0, nq, k0, nk);
            softmax.step(scores, nk);
            for (std::int64_t i = 0; i < nq; ++i)
              for (std::int64_t c = 0; c < padded_; ++c) o.row(i)[c] *= softmax.factor[i];
            tile_gemm<A>(nq, padded_, nk, scores.transposed(), v.data(), padded_, o.data(), padded_, true);
          }
          for (std::int64_t i = 0; i < nq; ++i) {
            const std::int64_t row = b * shape_.seq_q() + q0 + i;
            const A inverse = softmax.sum[i] > A{0} ? A{1} / softmax.sum[i] : A{0};
            T* out = g.out.row<T>(row) + head * head_dim_;
            for (int c = 0; c < head_dim_; ++c) out[c] = store<T>(o.row(i)[c] * inverse);
            g.lse.row<A>(row)[head] = softmax.highest[i] + std::log(softmax.sum[i]);
          }
        }
      }
    }
  }

  void backward(const AttentionBackwardArgs& g) {
    const int group = shape_.heads / shape_.kv_heads;
    const std::int64_t seq_q = shape_.seq_q();
    BackwardTiles tiles(padded_);
    // Workspace: dq [group][seq_q][padded], row sums [group][seq_q].
    tiles.dq = g.workspace.row<A>();
    tiles.row_sum = tiles.dq + group * seq_q * padded_;
    for (std::int64_t b = 0; b < shape_.batch; ++b) {
      const KeyRows key{shape_.batch, shape_.seq_k() / shape_.segments, b};
      for (int kv_head = 0; kv_head < shape_.kv_heads; ++kv_head) {
        std::fill_n(tiles.dq, group * seq_q * padded_, A{0});
        for (int member = 0; member < group; ++member)
          row_sums(g, b, kv_head * group + member, tiles.row_sum + member * seq_q);
        for (std::int64_t k0 = 0; k0 < shape_.seq_k(); k0 += kTile)
          backward_of_keys(g, key, kv_head, k0, tiles);
        for (int member = 0; member < group; ++member)
          for (std::int64_t i = 0; i < seq_q; ++i) {
            T* out = g.dq.row<T>(b * seq_q + i) + (kv_head * group + member) * head_dim_;
            const A* sum = tiles.dq + (member * seq_q + i) * padded_;
            for (int c = 0; c < head_dim_; ++c) out[c] = store<T>(sum[c] * scale_);
          }
      }
    }
  }

 private:
  static constexpr A kHidden = -std::numeric_limits<A>::infinity();

  struct BackwardTiles {
    explicit BackwardTiles(std::int64_t padded)
        : q(kTile, padded),
          dout(kTile, padded),
          k(kTile, padded),
          kt(padded, kTile),
          vt(padded, kTile),
          p(kTile, kTile),
          ds(kTile, kTile),
          dk(kTile, padded),
          dv(kTile, padded) {}
    Tile<A> q, dout, k, kt, vt, p, ds, dk, dv;
    A* dq = nullptr;       // of all queries of a key head
    A* row_sum = nullptr;  // of dout * out
  };

  // dK and dV of a tile of keys, over all query heads that share their head; adds to dQ.
  void backward_of_keys(const AttentionBackwardArgs& g, const KeyRows& key, int kv_head, std::int64_t k0,
                        BackwardTiles& t) {
    const int group = shape_.heads / shape_.kv_heads;
    const std::int64_t nk = std::min(kTile, shape_.seq_k() - k0);
    load_rows(g.k, key, kv_head, k0, nk, t.k);
    load_transposed(g.k, key, kv_head, k0, nk, t.kt);
    load_transposed(g.v, key, kv_head, k0, nk, t.vt);
    std::fill(t.dk.memory.begin(), t.dk.memory.end(), A{0});
    std::fill(t.dv.memory.begin(), t.dv.memory.end(), A{0});
    for (int member = 0; member < group; ++member)
      for (std::int64_t q0 = 0; q0 < shape_.seq_q(); q0 += kTile)
        backward_of_tile(g, key.sequence, {kv_head * group + member, member * shape_.seq_q()}, q0, k0, nk, t);
    for (std::int64_t j = 0; j < nk; ++j) {
      const std::int64_t row = key(k0 + j);
      T* dk_row = g.dk.row<T>(row) + kv_head * head_dim_;
      T* dv_row = g.dv.row<T>(row) + kv_head * head_dim_;
      for (int c = 0; c < head_dim_; ++c) dk_row[c] = store<T>(t.dk.row(j)[c]);
      for (int c = 0; c < head_dim_; ++c) dv_row[c] = store<T>(t.dv.row(j)[c]);
    }
  }

  struct QueryHead {
    int head;
    std::int64_t first;  // row of its first query in dq and row_sum
  };
  void backward_of_tile(const AttentionBackwardArgs& g, std::int64_t b, const QueryHead& of, std::int64_t q0,
                        std::int64_t k0, std::int64_t nk, BackwardTiles& t) {
    const std::int64_t seq_q = shape_.seq_q(), nq = std::min(kTile, seq_q - q0);
    const Visible visible = tile_visibility(b, q0, nq, k0, nk);
    if (visible == Visible::none) return;
    load_queries(g.q, b, of.head, q0, nq, t.q, scale_);
    load_queries(g.dout, b, of.head, q0, nq, t.dout, A{1});
    tile_gemm<A>(nq, kTile, head_dim_, t.q.plain(), t.kt.data(), kTile, t.p.data(), kTile, false);
    tile_gemm<A>(nq, kTile, head_dim_, t.dout.plain(), t.vt.data(), kTile, t.ds.data(), kTile, false);
    add_distances_by_query(t.p, of.head, q0, nq, k0, nk);
    mask(t.p, b, q0, nq, k0, nk, visible);
    for (std::int64_t i = 0; i < nq; ++i) {
      const A saved = g.lse.row<A>(b * seq_q + q0 + i)[of.head];
      // A query that sees no key has -inf there; any finite number makes its row of P zero.
      const A lse = saved == -std::numeric_limits<A>::infinity() ? A{0} : saved;
      const A correction = t.row_sum[of.first + q0 + i];
      A* prow = t.p.row(i);
      A* srow = t.ds.row(i);
      for (std::int64_t j = 0; j < kTile; ++j) {
        prow[j] = exponential(prow[j] - lse);
        srow[j] = prow[j] * (srow[j] - correction);
      }
    }
    tile_gemm<A>(nk, padded_, nq, t.p.transposed(), t.dout.data(), padded_, t.dv.data(), padded_, true);
    // q carries the scale already, so dk needs none.
    tile_gemm<A>(nk, padded_, nq, t.ds.transposed(), t.q.data(), padded_, t.dk.data(), padded_, true);
    tile_gemm<A>(nq, padded_, nk, t.ds.plain(), t.k.data(), padded_, t.dq + (of.first + q0) * padded_,
                 padded_, true);
  }

  // Running maximum and sum of every query of a tile (Milakov & Gimelshein 2018).
  struct OnlineSoftmax {
    A highest[kTile], sum[kTile], factor[kTile];
    OnlineSoftmax() {
      std::fill_n(highest, kTile, kHidden);
      std::fill_n(sum, kTile, A{0});
    }
    // Scores [nk][kTile] become exponentials relative to the new maximum; `factor` brings to it what was
    // summed before.
    void step(Tile<A>& scores, std::int64_t nk) {
      A before[kTile], shift[kTile], added[kTile] = {};
      std::copy_n(highest, kTile, before);
      for (std::int64_t j = 0; j < nk; ++j) {
        const A* row = scores.row(j);
        for (std::int64_t i = 0; i < kTile; ++i) highest[i] = row[i] > highest[i] ? row[i] : highest[i];
      }
      for (std::int64_t i = 0; i < kTile; ++i) {
        shift[i] = highest[i] == kHidden ? A{0} : highest[i];  // nothing visible yet: exp(-inf - 0) = 0
        factor[i] = exponential(before[i] - shift[i]);
      }
      for (std::int64_t j = 0; j < nk; ++j) {
        A* row = scores.row(j);
        for (std::int64_t i = 0; i < kTile; ++i) {
          row[i] = exponential(row[i] - shift[i]);
          added[i] += row[i];
        }
      }
      for (std::int64_t i = 0; i < kTile; ++i) sum[i] = sum[i] * factor[i] + added[i];
    }
  };

  // Where the document of a query begins; the queries of a tile of sequence b.
  std::span<const std::int32_t> documents(std::int64_t b, std::int64_t q0, std::int64_t nq) const {
    if (shape_.q_documents.empty()) return {};
    return shape_.q_documents.subspan(static_cast<std::size_t>(b * shape_.seq_q() + q0),
                                      static_cast<std::size_t>(nq));
  }

  Visible tile_visibility(std::int64_t b, std::int64_t q0, std::int64_t nq, std::int64_t k0,
                          std::int64_t nk) const {
    const auto range = [](std::span<const std::int32_t> list, std::int64_t first, std::int64_t n) {
      return std::ranges::minmax(list.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(n)));
    };
    const auto q = range(shape_.q_positions, q0, nq), k = range(shape_.k_positions, k0, nk);
    auto begin = std::ranges::minmax_result<std::int32_t>{0, 0};
    if (const auto list = documents(b, q0, nq); !list.empty()) begin = std::ranges::minmax(list);
    if (shape_.window > 0)
      begin = {std::max(begin.min, q.min - shape_.window + 1),
               std::max(begin.max, q.max - shape_.window + 1)};
    if (k.min > q.max || k.max < begin.min) return Visible::none;
    return k.max <= q.min && k.min >= begin.max ? Visible::all : Visible::some;
  }

  void load_queries(const TensorView& x, std::int64_t b, int head, std::int64_t q0, std::int64_t nq,
                    Tile<A>& tile, A factor) {
    for (std::int64_t i = 0; i < nq; ++i) {
      const T* from = x.row<T>(b * shape_.seq_q() + q0 + i) + head * head_dim_;
      for (int c = 0; c < head_dim_; ++c) tile.row(i)[c] = load(from[c]) * factor;
    }
  }

  // Scaled queries as columns; columns beyond the last query are zero.
  void load_queries_transposed(const TensorView& x, std::int64_t b, int head, std::int64_t q0,
                               std::int64_t nq, Tile<A>& tile) {
    for (std::int64_t i = 0; i < nq; ++i) {
      const T* from = x.row<T>(b * shape_.seq_q() + q0 + i) + head * head_dim_;
      for (int c = 0; c < head_dim_; ++c) tile.row(c)[i] = load(from[c]) * scale_;
    }
    for (int c = 0; c < head_dim_; ++c) std::fill(tile.row(c) + nq, tile.row(c) + kTile, A{0});
  }

  void load_rows(const TensorView& x, const KeyRows& key, int kv_head, std::int64_t k0, std::int64_t nk,
                 Tile<A>& tile) {
    for (std::int64_t j = 0; j < nk; ++j) {
      const T* from = x.row<T>(key(k0 + j)) + kv_head * head_dim_;
      for (int c = 0; c < head_dim_; ++c) tile.row(j)[c] = load(from[c]);
    }
  }

  void load_transposed(const TensorView& x, const KeyRows& key, int kv_head, std::int64_t k0, std::int64_t nk,
                       Tile<A>& tile) {
    for (std::int64_t j = 0; j < nk; ++j) {
      const T* from = x.row<T>(key(k0 + j)) + kv_head * head_dim_;
      for (int c = 0; c < head_dim_; ++c) tile.row(c)[j] = load(from[c]);
    }
  }

  // ALiBi's term, of keys [nk] by queries and of queries by keys.
  void add_distances(Tile<A>& scores, int head, std::int64_t q0, std::int64_t nq, std::int64_t k0,
                     std::int64_t nk) {
    if (!shape_.slopes.data) return;
    for (std::int64_t j = 0; j < nk; ++j)
      for (std::int64_t i = 0; i < nq; ++i) scores.row(j)[i] += distance(head, q0 + i, k0 + j);
  }
  void add_distances_by_query(Tile<A>& scores, int head, std::int64_t q0, std::int64_t nq, std::int64_t k0,
                              std::int64_t nk) {
    if (!shape_.slopes.data) return;
    for (std::int64_t i = 0; i < nq; ++i)
      for (std::int64_t j = 0; j < nk; ++j) scores.row(i)[j] += distance(head, q0 + i, k0 + j);
  }
  A distance(int head, std::int64_t query, std::int64_t key) const {
    const auto tokens = shape_.k_positions[static_cast<std::size_t>(key)] -
                        shape_.q_positions[static_cast<std::size_t>(query)];
    return shape_.slopes.row<A>()[head] * static_cast<A>(tokens);
  }

  // Forward: keys [nk] by queries [kTile].
  void hide_keys(Tile<A>& scores, std::int64_t b, std::int64_t q0, std::int64_t nq, std::int64_t k0,
                 std::int64_t nk) {
    const std::int32_t* query = shape_.q_positions.data() + q0;
    const auto begin = documents(b, q0, nq);
    for (std::int64_t j = 0; j < nk; ++j) {
      const std::int32_t position = shape_.k_positions[static_cast<std::size_t>(k0 + j)];
      A* row = scores.row(j);
      for (std::int64_t i = 0; i < nq; ++i) row[i] = position <= query[i] ? row[i] : kHidden;
      for (std::size_t i = 0; i < begin.size(); ++i) row[i] = position >= begin[i] ? row[i] : kHidden;
      if (shape_.window > 0)
        for (std::int64_t i = 0; i < nq; ++i) row[i] = position > query[i] - shape_.window ? row[i] : kHidden;
    }
  }

  // Backward: queries by keys. Keys that a query may not see, and padding columns, become -inf.
  void mask(Tile<A>& scores, std::int64_t b, std::int64_t q0, std::int64_t nq, std::int64_t k0,
            std::int64_t nk, Visible visible) {
    const auto begin = documents(b, q0, nq);
    for (std::int64_t i = 0; i < nq; ++i) {
      A* row = scores.row(i);
      if (visible == Visible::some) {
        const std::int32_t last = shape_.q_positions[static_cast<std::size_t>(q0 + i)];
        std::int32_t first = begin.empty() ? 0 : begin[static_cast<std::size_t>(i)];
        if (shape_.window > 0) first = std::max(first, last - shape_.window + 1);
        const std::int32_t* key = shape_.k_positions.data() + k0;
        for (std::int64_t j = 0; j < nk; ++j) row[j] = key[j] <= last && key[j] >= first ? row[j] : kHidden;
      }
      std::fill(row + nk, row + kTile, kHidden);
    }
  }

  void row_sums(const AttentionBackwardArgs& g, std::int64_t b, int head, A* sums) {
    for (std::int64_t i = 0; i < shape_.seq_q(); ++i) {
      const T* out = g.out.row<T>(b * shape_.seq_q() + i) + head * head_dim_;
      const T* dout = g.dout.row<T>(b * shape_.seq_q() + i) + head * head_dim_;
      sums[i] = sum_lanes<A>(head_dim_, [&](std::int64_t c) { return load(out[c]) * load(dout[c]); });
    }
  }

  const AttentionShape& shape_;
  int head_dim_;
  std::int64_t padded_;
  A scale_;
};

void check(const AttentionShape& s, const TensorView& q, const TensorView& k, const TensorView& v,
           const TensorView& out) {
  SEXTANT_CHECK(s.kv_heads > 0 && s.heads % s.kv_heads == 0 && s.segments > 0 && s.seq_k() % s.segments == 0,
                "attention: heads or segments do not divide");
  SEXTANT_CHECK(
      s.q_documents.empty() || static_cast<std::int64_t>(s.q_documents.size()) == s.batch * s.seq_q(),
      "attention: every query is of one document");
  SEXTANT_CHECK(!s.slopes.data || (s.slopes.rows == 1 && s.slopes.cols == s.heads),
                "attention: every head has a slope");
  const std::int64_t q_cols = static_cast<std::int64_t>(s.heads) * s.head_dim;
  const std::int64_t k_cols = static_cast<std::int64_t>(s.kv_heads) * s.head_dim;
  SEXTANT_CHECK(q.rows == s.batch * s.seq_q() && out.rows == q.rows && k.rows == s.batch * s.seq_k() &&
                    v.rows == k.rows && q.cols == q_cols && out.cols == q_cols && k.cols == k_cols &&
                    v.cols == k_cols,
                "attention: extents disagree");
}

}  // namespace

void attention_forward(const AttentionForwardArgs& g) {
  check(g.shape, g.q, g.k, g.v, g.out);
  with_type(g.q.dtype, [&]<class T>() { AttentionCore<T>(g.shape).forward(g); });
}

void attention_backward(const AttentionBackwardArgs& g) {
  check(g.shape, g.q, g.k, g.v, g.out);
  SEXTANT_CHECK(g.workspace.elements() >= attention_core_elements(g.shape.seq_q(), g.shape.heads,
                                                                  g.shape.kv_heads, g.shape.head_dim),
                "attention: workspace too small");
  with_type(g.q.dtype, [&]<class T>() { AttentionCore<T>(g.shape).backward(g); });
}

}  // namespace sextant::cpu

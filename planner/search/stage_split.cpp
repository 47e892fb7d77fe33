#include "planner/search/stage_split.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/base/error.hpp"

namespace sextant {
namespace {

struct Chain {
  int n_layers, inner;  // inner chunks: all but the outer two
  ChainCost cost;
  double head(int layers) const { return layers * cost.layer + cost.embedding; }
  double tail(int layers) const { return layers * cost.layer + cost.head; }
  // Most layers of a chunk with that much else to do within the time.
  int room(double time, double other) const {
    const double layers = std::floor((time - other) / cost.layer * (1 + 1e-12) + 1e-9);
    return static_cast<int>(std::clamp(layers, -1.0, static_cast<double>(n_layers)));
  }
  bool feasible(double time) const {
    const int first = room(time, cost.embedding), last = room(time, cost.head), each = room(time, 0);
    if (first < 0 || last < 0 || (inner > 0 && each < 1)) return false;
    return std::int64_t{first} + last + std::int64_t{inner} * each >= n_layers;
  }
};

// The smallest time that lets the chain fit: some chunk is exactly that slow, so only such times are tried, upwards
// from the mean.
double slowest_chunk(const Chain& chain) {
  const ChainCost& c = chain.cost;
  double time = std::max({(chain.n_layers * c.layer + c.embedding + c.head) / (chain.inner + 2), c.embedding,
                          c.head, chain.inner > 0 ? c.layer : 0.0});
  while (!chain.feasible(time)) {
    double next = std::numeric_limits<double>::infinity();
    for (const double other : {c.embedding, c.head, 0.0})
      next =
          std::min(next, other + (std::floor((time - other) / c.layer * (1 + 1e-12) + 1e-9) + 1) * c.layer);
    time = next;
  }
  return time;
}

}  // namespace

// Inner chunks are alike and share evenly what the outer two leave, so only the outer two are chosen: among those that
// keep the slowest chunk's time, the ones with the least sum of squares, which lie at the mean or at their room's end.
void balanced_chunks(int n_layers, int n_chunks, const ChainCost& cost, std::vector<LayerRange>& out) {
  SEXTANT_CHECK(n_chunks >= 1 && n_chunks - 2 <= n_layers && cost.layer > 0,
                "every inner chunk needs a layer");
  out.clear();
  if (n_chunks == 1) return out.push_back({0, n_layers});
  const Chain chain{n_layers, n_chunks - 2, cost};
  const int inner = chain.inner;
  const double time = slowest_chunk(chain);
  const double mean = (n_layers * cost.layer + cost.embedding + cost.head) / n_chunks;
  const int first_room = chain.room(time, cost.embedding), last_room = chain.room(time, cost.head);
  const int each_room = chain.room(time, 0);
  double least = std::numeric_limits<double>::infinity();
  int best_first = -1, best_last = -1;
  const auto consider = [&](int first, int last) {
    if (first < 0 || last < 0 || first > first_room || last > last_room) return;
    const int rest = n_layers - first - last;
    if (inner == 0 ? rest != 0 : rest < inner || rest > inner * each_room) return;
    double squares = chain.head(first) * chain.head(first) + chain.tail(last) * chain.tail(last);
    if (inner > 0) {
      const int each = rest / inner, more = rest % inner;
      squares +=
          cost.layer * cost.layer * (more * (each + 1.0) * (each + 1.0) + (inner - more) * 1.0 * each * each);
    }
    if (squares < least) {
      least = squares;
      best_first = first;
      best_last = last;
    }
  };
  const int ideal_first = static_cast<int>((mean - cost.embedding) / cost.layer),
            ideal_last = static_cast<int>((mean - cost.head) / cost.layer);
  for (const int around_first : {ideal_first, first_room, 0})
    for (int first = around_first - 1; first <= around_first + 1; ++first)
      if (inner == 0)
        consider(first, n_layers - first);
      else
        for (const int around_last : {ideal_last, last_room, 0})
          for (int last = around_last - 1; last <= around_last + 1; ++last) consider(first, last);
  for (int first = 0; best_first < 0 && first <= n_layers; ++first)  // odd corners: try them all
    for (int last = 0; first + last <= n_layers; ++last) consider(first, last);
  SEXTANT_CHECK(best_first >= 0, "the split must cover all layers");
  const int rest = n_layers - best_first - best_last;
  int at = 0;
  const auto add = [&](int count) {
    out.push_back({at, count});
    at += count;
  };
  add(best_first);
  for (int c = 0; c < inner; ++c) add(rest / inner + (c < rest % inner ? 1 : 0));
  add(best_last);
}

// One layer after the other to the chunk that is then done first: no chunk ends later than it has to.
void balanced_chunks(int n_layers, std::span<const double> layer, double embedding, double head,
                     std::vector<LayerRange>& out) {
  const std::size_t n = layer.size();
  SEXTANT_CHECK(n >= 1 && static_cast<int>(n) - 2 <= n_layers, "every inner chunk needs a layer");
  std::vector<int> count(n, 1);
  count.front() = 0;
  count.back() = 0;
  const auto ends = [&](std::size_t c, int layers) {
    return layers * layer[c] + (c == 0 ? embedding : 0) + (c + 1 == n ? head : 0);
  };
  for (int left = n_layers - std::max(0, static_cast<int>(n) - 2); left > 0; --left) {
    std::size_t best = 0;
    for (std::size_t c = 1; c < n; ++c)
      if (ends(c, count[c] + 1) < ends(best, count[best] + 1)) best = c;
    ++count[best];
  }
  out.clear();
  int at = 0;
  for (const int layers : count) {
    out.push_back({at, layers});
    at += layers;
  }
}

std::vector<LayerRange> balanced_chunks(int n_layers, int n_chunks, const ChainCost& cost) {
  std::vector<LayerRange> out;
  balanced_chunks(n_layers, n_chunks, cost, out);
  return out;
}

int longest_chunk(std::span<const LayerRange> chunks) {
  int most = 0;
  for (const LayerRange& range : chunks) most = std::max(most, range.count);
  return most;
}

}  // namespace sextant

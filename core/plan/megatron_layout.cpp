#include "core/plan/megatron_layout.hpp"

#include <algorithm>
#include <numeric>

#include "core/base/decimal.hpp"
#include "core/plan/parallel_plan.hpp"

namespace sextant {

namespace {

// The string without repetitions; nothing where it does not end, or is absurdly long.
std::optional<std::string> unrolled(std::string_view text, int depth = 0) {
  constexpr std::size_t kLongest = 1 << 20;
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    std::string piece;
    if (text[at] == '(') {
      std::size_t end = at, open = 0;
      do {
        if (text[end] == '(') ++open;
        if (text[end] == ')') --open;
        ++end;
      } while (open > 0 && end < text.size());
      if (open > 0 || depth > 8) return std::nullopt;
      const auto inner = unrolled(text.substr(at + 1, end - at - 2), depth + 1);
      if (!inner) return std::nullopt;
      piece = *inner;
      at = end;
    } else if (std::string_view("Et|L").find(text[at]) != std::string_view::npos) {
      piece = text.substr(at++, 1);
    } else if (text[at] == ',' || text[at] == ' ') {
      ++at;
      continue;
    } else {
      return std::nullopt;
    }
    long long times = 1;
    if (at < text.size() && text[at] == '*') {
      const std::size_t begin = ++at;
      while (at < text.size() && text[at] >= '0' && text[at] <= '9') ++at;
      const auto n = parse_count(text.substr(begin, at - begin), kMaxLayers);
      if (!n) return std::nullopt;
      times = *n;
    }
    if (out.size() + piece.size() * static_cast<std::size_t>(times) > kLongest) return std::nullopt;
    for (long long i = 0; i < times; ++i) out += piece;
  }
  return out;
}

}  // namespace

std::optional<std::vector<int>> layout_layers(std::string_view layout) {
  const auto text = unrolled(layout);
  if (!text || text->empty()) return std::nullopt;
  std::vector<int> layers = {0};
  for (const char c : *text) {
    if (c == '|') layers.push_back(0);
    if (c == 't') ++layers.back();
  }
  return layers;
}

std::optional<std::vector<int>> accounted_layers(int layers, int chunks, const CountedAsLayers& more) {
  const int counted = layers + (more.embedding ? 1 : 0) + (more.head ? 1 : 0);
  if (chunks < 1 || counted % chunks != 0 || chunks > kMaxChunks) return std::nullopt;
  std::vector<int> each(static_cast<std::size_t>(chunks), counted / chunks);
  if (more.embedding) --each.front();
  if (more.head) --each.back();
  if (each.front() < 0 || each.back() < 0) return std::nullopt;
  return each;
}

std::optional<std::vector<int>> first_last_layers(int layers, int stages, int virtual_stages, int first,
                                                  int last) {
  const int others = stages - (first > 0 ? 1 : 0) - (last > 0 ? 1 : 0), rest = layers - first - last;
  if (stages < 2 || stages > kMaxChunks / std::max(1, virtual_stages) || rest < 0 || others < 0 ||
      (others > 0 ? rest % others != 0 : rest != 0))
    return std::nullopt;
  std::vector<int> each(static_cast<std::size_t>(stages), others > 0 ? rest / others : 0);
  if (first > 0) each.front() = first;
  if (last > 0) each.back() = last;
  std::vector<int> chunks;
  for (int v = 0; v < virtual_stages; ++v)
    for (const int stage : each) {
      if (stage % virtual_stages != 0) return std::nullopt;
      chunks.push_back(stage / virtual_stages);
    }
  return chunks;
}

}  // namespace sextant

#include "core/plan/stage_cuts.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "core/plan/balanced_partition.hpp"

namespace sextant {
namespace {

using Cut = std::vector<int>;

// Layers of the stages as nanotron's build_model() deals them (models/base.py 211-229): by multiplications, the LM head's among
// them. A block goes to the open stage, which closes once the sum is above its share. `each(stage, layers)` may end it with false.
// False where a stage would hold no layer.
template <class Each>
bool each_stage_by_cost(const ModelSpec& m, int pp, const Each& each) {
  const double hidden = m.hidden, layer = 4 * hidden * hidden + 3.0 * m.ffn_hidden * hidden;
  const double total = layer * m.n_layers + double(m.vocab_size) * hidden;
  double sum = 0;
  int stage = 0, count = 0;
  for (int i = 0; i < m.n_layers; ++i) {
    ++count;
    sum += layer;
    if (sum <= total * ((stage + 1.0) / pp)) continue;
    if (!each(stage, count)) return false;
    ++stage;
    count = 0;
  }
  return stage == pp - 1 && count > 0 && each(stage, count);
}

std::optional<Cut> cut_by_cost(const ModelSpec& m, int pp) {
  Cut out;
  if (!each_stage_by_cost(m, pp, [&](int, int layers) {
        out.push_back(layers);
        return true;
      }))
    return std::nullopt;
  return out;
}

Cut equal_cut(int n_layers, int chunks) { return Cut(static_cast<std::size_t>(chunks), n_layers / chunks); }

// Of parts [begin, end) of a list of modules in which the decoder layers are those from `first` on.
Cut layers_of_parts(const std::vector<int>& begins, int first, int n_layers) {
  Cut out;
  for (std::size_t i = 0; i + 1 < begins.size(); ++i)
    out.push_back(std::max(0, std::min(begins[i + 1], first + n_layers) - std::max(begins[i], first)));
  return out;
}

// SegmentLayers.uniform (Paddle, pp_layers.py): embedding, layers, norm and LM head are one item each; the last stages take the
// remainder.
Cut cut_of_items(int n_layers, int pp) {
  const int items = n_layers + 3, each = items / pp, extra = items % pp;
  std::vector<int> begins = {0};
  for (int i = 0; i < pp; ++i) begins.push_back(begins.back() + each + (i >= pp - extra ? 1 : 0));
  return layers_of_parts(begins, 1, n_layers);
}

// The methods that gpt_model.py of Megatron-DeepSpeed offers with its list of modules (212-291): a conversion, embedding, a
// transposition, layers, another one, norm, LM head, a conversion. A stage without a layer fails there. Parameters are counted as
// with TP 1.
struct MethodCut {
  const char* method;
  Cut cut;
};
std::vector<MethodCut> cuts_by_method(const ModelSpec& m, int pp) {
  const int first = 3, items = m.n_layers + 7;
  const auto weighed = [&](double layer, double embedding, double norm) {
    std::vector<double> weights(static_cast<std::size_t>(items), 0.0);
    std::fill_n(weights.begin() + first, m.n_layers, layer);
    weights[1] = weights[static_cast<std::size_t>(items - 2)] = embedding;
    weights[static_cast<std::size_t>(items - 3)] = norm;
    return balanced_partition(weights, pp);
  };
  std::vector<int> uniform;
  for (int part = 0; part < pp; ++part) uniform.push_back(items / pp * part);
  uniform.push_back(items);
  const ParameterCounts n = parameter_counts(m);
  std::vector<MethodCut> out;
  for (const auto& [method, begins] :
       {std::pair{"type:transformer", weighed(1, 0, 0)},
        {"type:transformer|embedding", weighed(1, 1, 0)},
        {"parameters", weighed(static_cast<double>(n.layer()), static_cast<double>(n.embedding),
                               static_cast<double>(n.final_norm))},
        {"uniform", uniform}}) {
    Cut cut = layers_of_parts(begins, first, m.n_layers);
    if (std::ranges::count(cut, 0) == 0 && std::ranges::count(out, cut, &MethodCut::cut) == 0)
      out.push_back({method, std::move(cut)});
  }
  return out;
}

// distribute_layers() of Colossal-AI (pipeline/stage_manager.py 212-234).
Cut cut_from_the_middle(int n_layers, int chunks) {
  const int more = n_layers % chunks, from = chunks / 2 - more / 2;
  Cut out = equal_cut(n_layers, chunks);
  for (int i = from; i < from + more; ++i) ++out[static_cast<std::size_t>(i)];
  return out;
}

// Megatron-Core 0.12, transformer/transformer_block.py 52-158 and transformer_config.py 764-890.
bool is_ends_cut(int pp, std::span<const LayerRange> chunks) {
  const std::size_t n = chunks.size(), stages = static_cast<std::size_t>(pp);
  const auto layers = [&](std::size_t c) { return chunks[c].count; };
  // Both numbers are above 0 where they are stated; of two stages one gets what the other leaves.
  bool by_stage = n == 2 || (layers(0) > 0 && layers(n - 1) > 0), counted = true;
  for (std::size_t c = 0; c < n; ++c) {
    const std::size_t stage = c % stages;
    const bool inner = stage > 0 && stage + 1 < stages;
    by_stage = by_stage && layers(c) == (inner ? layers(1) : layers(stage));
  }
  // Embedding and LM head as one layer each, or one of them.
  const int each = n > 2 ? layers(1) : std::max(layers(0), layers(n - 1));
  for (std::size_t c = 0; c < n; ++c) {
    const bool outer = c == 0 || c + 1 == n;
    counted = counted && (layers(c) == each || (outer && layers(c) == each - 1));
  }
  return by_stage || counted;
}

// Frameworks of these rules have no virtual stages, which is said elsewhere.
bool only_one_chunk(UnevenStages able) {
  return able == UnevenStages::block_compute_costs || able == UnevenStages::partition_method;
}

bool same_layers(const Cut& cut, std::span<const LayerRange> chunks) {
  return std::ranges::equal(cut, chunks, {}, {}, [](const LayerRange& c) { return c.count; });
}

bool equal(std::span<const LayerRange> chunks) {
  return std::ranges::all_of(chunks, [&](const LayerRange& c) { return c.count == chunks[0].count; });
}

std::string dashed(const Cut& cut) { return fmt::format("{}", fmt::join(cut, "-")); }

// One of the cuts that `ends` allows, by its chunks that may differ.
struct EndsCut {
  int outer_first = 0, first = 0, inner = 0, last = 0, outer_last = 0;

  Cut layers(int pp, int vp) const {
    Cut out;
    for (int c = 0; c < pp * vp; ++c) out.push_back(c % pp == 0 ? first : c % pp == pp - 1 ? last : inner);
    out.front() = outer_first;
    out.back() = outer_last;
    return out;
  }
};

class EndsSearch {
 public:
  EndsSearch(int pp, int vp, const EndCosts& cost) : pp_(pp), vp_(vp), cost_(cost) {}

  void consider(const EndsCut& cut) {
    const double chunks[] = {cut.outer_first * cost_.first + cost_.embedding, cut.first * cost_.first,
                             cut.inner * cost_.inner, cut.last * cost_.last,
                             cut.outer_last * cost_.last + cost_.head};
    const int times[] = {1, vp_ - 1, (pp_ - 2) * vp_, vp_ - 1, 1};
    double slowest = 0, squares = 0;
    for (std::size_t i = 0; i < 5; ++i)
      if (times[i] > 0) {
        slowest = std::max(slowest, chunks[i]);
        squares += times[i] * chunks[i] * chunks[i];
      }
    if (slowest > slowest_ || (slowest == slowest_ && squares > squares_)) return;
    slowest_ = slowest;
    squares_ = squares;
    best_ = cut;
  }
  // Both ends share so many layers a chunk.
  void share(int ends, int inner) {
    const int least = pp_ * vp_ == 2 ? 0 : 1;  // of two stages one may hold none
    if (ends < 2 * least) return;
    const double level = (ends * cost_.last + cost_.head - cost_.embedding) / (cost_.first + cost_.last);
    for (const double near : {std::floor(level), std::ceil(level)}) {
      const int first = static_cast<int>(std::clamp<double>(near, least, ends - least));
      consider({first, first, inner, ends - first, ends - first});
    }
  }
  Cut best() const { return std::isfinite(slowest_) ? best_.layers(pp_, vp_) : Cut(); }

 private:
  int pp_, vp_;
  EndCosts cost_;
  double slowest_ = std::numeric_limits<double>::infinity(), squares_ = slowest_;
  EndsCut best_;
};

}  // namespace

std::vector<int> ends_cut(int n_layers, int pp, int vp, const EndCosts& cost) {
  EndsSearch search(pp, vp, cost);
  const int chunks = pp * vp;
  if (n_layers % vp == 0 && pp == 2) search.share(n_layers / vp, 0);
  if (n_layers % vp == 0 && pp > 2)
    for (int inner = 1; (pp - 2) * inner + 2 <= n_layers / vp; ++inner)
      search.share(n_layers / vp - (pp - 2) * inner, inner);
  for (const int embedding : {0, 1})
    for (const int head : {0, 1}) {
      const int each = (n_layers + embedding + head) / chunks;
      if ((n_layers + embedding + head) % chunks == 0 && each > 0)
        search.consider({each - embedding, each, each, each, each - head});
    }
  return search.best();
}

std::optional<std::vector<int>> cut_with_ends(int n_layers, int chunks, int first, int last) {
  if (chunks < 2 || chunks > kMaxChunks) return std::nullopt;
  const int all = n_layers + first + last, each = all / chunks, extra = all % chunks;
  if (each == 0 || first > each || last > each) return std::nullopt;
  Cut out(static_cast<std::size_t>(chunks), each);
  std::fill_n(out.begin(), extra, each + 1);
  out.front() -= first;
  out.back() -= last;
  return out;
}

bool cuts_by_rule(UnevenStages able, int vp) {
  switch (able) {
    case UnevenStages::partition_method:
    case UnevenStages::seg_method:
    case UnevenStages::block_compute_costs:
      return true;
    case UnevenStages::per_stage:
      return vp > 1;
    case UnevenStages::none:
    case UnevenStages::ends:
    case UnevenStages::any:
      break;
  }
  return false;
}

std::vector<std::vector<int>> ruled_cuts(UnevenStages able, int pp, int vp, const ModelSpec& m) {
  const int n = m.n_layers, chunks = pp * vp;
  if (chunks > n || !cuts_by_rule(able, vp)) return {};
  if (able == UnevenStages::per_stage) return {cut_from_the_middle(n, chunks)};
  if (able == UnevenStages::partition_method) {
    std::vector<Cut> out;
    for (MethodCut& by : cuts_by_method(m, pp)) out.push_back(std::move(by.cut));
    return out;
  }
  if (able == UnevenStages::seg_method && n % chunks == 0) return {equal_cut(n, chunks)};
  if (able == UnevenStages::seg_method)
    return vp == 1 ? std::vector<Cut>{cut_of_items(n, pp)} : std::vector<Cut>();
  const auto cut = cut_by_cost(m, pp);
  return cut ? std::vector<Cut>{*cut} : std::vector<Cut>();
}

bool can_cut(UnevenStages able, const ParallelPlan& p, std::span<const LayerRange> chunks,
             const ModelSpec& m) {
  if (able == UnevenStages::any || p.pp == 1 || (p.vp > 1 && only_one_chunk(able))) return true;
  if (chunks.empty() || static_cast<int>(chunks.size()) != p.pp * p.vp)
    return true;  // no plan: others say so
  switch (able) {
    case UnevenStages::none:
      return equal(chunks);
    case UnevenStages::ends:
      return equal(chunks) || is_ends_cut(p.pp, chunks);
    case UnevenStages::per_stage:
      return p.vp == 1 || same_layers(cut_from_the_middle(m.n_layers, p.pp * p.vp), chunks);
    case UnevenStages::block_compute_costs:
      return each_stage_by_cost(m, p.pp, [&](int stage, int layers) {
        return chunks[static_cast<std::size_t>(stage)].count == layers;
      });
    case UnevenStages::seg_method:
      return m.n_layers % (p.pp * p.vp) == 0
                 ? equal(chunks)
                 : p.vp == 1 && same_layers(cut_of_items(m.n_layers, p.pp), chunks);
    case UnevenStages::partition_method:
      return equal(chunks) || std::ranges::any_of(cuts_by_method(m, p.pp), [&](const MethodCut& by) {
               return same_layers(by.cut, chunks);
             });
    case UnevenStages::any:
      break;
  }
  return true;
}

bool can_cut(UnevenStages able, const ParallelPlan& p, const ModelSpec& m) {
  if (able == UnevenStages::any || p.pp == 1 || (p.vp > 1 && only_one_chunk(able))) return true;
  if (able == UnevenStages::none) return equal_chunks(p, m.n_layers);
  if (!p.chunks.empty()) return can_cut(able, p, p.chunks, m);
  if (p.pp * p.vp > m.n_layers) return true;  // no plan: others say so
  if (able == UnevenStages::block_compute_costs)
    return each_stage_by_cost(m, p.pp, [](int, int) { return true; });
  if (able == UnevenStages::seg_method) return p.vp == 1 || equal_chunks(p, m.n_layers);
  if (able == UnevenStages::partition_method)
    return equal_chunks(p, m.n_layers) || !cuts_by_method(m, p.pp).empty();
  return able != UnevenStages::ends || equal_chunks(p, m.n_layers) ||
         can_cut(able, p, layer_ranges(p, m.n_layers), m);
}

int most_chunks(UnevenStages able, int n_layers) {
  return n_layers + (able == UnevenStages::any || able == UnevenStages::ends ? 2 : 0);
}

std::optional<ParallelPlan> with_ends_alone(UnevenStages able, ParallelPlan p, const ModelSpec& m) {
  const int chunks = most_chunks(able, m.n_layers);
  if (chunks == m.n_layers || chunks % 4 != 0 || p.pp < 4 || p.pp == chunks || p.pp * p.vp == chunks ||
      chunks % p.pp != 0)
    return std::nullopt;
  const auto cut = cut_with_ends(m.n_layers, chunks, 1, 1);
  if (!cut) return std::nullopt;
  p.schedule = PipelineSchedule::interleaved;
  p.vp = chunks / p.pp;
  p.chunks = chunks_of(*cut);
  p.recompute.layers = std::min(p.recompute.layers, 1);
  p.activation_offload = std::min(p.activation_offload, 1);
  return p;
}

CutRefusal cut_refusal(UnevenStages able, const ParallelPlan& p, const ModelSpec& m) {
  CutRefusal out;
  const int chunks = p.pp * p.vp;
  const auto use = [&] { return fmt::format("use L{}", dashed(out.cuts.front())); };
  if (able == UnevenStages::ends) {
    out.reason = fmt::format(
        "gives only the first and the last of pp={} stages other numbers of layers than those between, which "
        "must be "
        "alike{}",
        p.pp, p.vp > 1 ? fmt::format(", and divides each stage's by vp={}", p.vp) : "");
    if (Cut cut = ends_cut(m.n_layers, p.pp, p.vp); !cut.empty()) out.cuts.push_back(std::move(cut));
    out.instead = out.cuts.empty() ? "use another pp*vp" : use();
    return out;
  }
  if (cuts_by_rule(able, p.vp)) {
    out.cuts = ruled_cuts(able, p.pp, p.vp, m);
    std::vector<std::string> texts;
    for (const Cut& cut : out.cuts) texts.push_back(dashed(cut));
    const std::string_view by =
        able == UnevenStages::per_stage ? "distribute_layers with virtual stages" : name(able);
    if (out.cuts.empty()) {
      out.reason =
          p.vp > 1 ? fmt::format("needs equal chunks with vp={}: {} layers over {}", p.vp, m.n_layers, chunks)
                   : fmt::format("deals layers by its {}, which leaves one of pp={} stages without a layer",
                                 by, p.pp);
      out.instead = p.vp > 1 ? "use pp*vp that divides the layers" : "use fewer pipeline stages";
    } else {
      out.reason = fmt::format("deals layers by its {}: {}", by, fmt::join(texts, " or "));
      out.instead = use();
    }
    return out;
  }
  out.reason = fmt::format("needs equal stages: {} layers over {} chunks", m.n_layers, chunks);
  out.instead = "use pp*vp that divides the layers";
  if (m.n_layers % chunks == 0) out.cuts.push_back(equal_cut(m.n_layers, chunks));
  return out;
}

std::string cut_option(UnevenStages able, const ParallelPlan& p, const ModelSpec& m) {
  const std::vector<LayerRange> chunks = layer_ranges(p, m.n_layers);
  if (p.pp == 1 || static_cast<int>(chunks.size()) != p.pp * p.vp) return "";
  if (able == UnevenStages::partition_method) {
    for (const MethodCut& by : cuts_by_method(m, p.pp))
      if (same_layers(by.cut, chunks)) return fmt::format("--pp-partition-method {}", by.method);
    return "";
  }
  if (able == UnevenStages::per_stage && p.vp == 1)
    return fmt::format("num_layers_per_stage=[{}]", fmt::join(layer_counts(chunks), ", "));
  if (able != UnevenStages::ends || equal(chunks) || !is_ends_cut(p.pp, chunks)) return "";
  // Chunks of a stage that are alike make it the stage's number; otherwise embedding or LM head was counted.
  const std::size_t stages = static_cast<std::size_t>(p.pp), n = chunks.size();
  const bool counted =
      chunks[0].count != chunks[n - stages].count || chunks[n - 1].count != chunks[stages - 1].count;
  const int inner = p.pp > 2 ? chunks[1].count : -1;
  std::vector<std::string> options;
  if (counted) {
    const int each = chunks[1].count;
    if (chunks[0].count < each) options.emplace_back("account_for_embedding_in_pipeline_split=True");
    if (chunks[n - 1].count < each) options.emplace_back("account_for_loss_in_pipeline_split=True");
  } else {
    if (chunks[0].count != inner)
      options.push_back(fmt::format("num_layers_in_first_pipeline_stage={}", chunks[0].count * p.vp));
    if (chunks[n - 1].count != inner && p.pp > 2)
      options.push_back(fmt::format("num_layers_in_last_pipeline_stage={}", chunks[n - 1].count * p.vp));
  }
  return fmt::format("{}", fmt::join(options, ", "));
}

std::optional<std::string> take_ruled_cut(UnevenStages able, const ModelSpec& m, ParallelPlan& p) {
  if (p.pp == 1 || !p.chunks.empty() || !cuts_by_rule(able, p.vp) || (p.vp > 1 && only_one_chunk(able)))
    return std::nullopt;
  const std::vector<Cut> cuts = ruled_cuts(able, p.pp, p.vp, m);
  if (cuts.empty() || same_layers(cuts.front(), layer_ranges(p, m.n_layers))) return std::nullopt;
  p.chunks = chunks_of(cuts.front());
  return "L" + dashed(cuts.front());
}

}  // namespace sextant

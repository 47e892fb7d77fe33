// Attention through cuDNN's fused engines, where they serve: bf16, causal over whole sequences, heads of a
// multiple of 8 up to 128, 16-byte alignment. Everything else, and what the library refuses, goes to the tiles.
// The graphs are the pattern that the library's engines are made for: products, scale, ALiBi's distances, the mask of later
// keys, that of keys before the window, softmax in pieces. dq is added up in fp32 beside it; the order of that sum is the
// library's.
#include <array>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <tuple>
#include <type_traits>

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "core/base/error.hpp"
#include "kernels/cuda/cuda_kernels.hpp"
#include "kernels/cuda/cuda_stream.hpp"
#include "kernels/cuda/cudnn_graph.hpp"
#include "kernels/cuda/kernels.hpp"
#include "kernels/cuda/libraries.hpp"
#include "kernels/cuda/scratch.hpp"
#include "kernels/cuda/stopwatch.hpp"

namespace sextant::cuda {
namespace {

using Tensor = CudnnGraph::Tensor;
using enum CudnnPointwise;

bool aligned(const TensorView& x) {
  return reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 && x.stride * size_bytes(x.dtype) % 16 == 0;
}

// Why the library is not asked; empty when it is.
template <class... View>
std::string unasked(const AttentionShape& s, const View&... operands) {
  const TensorView& q = std::get<0>(std::tie(operands...));
  if (q.dtype != Dtype::bf16) return fmt::format("{}, and cuDNN is used for bf16", name(q.dtype));
  if (s.head_dim % 8 != 0 || s.head_dim > 128)
    return fmt::format("heads of {} channels, and cuDNN is used for multiples of 8 up to 128", s.head_dim);
  if (s.segments != 1 || s.seq_q() != s.seq_k()) return "sequences that are split over ranks";
  if (!s.q_documents.empty()) return "documents that are kept apart";
  if (s.seq_q() <= 1) return "sequences of one token";
  if (!(aligned(operands) && ...) || (s.slopes.data && !aligned(s.slopes)))
    return "rows that do not start at multiples of 16 bytes";
  return cudnn_version().empty() ? "cuDNN was not found" : "";
}

struct Sizes {
  std::int64_t b, h, hk, s, d;
};
Sizes sizes_of(const AttentionShape& s) { return {s.batch, s.heads, s.kv_heads, s.seq_q(), s.head_dim}; }

// Rows of tokens, a head's columns side by side: {batch, heads, tokens, d}, without a transposition in memory.
Extents4 strides_of(const TensorView& x, const Sizes& z) { return {z.s * x.stride, z.d, x.stride, 1}; }
Extents4 transposed(const Extents4& e) { return {e[0], e[1], e[3], e[2]}; }

// Queries and keys of scores.
struct Places {
  Tensor row, column;
  Places(CudnnGraph& g, const Extents4& square, Tensor scores)
      : row(g.virtual_tensor(square, CudnnType::int32)), column(g.virtual_tensor(square, CudnnType::int32)) {
    g.pointwise(row_index, scores, CudnnGraph::kNone, row);
    g.pointwise(column_index, scores, CudnnGraph::kNone, column);
  }
};

// [heads] in fp32; kNone without ALiBi.
Tensor slopes_of(CudnnGraph& g, const AttentionShape& s) {
  if (!s.slopes.data) return CudnnGraph::kNone;
  return g.input({1, s.heads, 1, 1}, {s.heads, 1, 1, 1}, CudnnType::fp32);
}

// scores += slope * (key - query)
Tensor with_distances(CudnnGraph& g, const Sizes& z, Tensor scores, Tensor slopes) {
  if (slopes == CudnnGraph::kNone) return scores;
  const Extents4 square{z.b, z.h, z.s, z.s};
  const Places at(g, square, scores);
  const Tensor tokens = g.virtual_tensor(square, CudnnType::int32), distances = g.virtual_tensor(square),
               out = g.virtual_tensor(square);
  g.pointwise(index_difference, at.column, at.row, tokens);
  g.pointwise(mul, tokens, slopes, distances);
  g.pointwise(add, scores, distances, out);
  return out;
}

// Scores of later keys are -inf, and so are those of keys before the window where there is one.
Tensor masked(CudnnGraph& g, const Sizes& z, Tensor scores, int window) {
  const Extents4 square{z.b, z.h, z.s, z.s};
  const Tensor sees = g.virtual_tensor(square, CudnnType::boolean), causal = g.virtual_tensor(square);
  const float hidden = -std::numeric_limits<float>::infinity();
  const Places at(g, square, scores);
  g.pointwise(greater_equal, at.row, at.column, sees);
  g.pointwise(select, scores, g.constant(hidden), causal, sees);
  if (window == 0) return causal;
  const Tensor end = g.virtual_tensor(square), near = g.virtual_tensor(square, CudnnType::boolean),
               out = g.virtual_tensor(square);
  const Places again(g, square, causal);
  g.pointwise(add, again.column, g.constant(static_cast<float>(window)), end);
  g.pointwise(greater, end, again.row, near);
  g.pointwise(select, causal, g.constant(hidden), out, near);
  return out;
}

struct Forward {
  CudnnGraph graph;
  Tensor q, k, v, out, lse, slopes;
  bool serves = false, chosen = false;

  Forward(const AttentionForwardArgs& a, int device, const std::string& properties = "") {
    const Sizes z = sizes_of(a.shape);
    CudnnGraph& g = graph;
    const Extents4 heads{z.b, z.h, z.s, z.d}, kv_heads{z.b, z.hk, z.s, z.d}, square{z.b, z.h, z.s, z.s},
        statistic{z.b, z.h, z.s, 1};
    q = g.input(heads, strides_of(a.q, z), CudnnType::bf16);
    k = g.input(transposed(kv_heads), transposed(strides_of(a.k, z)), CudnnType::bf16);
    v = g.input(kv_heads, strides_of(a.v, z), CudnnType::bf16);
    out = g.input(heads, strides_of(a.out, z), CudnnType::bf16);
    lse = g.input(statistic, {z.s * a.lse.stride, 1, a.lse.stride, 1}, CudnnType::fp32);
    slopes = slopes_of(g, a.shape);
    const auto scores = g.virtual_tensor(square), scaled = g.virtual_tensor(square);
    g.matmul(q, k, scores);
    g.pointwise(mul, scores, g.constant(static_cast<float>(a.shape.scale)), scaled);
    const Tensor visible = masked(g, z, with_distances(g, z, scaled, slopes), a.shape.window);
    const Tensor highest = g.virtual_tensor(statistic), shifted = g.virtual_tensor(square),
                 weights = g.virtual_tensor(square), total = g.virtual_tensor(statistic),
                 logarithm = g.virtual_tensor(statistic), softmax = g.virtual_tensor(square, CudnnType::bf16);
    g.maximum(visible, highest);
    g.pointwise(sub, visible, highest, shifted);
    g.pointwise(exp, shifted, CudnnGraph::kNone, weights);
    g.sum(weights, total);
    g.pointwise(log, total, CudnnGraph::kNone, logarithm);
    g.pointwise(add, highest, logarithm, lse);
    g.pointwise(div, weights, total, softmax);
    g.matmul(softmax, v, out);
    serves = g.build(device, kLibraryWorkspace, properties);
  }
};

struct Backward {
  CudnnGraph graph;
  Tensor q, k, v, out, dout, lse, dq, dk, dv, products, dq_sum, slopes;
  bool serves = false, chosen = false;

  Backward(const AttentionBackwardArgs& a, int device, CudnnType between = CudnnType::fp32,
           const std::string& properties = "") {
    const Sizes z = sizes_of(a.shape);
    CudnnGraph& g = graph;
    const Extents4 heads{z.b, z.h, z.s, z.d}, kv_heads{z.b, z.hk, z.s, z.d}, square{z.b, z.h, z.s, z.s},
        statistic{z.b, z.h, z.s, 1}, turned{z.h * z.s * z.s, z.s * z.s, 1, z.s};
    q = g.input(heads, strides_of(a.q, z), CudnnType::bf16);
    k = g.input(transposed(kv_heads), transposed(strides_of(a.k, z)), CudnnType::bf16);
    v = g.input(transposed(kv_heads), transposed(strides_of(a.v, z)), CudnnType::bf16);
    out = g.input(heads, strides_of(a.out, z), CudnnType::bf16);
    dout = g.input(heads, strides_of(a.dout, z), CudnnType::bf16);
    lse = g.input(statistic, {z.s * a.lse.stride, 1, a.lse.stride, 1}, CudnnType::fp32);
    dq = g.input(heads, strides_of(a.dq, z), CudnnType::bf16);
    dk = g.input(kv_heads, strides_of(a.dk, z), CudnnType::bf16);
    dv = g.input(kv_heads, strides_of(a.dv, z), CudnnType::bf16);
    products = g.input(statistic, {z.h * z.s, z.s, 1, 1}, CudnnType::fp32);
    dq_sum = g.input(heads, {z.h * z.s * z.d, z.s * z.d, z.d, 1}, CudnnType::fp32);
    slopes = slopes_of(g, a.shape);

    // rowsum(dO * O)
    const Tensor each = g.virtual_tensor(heads, {z.h * z.s * z.d, z.s * z.d, z.h * z.d, 1}, CudnnType::fp32),
                 summed = g.virtual_tensor(statistic);
    g.pointwise(mul, dout, out, each);
    g.sum(each, summed);
    g.pointwise(mul, summed, g.constant(1.0f), products);

    // P = exp(scale q k^T - lse), dV = P^T dO
    const float scale = static_cast<float>(a.shape.scale);
    const Tensor scores = g.virtual_tensor(square), scaled = g.virtual_tensor(square),
                 shifted = g.virtual_tensor(square), p = g.virtual_tensor(square),
                 p_turned = g.virtual_tensor(transposed(square), turned, CudnnType::bf16);
    g.matmul(q, k, scores);
    const Tensor factor = g.constant(scale);
    g.pointwise(mul, scores, factor, scaled);
    g.pointwise(sub, with_distances(g, z, scaled, slopes), lse, shifted);
    g.pointwise(exp, masked(g, z, shifted, a.shape.window), CudnnGraph::kNone, p);
    g.reshape(p, p_turned);
    product_over_heads(z, p_turned, dout, dv);

    // dS = scale P (dO V^T - rowsum), dK = dS^T Q, dQ = dS K
    const Tensor dp = g.virtual_tensor(square), centred = g.virtual_tensor(square),
                 weighted = g.virtual_tensor(square), ds = g.virtual_tensor(square, between),
                 ds_turned = g.virtual_tensor(transposed(square), turned, CudnnType::bf16),
                 keys = g.virtual_tensor(kv_heads, strides_of(a.k, z), CudnnType::bf16);
    g.matmul(dout, v, dp);
    g.pointwise(sub, dp, products, centred);
    g.pointwise(mul, centred, p, weighted);
    g.pointwise(mul, weighted, factor, ds);
    g.reshape(ds, ds_turned);
    product_over_heads(z, ds_turned, q, dk);
    g.reshape(k, keys);
    g.matmul(ds, keys, dq_sum);
    g.pointwise(identity, dq_sum, CudnnGraph::kNone, dq);
    serves = g.build(device, AttentionScratch(z.b * z.s, z.h, z.hk, z.d).workspace, properties);
  }

 private:
  // y = a^T b, summed over the query heads that share a key head.
  void product_over_heads(const Sizes& z, Tensor a, Tensor b, Tensor y) {
    if (z.h == z.hk) return graph.matmul(a, b, y);
    const Tensor every = graph.virtual_tensor({z.b, z.h, z.s, z.d}, CudnnType::bf16);
    graph.matmul(a, b, every);
    graph.sum(every, y);
  }
};

// Built once a shape, kept until the process ends.
using GraphKey = std::array<std::int64_t, 17>;
GraphKey key_of(const AttentionShape& s, const TensorView& q, const TensorView& k, const TensorView& v,
                const TensorView& out, const TensorView& lse, const TensorView& dq, const TensorView& dk,
                const TensorView& dout, int device) {
  return {s.batch,
          s.heads,
          s.kv_heads,
          s.head_dim,
          s.seq_q(),
          q.stride,
          k.stride,
          v.stride,
          out.stride,
          lse.stride,
          dq.stride,
          dk.stride,
          dout.stride,
          device,
          static_cast<std::int64_t>(1e9 * s.scale),
          s.window,
          s.slopes.data != nullptr};
}

std::mutex cache_mutex;
std::set<std::string> fallbacks, second_choices;  // under the mutex

void fell_back(std::string why) {
  const std::lock_guard lock(cache_mutex);
  fallbacks.insert(std::move(why));
}

template <class Graph, class Args>
Graph& built(const GraphKey& key, const Args& args, int device) {
  static auto* cache = new std::map<GraphKey, std::unique_ptr<Graph>>;
  const std::lock_guard lock(cache_mutex);
  auto& made = (*cache)[key];
  if (!made) {
    made = std::make_unique<Graph>(args, device);
    if constexpr (std::is_same_v<Graph,
                                 Backward>)  // versions differ in what they take before the last products
      if (!made->serves) made = std::make_unique<Graph>(args, device, CudnnType::bf16);
    const char* pass = std::is_same_v<Graph, Forward> ? "forward" : "backward";
    if (!made->serves)
      fallbacks.insert(fmt::format("{} refused the {} pass: {}", cudnn_version(), pass, made->graph.why()));
    else if (!made->graph.why().empty())
      second_choices.insert(fmt::format("{} pass: {}", pass, made->graph.why()));
  }
  return *made;
}

// In a rehearsed step the engines that the library proposes are timed, and the fastest stays. `run` may be repeated.
constexpr std::size_t kEngines = 4;
constexpr int kRuns = 3;
template <class Graph>
void choose_engine(Graph& g, const CudaStream& stream, const auto& run) {
  static std::mutex choosing;
  const std::lock_guard lock(choosing);
  if (g.chosen) return;
  const std::size_t engines = g.graph.make_alternatives(stream.device, kEngines);
  const Stopwatch watch(stream);
  std::pair<double, std::size_t> best{std::numeric_limits<double>::infinity(), 0};
  for (std::size_t engine = 0; engine < engines && engines > 1; ++engine) {
    g.graph.use(engine);
    const auto timed = [&](int runs) {
      return watch.seconds(runs, [&] {
        run();
        return true;
      });
    };
    timed(1);  // its code is loaded now
    if (const auto seconds = timed(kRuns)) best = std::min(best, {*seconds, engine});
  }
  g.graph.use(best.second);
  g.chosen = true;
}

}  // namespace

void attention_forward(const AttentionForwardArgs& a) {
  CudaStream& stream = stream_of(a.stream);
  if (std::string why = unasked(a.shape, a.q, a.k, a.v, a.out); !why.empty()) {
    fell_back(std::move(why));
    return attention_forward_tiles(a);
  }
  Forward& f = built<Forward>(key_of(a.shape, a.q, a.k, a.v, a.out, a.lse, {}, {}, {}, stream.device), a,
                              stream.device);
  if (!f.serves) return attention_forward_tiles(a);
  const auto run = [&] {
    void* workspace = scratch(stream, f.graph.workspace_bytes());
    f.graph.run({{f.q, a.q.data},
                 {f.k, a.k.data},
                 {f.v, a.v.data},
                 {f.out, a.out.data},
                 {f.lse, a.lse.data},
                 {f.slopes, a.shape.slopes.data}},
                workspace, stream.device, stream.stream);
  };
  if (stream.rehearsal) choose_engine(f, stream, run);
  run();
}

void attention_backward(const AttentionBackwardArgs& a) {
  CudaStream& stream = stream_of(a.stream);
  if (std::string why = unasked(a.shape, a.q, a.k, a.v, a.out, a.dout, a.dq, a.dk, a.dv); !why.empty()) {
    fell_back(std::move(why));
    return attention_backward_tiles(a);
  }
  Backward& g = built<Backward>(
      key_of(a.shape, a.q, a.k, a.v, a.out, a.lse, a.dq, a.dk, a.dout, stream.device), a, stream.device);
  if (!g.serves) return attention_backward_tiles(a);
  const AttentionScratch need(a.q.rows, a.shape.heads, a.shape.kv_heads, a.shape.head_dim);
  auto* memory = static_cast<std::byte*>(scratch(stream, need.total()));
  std::byte* products = memory + need.dq;
  const auto run = [&] {
    check(cudaMemsetAsync(memory, 0, static_cast<std::size_t>(need.dq), stream.stream), "cudaMemsetAsync");
    g.graph.run({{g.q, a.q.data},
                 {g.k, a.k.data},
                 {g.v, a.v.data},
                 {g.out, a.out.data},
                 {g.dout, a.dout.data},
                 {g.lse, a.lse.data},
                 {g.dq, a.dq.data},
                 {g.dk, a.dk.data},
                 {g.dv, a.dv.data},
                 {g.products, products},
                 {g.dq_sum, memory},
                 {g.slopes, a.shape.slopes.data}},
                products + need.products, stream.device, stream.stream);
  };
  if (stream.rehearsal) choose_engine(g, stream, run);
  run();
}

std::string attention_library() { return cudnn_version(); }

}  // namespace sextant::cuda

namespace sextant {

std::string attention_fallback() {
  const std::lock_guard lock(cuda::cache_mutex);
  return fmt::format("{}", fmt::join(cuda::fallbacks, "; "));
}

std::string attention_second_choice() {
  const std::lock_guard lock(cuda::cache_mutex);
  return fmt::format("{}", fmt::join(cuda::second_choices, "; "));
}

std::string attention_refusal(const AttentionShape& shape, const std::string& properties) {
  if (cuda::cudnn_version().empty()) return "cuDNN was not found";
  const std::int64_t rows = shape.batch * shape.seq_q(), q_cols = std::int64_t{shape.heads} * shape.head_dim,
                     k_cols = std::int64_t{shape.kv_heads} * shape.head_dim;
  const TensorView q(nullptr, Dtype::bf16, rows, q_cols), kv(nullptr, Dtype::bf16, rows, 2 * k_cols),
      lse(nullptr, Dtype::fp32, rows, shape.heads);
  const TensorView k = kv.column_range(0, k_cols), v = kv.column_range(k_cols, k_cols);
  const cuda::Forward forward({.shape = shape, .q = q, .k = k, .v = v, .out = q, .lse = lse}, 0, properties);
  std::string why;
  if (!forward.graph.why().empty()) why += "forward: " + forward.graph.why() + " ";
  const AttentionBackwardArgs backward{.shape = shape,
                                       .q = q,
                                       .k = k,
                                       .v = v,
                                       .out = q,
                                       .lse = lse,
                                       .dout = q,
                                       .dq = q,
                                       .dk = k,
                                       .dv = v,
                                       .workspace = {}};
  std::string first;
  for (const cuda::CudnnType between : {cuda::CudnnType::fp32, cuda::CudnnType::bf16}) {
    const cuda::Backward graph(backward, 0, between, properties);
    if (graph.serves && graph.graph.why().empty()) return why;
    if (first.empty()) first = "backward: " + graph.graph.why();
  }
  return why + first;
}

}  // namespace sextant

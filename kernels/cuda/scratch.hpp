// How much scratch do a stream's kernels take on a GPU? A plan gives them so much of the arena, before anything runs, and no
// more: what a library asks for beyond it is refused.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "core/graph/block_tensors.hpp"
#include "core/graph/work.hpp"
#include "kernels/cuda/fp8.hpp"

namespace sextant::cuda {

inline constexpr std::int64_t kScratchAlignment = 1024;
inline constexpr std::int64_t kLibraryWorkspace = std::int64_t{32} << 20;  // what NVIDIA advises for sm_90
inline constexpr std::int64_t kSmallScratch = std::int64_t{64}
                                              << 10;  // of a stream without blocks: sums of a norm
// Blocks of a norm's gradient, each with a row of partial sums: two on each multiprocessor of an H100.
inline constexpr std::int64_t kNormGradientBlocks = 264;

constexpr std::int64_t whole_scratch(std::int64_t bytes) {
  return (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
}

// Of the library's backward pass: [dq in fp32][row sums][its workspace]. What cuDNN 9.19 asks for as its own, beside a few
// bytes, in bytes an element of q (attention_graph_test): on an A100 4, and 4 more for dk and dv of every query head where
// heads share keys; on an H200 those 4 alone.
struct AttentionScratch {
  std::int64_t dq = 0, products = 0, workspace = 0;  // bytes
  AttentionScratch(std::int64_t tokens, std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim)
      : dq(whole_scratch(4 * tokens * heads * head_dim)),
        products(whole_scratch(4 * tokens * heads)),
        workspace(kLibraryWorkspace + whole_scratch((kv_heads < heads ? 8 : 4) * tokens * heads * head_dim)) {
  }
  std::int64_t total() const { return dq + products + workspace; }
};

// Of a GEMM in fp8: [the library's workspace][Fp8Room][codes of a, turned, for the next][of a][of b], a byte an element. The
// next GEMM finds its a where its own would be.
struct Fp8Scratch {
  std::int64_t room = kLibraryWorkspace, again = 0, a = 0, b = 0, total = 0;  // where each begins
  Fp8Scratch(std::int64_t elements_of_a, std::int64_t elements_of_b, bool a_again_turned = false)
      : again(room + whole_scratch(sizeof(Fp8Room))),
        a(again + (a_again_turned ? whole_scratch(elements_of_a) : 0)),
        b(a + whole_scratch(elements_of_a)),
        total(b + whole_scratch(elements_of_b)) {}
};

// The most that a unit's GEMMs take in any pass, with neighbours joined: q, k and v, gate and up.
inline std::int64_t fp8_scratch(const BlockWork& w) {
  const std::int64_t tokens = w.tokens(), q = std::int64_t{w.heads} * w.head_dim,
                     kv = 2 * std::int64_t{w.kv_heads} * w.head_dim;
  std::int64_t most = 0;
  const auto product = [&](std::int64_t in, std::int64_t out) {
    for (const Fp8Scratch& at : {Fp8Scratch(tokens * in, in * out), Fp8Scratch(tokens * out, in * out, true),
                                 Fp8Scratch(tokens * out, tokens * in)})
      most = std::max(most, at.total);
  };
  if (w.kind == BlockKind::qkv) product(w.hidden, q + kv);
  if (w.kind == BlockKind::attention) product(q, w.hidden);
  if (w.kind == BlockKind::mlp) {
    product(w.hidden, 2 * std::int64_t{w.ffn});
    product(w.ffn, w.hidden);
  }
  return most;
}

inline std::int64_t widest_norm_of_qk(const BlockWork& w) {
  if (w.kind != BlockKind::qk_norm) return 0;
  return std::int64_t{w.head_dim} * (w.qk_norm == QkNorm::whole ? w.heads : 1);
}

inline std::int64_t scratch_of(const BlockWork& w) {
  const std::int64_t wide = w.dtype == Dtype::fp64 ? 8 : 4;
  std::int64_t most = std::max(
      kLibraryWorkspace,
      whole_scratch(kNormGradientBlocks * std::max<std::int64_t>(w.hidden, widest_norm_of_qk(w)) * wide));
  if (w.kind == BlockKind::attention && kept_as(w.dtype) == Dtype::bf16)
    most = std::max(most, AttentionScratch(w.tokens(), w.heads, w.kv_heads, w.head_dim).total());
  if (w.dtype == Dtype::fp8) most = std::max(most, fp8_scratch(w));
  return most;
}

}  // namespace sextant::cuda

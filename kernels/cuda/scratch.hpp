// How much scratch do a stream's kernels take on a GPU? A plan gives them so much of the arena, before anything runs, and no
// more: what a library asks for beyond it is refused.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/graph/work.hpp"

namespace sextant::cuda {

inline constexpr std::int64_t kScratchAlignment = 1024;
inline constexpr std::int64_t kLibraryWorkspace = std::int64_t{32} << 20;  // what NVIDIA advises for sm_90
inline constexpr std::int64_t kSmallScratch = std::int64_t{64}
                                              << 10;      // of a stream without blocks: sums of a norm
inline constexpr std::int64_t kNormGradientBlocks = 256;  // each with a row of partial sums

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

inline std::int64_t scratch_of(const BlockWork& w) {
  const std::int64_t wide = w.dtype == Dtype::fp64 ? 8 : 4;
  std::int64_t most = std::max(kLibraryWorkspace, whole_scratch(kNormGradientBlocks * w.hidden * wide));
  if (w.kind == BlockKind::attention && w.dtype == Dtype::bf16)
    most = std::max(most, AttentionScratch(w.tokens(), w.heads, w.kv_heads, w.head_dim).total());
  return most;
}

}  // namespace sextant::cuda

// What the units of a decoder (BlockWork) keep in memory, by name and extent: the same lists can size the
// planner's buffers and do place the runtime's. Pure extents; the arithmetic that fills them is
// kernels/blocks.hpp.
//
// Tokens: `local` rows lie outside the tensor-parallel region (batch * seq_q / tp under sequence
// parallelism), `full` rows are batch * seq_q. Statistics are fp32, or fp64 when GEMMs are fp64; the rest is as GEMMs are,
// bf16 where these are fp8. Every
// tensor starts on a 64-byte boundary and bytes() includes that padding, so a list adds up to its buffer
// exactly.
#pragma once

#include <cstdint>
#include <string_view>

#include <boost/container/static_vector.hpp>

#include "core/base/units.hpp"
#include "core/graph/work.hpp"

namespace sextant {

// What operands of GEMMs stand in memory as: those of fp8 are rounded right before they are multiplied.
constexpr Dtype kept_as(Dtype products) { return products == Dtype::fp8 ? Dtype::bf16 : products; }

inline constexpr std::int64_t kTensorAlignment = 64;  // bytes

struct BlockTensor {
  std::string_view name;
  std::int64_t rows = 0, cols = 0;
  Dtype dtype = Dtype::fp32;
  // Elements from one row to the next where it is columns of a wider tensor (BlockWork::joined), which follow each other in
  // the list until they fill this; 0: alone. The wide tensor takes no more bytes than its columns apart.
  std::int64_t stride = 0;
  Bytes bytes() const;
  bool operator==(const BlockTensor&) const = default;
};

using BlockTensors = boost::container::static_vector<BlockTensor, 12>;

// Kept from forward to backward by a half-layer, whose last unit names it (norm and qkv write into the same):
//   attention  input (local, h), inverse_rms (1, local), normed (local, h), q (full, heads d),
//              kv (full, 2 kv_heads d: keys, then values), context (full, heads d), lse (full, heads);
//              the last two not when the core is recomputed; with norms of q and k also what they read, raw_q (full, heads d)
//              and raw_k (full, kv_heads d), and their inverse_rms, of q and then of k: qk_rms (1, (heads + kv_heads) full), or
//              (1, 2 full) where rows are normed whole
//   mlp        input, inverse_rms, normed, gate (full, f), up (full, f)
//   head       input, inverse_rms, normed, softmax (full, 2)
// Other units keep nothing.
BlockTensors saved_tensors(const BlockWork&);

// Written by one unit of the backward pass for another:
//   attention  dq (full, heads d), dkv (full, 2 kv_heads d)     read by qkv; where norms are over heads of other ranks as well,
//              sums (1, 2 full) of q's rows and of k's
BlockTensors passed_tensors(const BlockWork&);

// Kept from the input half of a split backward pass to its weight half, beside what is saved and passed:
//   attention  dout (full, h)
//              and context (full, heads d) when the core is recomputed
//   mlp        dout (full, h), activation (full, f); the gradients of gate and up stand in gate and up
BlockTensors deferred_tensors(const BlockWork&);

// Kept by the head beside its norm's tensors (input, inverse_rms, normed): stats (full, 3) of the local vocabulary slice,
// and softmax (full, 2), which its backward makes of them; dlogits (full, vocab) for the weight half of a split backward.
BlockTensors norm_tensors(const BlockWork&);
BlockTensors loss_tensors(const BlockWork&);

// Tokens whose logits are made at a time: what the work says, or about 2^24 logits, a multiple of 64.
std::int64_t head_chunk(const BlockWork&);
// As many as these bytes hold, in chunks of about the same length; 64 at the least.
std::int64_t head_chunk(const BlockWork&, Bytes logits);

// Alive only while the unit runs in work.pass. `head_chunk`: tokens whose logits are made at a time.
//   attention backward  dcontext (full, heads d), core (the kernel's own);  context and lse when recomputed
//   mlp                 activation (full, f)
//   head                logits (chunk, vocab), dlogits (chunk, vocab) when the formats differ (not with short logits); inverse (1, vocab) lengths of
//                       the rows of a normalized head
BlockTensors workspace_tensors(const BlockWork&, std::int64_t head_chunk);

Bytes total_bytes(const BlockTensors&);
inline Bytes saved_bytes(const BlockWork& work) { return total_bytes(saved_tensors(work)); }

std::int64_t local_tokens(const BlockWork&);

// Elements that attention's backward needs beside its tiles: dq of the query heads that share a key head, in
// the accumulator's format with columns padded to 16, and their row sums.
std::int64_t attention_core_elements(std::int64_t seq_q, int heads, int kv_heads, int head_dim);

}  // namespace sextant

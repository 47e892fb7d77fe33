// LLaMA's arithmetic, unit by unit as the execution graph has it (BlockKind), on local weights of one
// tensor-parallel rank; the only place that knows it. Communication belongs to the caller and comes between
// units:
//
//   forward   embedding              -> [tp: sum of zero-padded rows; to local tokens under SP]
//             norm (attention)       -> [SP: gather normed]
//             qkv                    -> [norms of q and k over heads of other ranks: qk_sums, sum over tp]
//             qk_norm, if the model has them -> [cp: gather kv]
//             attention              -> [tp: sum of partial branches; to local tokens under SP]
//             norm (mlp)             -> [SP: gather normed]
//             mlp                    -> [tp: as behind attention]
//             norm (final)           -> [SP: gather normed]
//             head                   -> [tp: gather stats], head_loss
//   backward  head                   -> [tp: sum of partial dnormed; to local tokens under SP]
//             norm                   (bypass = gradient of the residual stream)
//             [SP: gather the stream's gradient and, for weight gradients, normed]
//             mlp                    -> [tp: sum of dnormed] norm
//             attention              -> [cp: sum dkv over ranks, scattered] [qk_sums -> tp: sum] qk_norm
//             qkv                    -> [tp: sum of dnormed] norm
//             embedding
//
// With norms behind the GEMMs (NormPlacement::after) a half-layer begins with qkv or mlp on the stream itself, of which
// `normed` holds a copy, and ends with norm_after on the branch; backward it is the other way round.
//
// Gradients of weights are added into the given fp32 (fp64) ranges; views without data skip that half. Under
// SP the gradient of a norm weight is a sum over local tokens only. Activations are T = work.dtype; which are
// kept where is core/graph/block_tensors.hpp. Every function works on any range of rows unless it says otherwise.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/graph/block_tensors.hpp"
#include "core/graph/work.hpp"
#include "kernels/kernel_table.hpp"

namespace sextant {

// Largest values of a unit's weights in fp8: Fp8Largest::kMostParts times kWords words, one weight after another.
struct Fp8Weights {
  std::uint32_t* words = nullptr;  // none: looked for in every use
  bool known = false;              // they have been looked for since the weights have changed
};

// What does not change from call to call on one rank.
struct BlockContext {
  const KernelTable* kernels = nullptr;
  double norm_eps = 1e-5;
  TensorView rope_cos, rope_sin;                // A [positions, d/2]; no data: q and k are not turned
  std::span<const std::int32_t> positions;      // of this rank's tokens of a sequence: seq_q
  std::span<const std::int32_t> key_positions;  // of the keys, in gathered order: seq_k
  std::span<const std::int32_t> documents =
      {};                       // where each token's begins, [batch][seq_q]; empty: one a sequence
  TensorView slopes = {};       // ALiBi's, A [1, heads], of this rank's heads; no data: none
  Fp8Weights fp8_weights = {};  // of the unit
  bool fp8 = false;  // the blocks' GEMMs, not the head's: operands e4m3, gradients of their results e5m2
  bool adds_biases = true;   // of GEMMs whose sum over tp comes next: the first rank of tp alone
  int cp = 1;                // segments of gathered keys
  int threads = 1;           // inside GEMMs
  NativeStream stream = {};  // of every kernel of a unit
};

// Local slices: q, k, v, gate, up, embedding and head by rows, o and down by columns. Used for gradients too.
struct AttentionWeights {
  TensorView q;                                      // [heads d, h]
  TensorView k, v;                                   // [kv_heads d, h]
  TensorView o;                                      // [h, heads d]
  TensorView q_bias = {}, k_bias = {}, v_bias = {};  // [1, heads d], [1, kv_heads d]; no data = none
  TensorView o_bias = {};               // [1, h]: whole on every rank of tp, added by the first alone
  TensorView q_norm = {}, k_norm = {};  // [1, d], the same for all heads, or [1, columns of q, of k]
};
struct MlpWeights {
  TensorView gate, up;                      // [f, h]
  TensorView down;                          // [h, f]
  TensorView gate_bias = {}, up_bias = {};  // [1, f]
  TensorView down_bias = {};                // [1, h], as o_bias
};

// Views of the tensors of a list, one after another from `base`; an unknown name is our own mistake.
class TensorSet {
 public:
  TensorSet() = default;
  TensorSet(const BlockTensors& list, void* base);
  TensorView operator[](std::string_view name) const;
  bool has(std::string_view name) const;

 private:
  struct Named {
    std::string_view name;
    TensorView view;
  };
  std::vector<Named> tensors_;
};

// stream += branch (when there is one), kept in saved `input`; normed = rmsnorm(stream).
struct NormForward {
  TensorView stream, branch;              // [local, h]
  TensorView weight;                      // [1, h]
  TensorView input, inverse_rms, normed;  // saved; `input` may be the stream itself
};
void norm_forward(const BlockContext&, const NormForward&);

// dstream = bypass + d rmsnorm; bypass may be empty (the final norm) or dstream itself.
struct NormBackward {
  TensorView input, inverse_rms, weight;  // saved
  TensorView dnormed, bypass, dstream;    // [local, h]
  TensorView dweight;                     // [1, h]
};
void norm_backward(const BlockContext&, const NormBackward&);

// What norms of q and k keep: what they read, and an inverse rms of each head (or one for all). Empty without them.
struct QkNormKept {
  TensorView raw_q, raw_k;  // [full, heads d], [full, kv_heads d]
  TensorView rms;           // A [1, (heads + kv_heads) full], of q and then of k; [1, 2 full] of whole rows
};

// The norm behind a half-layer: stream += rmsnorm(branch), which is kept in saved `input`; `branch` is overwritten.
struct NormAfterForward {
  TensorView stream, branch;      // [local, h]
  TensorView weight;              // [1, h]
  TensorView input, inverse_rms;  // saved
};
void norm_after_forward(const BlockContext&, const NormAfterForward&);

// dbranch = d rmsnorm of dstream, which stays as it is.
struct NormAfterBackward {
  TensorView input, inverse_rms, weight;  // saved
  TensorView dstream, dbranch;            // [local, h]
  TensorView dweight;                     // [1, h]
};
void norm_after_backward(const BlockContext&, const NormAfterBackward&);

// q and kv from gathered `normed`, already turned by their positions. Rows are whole sequences. With norms of q and k, what
// they read (`norms`) is made instead of q and k, and the norms are a unit of their own.
struct QkvForward {
  AttentionWeights weights;
  TensorView normed;      // [full, h]
  TensorView q, kv;       // saved
  QkNormKept norms = {};  // saved
};
void qkv_forward(const BlockContext&, const BlockWork&, const QkvForward&);

// q and the keys of kv, normed and turned. Over heads of other ranks too, `norms.rms` holds the sums of squares of rows first:
// those of this rank from qk_sums_forward, then added up over tp.
struct QkNormForward {
  AttentionWeights weights;  // only q_norm, k_norm
  QkNormKept norms;
  TensorView q, kv;
};
void qk_sums_forward(const BlockContext&, const BlockWork&, const QkNormForward&);
void qk_norm_forward(const BlockContext&, const BlockWork&, const QkNormForward&);

// dq and dkv, turned back, become the gradients of what the norms have read. Over heads of other ranks too, `sums` holds the
// sums of q dq and of k dk of rows, of this rank and then added up: turning changes both alike, and no sum.
struct QkNormBackward {
  AttentionWeights weights, gradients;  // only q_norm, k_norm
  QkNormKept norms;
  TensorView q, kv;    // saved, for the sums
  TensorView dq, dkv;  // in and out
  TensorView sums;     // A [1, 2 full], of q and then of k
  bool stale = false;  // as of QkvBackward
};
void qk_sums_backward(const BlockContext&, const BlockWork&, const QkNormBackward&);
void qk_norm_backward(const BlockContext&, const BlockWork&, const QkNormBackward&);

// dq and dkv are turned back in place by the input half, where there are no norms of q and k that have done so; the weight
// half alone expects them turned back.
struct QkvBackward {
  AttentionWeights weights, gradients;  // o unused
  TensorView normed;                    // [full, h], for the weight half
  TensorView dq, dkv;                   // [full, ...]
  TensorView dnormed;                   // [full, h], out: partial sum over tp
  bool stale = false;                   // `gradients` hold nothing that counts, and are overwritten
};
void qkv_backward(const BlockContext&, const BlockWork&, const QkvBackward&);

// `keys` is kv itself, or kv gathered over cp: [cp][batch][seq_k / cp] rows.
struct AttentionForward {
  AttentionWeights weights;  // only o
  TensorView q, keys;
  TensorView context, lse;  // saved, or workspace when the core is recomputed
  TensorView branch;        // [full, h], out: partial sum over tp
};
void attention_forward(const BlockContext&, const BlockWork&, const AttentionForward&);

// With work.recompute_core the input half makes context and lse again first. dkeys is [seq_k rows, 2 kv d];
// with cp > 1 it is a partial sum over cp in the gathered order.
struct AttentionBackward {
  AttentionWeights weights, gradients;  // only o
  TensorView q, keys, context, lse;
  TensorView dbranch;         // [full, h]
  TensorView dcontext, core;  // workspace of the input half
  TensorView dq, dkeys;       // out
  bool stale = false;         // as of QkvBackward
};
void attention_backward(const BlockContext&, const BlockWork&, const AttentionBackward&);

struct MlpForward {
  MlpWeights weights;
  TensorView normed;      // [full, h]
  TensorView gate, up;    // saved
  TensorView activation;  // workspace [full, f]
  TensorView branch;      // [full, h], out: partial sum over tp
};
void mlp_forward(const BlockContext&, const BlockWork&, const MlpForward&);

// The input half turns gate and up into their gradients and leaves silu(gate) * up in `activation`.
struct MlpBackward {
  MlpWeights weights, gradients;
  TensorView normed;      // [full, h], for the weight half
  TensorView gate, up;    // saved, become gradients
  TensorView activation;  // workspace, or deferred to the weight half
  TensorView dbranch;     // [full, h]
  TensorView dnormed;     // [full, h], out: partial sum over tp
  bool stale = false;     // as of QkvBackward
};
void mlp_backward(const BlockContext&, const BlockWork&, const MlpBackward&);

// Rows of the local vocabulary slice; ids of other slices give zeros, so that a sum over tp is the lookup.
struct EmbeddingUnit {
  std::span<const std::int32_t> ids;  // full tokens
  TensorView table;                   // [slice, h]: weights forward, gradients backward
  TensorView rows;                    // [full, h]
  std::int64_t first_id = 0;
};
void embedding_forward(const BlockContext&, const EmbeddingUnit&);
void embedding_backward(const BlockContext&, const EmbeddingUnit&);

// The local vocabulary slice's logits and loss, `chunk` tokens at a time (workspace: "logits", and "dlogits"
// when T is not A), so that logits are never held whole.
struct HeadUnit {
  TensorView weight;                      // [slice, h]
  TensorView normed;                      // [full, h]
  std::span<const std::int32_t> targets;  // full tokens
  std::int64_t first_id = 0, vocab = 0;   // vocab: real size of the whole vocabulary; the rest is padding
  TensorView logits, dlogits;             // workspace [chunk, slice]; dlogits may be empty when T = A
  TensorView inverse = {};  // A [1, slice]: inverse lengths of a normalized head's rows; no data: as it is
  bool stale = false;       // what stands in dweight is replaced, not added to
};
// Of a normalized head: its rows' lengths, before any of the below; and once all tokens are in dweight, what is left of it.
void head_lengths(const BlockContext&, const HeadUnit&);
void head_project(const BlockContext&, const HeadUnit&, const TensorView& dweight);
// stats A [full, 3] of the local slice, to be gathered over tp.
void head_forward(const BlockContext&, const HeadUnit&, const TensorView& stats);
// Gathered stats [tp * full, 3] to the saved softmax [full, 2]; adds the summed loss of valid tokens.
void head_loss(const BlockContext&, std::span<const std::int32_t> targets, const TensorView& gathered_stats,
               const TensorView& softmax, double* loss);
// Makes the logits again. scale = 1 / valid targets of the global batch. dnormed [full, h]: partial sum over
// tp; dweight accumulated, or replaced where it is stale; either may be empty.
void head_backward(const BlockContext&, const HeadUnit&, const TensorView& softmax, double scale,
                   const TensorView& dnormed, const TensorView& dweight);
// Without tp: loss and both gradients in one sweep over the chunks, no logits made twice. Accumulates into
// dweight in the same order as head_backward; stats [chunk, 3] and softmax [chunk, 2] are workspace.
void head_fused(const BlockContext&, const HeadUnit&, const TensorView& stats, const TensorView& softmax,
                double scale, double* loss, const TensorView& dnormed, const TensorView& dweight);

}  // namespace sextant

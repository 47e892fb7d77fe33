// The arithmetic a device offers: one function pointer per kernel, one argument struct each. A device hands
// out its table; the same test suite runs over every table. Kernels neither allocate what outlives them nor
// synchronise; a call returns when its work is done on the CPU, when it is issued on `stream` on a GPU. All
// tensors, spans and pointers are of the memory that kernels read; only `decay` is the caller's.
//
// T is the format of GEMMs (fp64, fp32, bf16) and A its accumulator (fp64 for fp64, fp32 otherwise).
// Rows of activations are tokens of `batch` sequences one after another. Sums run in a fixed order that
// depends on shapes only, never on addresses, threads or time.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>

#include "kernels/fp8.hpp"
#include "kernels/native_stream.hpp"
#include "kernels/tensor_view.hpp"

namespace sextant {

// Targets that carry no loss (Hugging Face convention).
inline constexpr std::int32_t kIgnoreTarget = -100;

// c[m, n] (+)= op(a)[m, k] * op(b)[k, n]; a and b in T, c in T or A. In fp8, T is bf16 and all extents are multiples of 16:
// each operand is scaled as a whole and rounded to its format first, and sums are fp32.
struct GemmArgs {
  TensorView a, b, c;
  bool transpose_a = false, transpose_b = false;
  bool accumulate = false;                       // add to c instead of replacing it
  Fp8 round_a = Fp8::none, round_b = Fp8::none;  // both or none
  // What spares a GPU passes over operands in fp8, without a change of any bit.
  Fp8Largest largest_b = {};
  bool a_again_turned = false;  // a is wanted again, transposed, by the next GEMM on this stream
  bool a_as_before = false;     // it has not changed since such a GEMM
  int threads = 1;
  NativeStream stream = {};
};

// y = x / rms(x) * weight, inverse_rms = 1 / sqrt(mean(x^2) + eps). With a branch, x += branch comes first, rounded as it
// is stored: the same bits as add, cast and norm one after another.
struct RmsnormForwardArgs {
  TensorView x;            // T [rows, h]; with a branch also out
  TensorView weight;       // T [1, h]
  TensorView y;            // T [rows, h], out
  TensorView inverse_rms;  // A [1, rows], out
  TensorView branch = {};  // T [rows, h], of the residual stream; no data = none
  TensorView kept = {};    // T [rows, h], out: x, with the branch; no data = none
  double eps = 1e-5;
  NativeStream stream = {};
};

// y again from the saved statistic: the same bits as the forward pass gave.
struct RmsnormApplyArgs {
  TensorView x, inverse_rms, weight;
  TensorView y;  // T [rows, h], out
  NativeStream stream = {};
};

struct RmsnormBackwardArgs {
  TensorView x, inverse_rms, weight;
  TensorView dy;       // T [rows, h]
  TensorView bypass;   // T [rows, h]: gradient along the residual path, added to dx; no data = none
  TensorView dx;       // T [rows, h], out; may be dy or bypass
  TensorView dweight;  // A [1, h], accumulated
  // Where x is a part of rows that were normed whole: the sum of y dy over each whole row, and its numbers. Without
  // bypass.
  TensorView dots = {};  // A [1, rows]; no data: x is all of them
  std::int64_t width = 0;
  NativeStream stream = {};
};

// Of norms over rows that lie on several ranks: the part of each row's sum that is here, and, of its squares once they are
// added up, what rmsnorm_apply wants.
struct RowDotsArgs {
  TensorView a, b;  // T [rows, n]
  TensorView out;   // A [1, rows], out: sum of a b
  NativeStream stream = {};
};
struct InverseRmsArgs {
  TensorView x;            // A [1, rows], in: sums of squares; out: 1 / sqrt(x / width + eps)
  std::int64_t width = 1;  // numbers of a whole row
  double eps = 1e-5;
  NativeStream stream = {};
};

// Rotary embedding on halves (Hugging Face): the pair (i, i + d/2) of each head turns by the angle of its
// position. In place. `inverse` turns back, which is the backward pass.
struct RopeArgs {
  TensorView x;         // T [rows, heads * d]
  TensorView cos, sin;  // A [positions, d/2]
  int heads = 0, head_dim = 0;
  std::span<const std::int32_t> positions;  // of one sequence; row r has positions[r % size]
  bool inverse = false;
  NativeStream stream = {};
};

// Causal attention with grouped queries, blocked, online softmax. A query sees the keys whose position is not
// beyond its own; q and k rows may be different sets of positions (context parallelism). Keys and values
// stand in `segments` pieces, as an all-gather leaves them: [segments][batch][seq_k / segments] rows.
struct AttentionShape {
  int batch = 1, heads = 0, kv_heads = 0, head_dim = 0;
  std::span<const std::int32_t> q_positions;  // seq_q of them, the same for every sequence
  std::span<const std::int32_t> k_positions;  // seq_k of them, segment after segment
  // Documents in a sequence that do not see each other: for each query, [batch][seq_q], the position at which its document
  // begins; keys before it are hidden. Empty: one document.
  std::span<const std::int32_t> q_documents = {};
  int window = 0;  // keys that a query sees, its own included; 0: all up to its own
  // ALiBi (Press et al. 2022): A [1, heads], what a query head's scores lose for every token between query and key; no data:
  // nothing.
  TensorView slopes = {};
  int segments = 1;    // 1: positions count up from 0, and a library that knows none may serve
  double scale = 1.0;  // of the scores, 1/sqrt(d)
  std::int64_t seq_q() const { return static_cast<std::int64_t>(q_positions.size()); }
  std::int64_t seq_k() const { return static_cast<std::int64_t>(k_positions.size()); }
};
struct AttentionForwardArgs {
  AttentionShape shape;
  TensorView q;     // T [batch * seq_q, heads * d]
  TensorView k, v;  // T [batch * seq_k, kv_heads * d]
  TensorView out;   // T [batch * seq_q, heads * d], out
  TensorView lse;   // A [batch * seq_q, heads], out: log of the sum of exponentials of a row's scores
  NativeStream stream = {};
};
struct AttentionBackwardArgs {
  AttentionShape shape;
  TensorView q, k, v, out, lse;
  TensorView dout;    // T [batch * seq_q, heads * d]
  TensorView dq;      // T like q, out
  TensorView dk, dv;  // T like k, v, out
  TensorView
      workspace;  // A [1, attention_core_elements(seq_q, heads, kv_heads, d)], core/graph/block_tensors.hpp
  NativeStream stream = {};
};
// out = silu(gate) * up
struct SwigluForwardArgs {
  TensorView gate, up, out;  // T [rows, f]
  NativeStream stream = {};
};
// In place, so that the backward pass needs no more memory: gate becomes dgate, up becomes dup, and dout
// becomes silu(gate) * up, which the weight gradient of the next GEMM wants.
struct SwigluBackwardArgs {
  TensorView gate, up, dout;  // T [rows, f], in and out
  NativeStream stream = {};
};

// Lookup in a slice of the vocabulary; ids outside it give zero rows (another rank has them).
struct EmbeddingForwardArgs {
  std::span<const std::int32_t> ids;
  TensorView table;  // T [slice rows, h]
  std::int64_t first_id = 0;
  TensorView out;  // T [ids, h], out
  NativeStream stream = {};
};
struct EmbeddingBackwardArgs {
  std::span<const std::int32_t> ids;
  TensorView dout;    // T [ids, h]
  TensorView dtable;  // A [slice rows, h], accumulated in token order
  std::int64_t first_id = 0;
  NativeStream stream = {};
};

// Cross entropy over a slice of the vocabulary, in three steps with one all-gather between the first two.
// Columns whose id is not below `vocab` are padding: no probability, no gradient.
struct CrossEntropyStatsArgs {
  TensorView logits;  // A or T [rows, slice]
  std::span<const std::int32_t> targets;
  std::int64_t first_id = 0, vocab = 0;
  TensorView stats;  // A [rows, 3], out: max, sum of exp(logit - max), logit of the target or 0
  NativeStream stream = {};
};
struct CrossEntropyCombineArgs {
  TensorView stats;  // A [ranks * rows, 3], rank after rank; combined in rank order
  std::span<const std::int32_t> targets;
  TensorView softmax;      // A [rows, 2], out: max of the whole row, 1 / sum of exp(logit - max)
  double* loss = nullptr;  // += sum over valid targets of -log softmax(target), in token order
  NativeStream stream = {};
};
struct CrossEntropyGradientArgs {
  TensorView logits;   // A or T [rows, slice]
  TensorView softmax;  // A [rows, 2], as combined
  std::span<const std::int32_t> targets;
  std::int64_t first_id = 0, vocab = 0;
  double scale = 1.0;  // 1 / global number of valid targets
  TensorView dlogits;  // T [rows, slice], out; may be logits where these are T
  NativeStream stream = {};
};

// AdamW over a shard. Scalars are read when the kernel runs: they come from a norm computed just before. What of them is a
// quotient or a root is worked out before; kernels round them to A and divide nothing by them.
struct AdamwScalars {
  double keep = 1, gradient_scale = 1;  // 1 - rate * decay, of ranges that take decay; the clipping factor
  double step = 0, root2 = 1;           // rate / (1 - beta1^t), 1 / sqrt(1 - beta2^t)
  bool skip = false;                    // gradients were not finite
};
struct AdamwStep {
  double rate = 0, weight_decay = 0.1, gradient_scale = 1;
  double correction1 = 1, correction2 = 1;  // 1 - beta^t, t counts successful steps
};
inline AdamwScalars scalars_of(const AdamwStep& s) {
  return {.keep = 1.0 - s.rate * s.weight_decay,
          .gradient_scale = s.gradient_scale,
          .step = s.rate / s.correction1,
          .root2 = 1.0 / std::sqrt(s.correction2)};
}
struct ElementRange {
  std::int64_t begin = 0, end = 0;
  bool operator==(const ElementRange&) const = default;
};
struct AdamwArgs {
  TensorView master, moment1, moment2;  // A [1, n]
  TensorView gradient;                  // A [1, n]
  TensorView parameter;                 // T [1, n], out; may be master
  std::span<const ElementRange> decay;  // sorted element ranges that take weight decay
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  const AdamwScalars* scalars = nullptr;
  NativeStream stream = {};
};

struct SquaredNormArgs {
  TensorView x;           // A or T [rows, cols]
  double* sum = nullptr;  // += sum of squares, right to 1e-9 or better
  NativeStream stream = {};
};
struct TotalArgs {
  TensorView x;           // fp64 [1, n]
  double* sum = nullptr;  // = x[0] + x[1] + ..., in this order
  NativeStream stream = {};
};
struct AddArgs {
  TensorView a, b, out;  // T; out may be a or b
  NativeStream stream = {};
};
// x += bias in every row.
struct AddBiasArgs {
  TensorView x;     // T [rows, n], in and out
  TensorView bias;  // T [1, n]
  NativeStream stream = {};
};
// Its gradient: the sum over rows, in their order.
struct BiasGradientArgs {
  TensorView dy;     // T [rows, n]
  TensorView dbias;  // A [1, n], accumulated
  NativeStream stream = {};
};
// A head whose rows are divided by their length (torch's normalize): logits are products with the rows as they are, times
// the inverse lengths of columns; so are gradients of logits before they are used; and what has been summed of the weight's
// gradient loses its part along the row, once for all tokens.
struct RowLengthsArgs {
  TensorView x;        // T [rows, n]
  TensorView inverse;  // A [1, rows], out: 1 / max(length of the row, 1e-12)
  NativeStream stream = {};
};
struct ScaleColumnsArgs {
  TensorView x;        // T or A [rows, n], in and out
  TensorView factors;  // A [1, n]
  NativeStream stream = {};
};
struct ProjectRowsArgs {
  TensorView weight;   // T [rows, n]
  TensorView inverse;  // A [1, rows]
  TensorView dweight;  // A [rows, n], in and out: -= row (row . dweight) inverse^2
  NativeStream stream = {};
};
struct AccumulateArgs {
  TensorView source;       // T or A
  TensorView destination;  // A, += source
  NativeStream stream = {};
};
struct CastArgs {
  TensorView source, destination;  // any two formats; bf16 rounds to nearest even
  NativeStream stream = {};
};
// x[i] = mean + deviation * z, z the normal number (kernels/counter_normal.hpp) at the place of x[i] in a tensor: x is elements
// [begin, begin + n), row-major, of the rectangle of `cols` columns at (first_row, first_col). The same bits on every device.
struct RandomNormalArgs {
  TensorView x;           // T or A [1, n], out
  std::uint64_t key = 0;  // of the tensor
  std::int64_t begin = 0, cols = 1;
  std::int64_t first_row = 0, first_col = 0, model_cols = 1;  // model_cols: of the tensor
  double mean = 0, deviation = 1;
  NativeStream stream = {};
};
struct ZeroArgs {
  TensorView x;
  NativeStream stream = {};
};
struct ScaleArgs {
  TensorView x;
  double factor = 1;
  NativeStream stream = {};
};

struct KernelTable {
  const char* name = "";
  bool (*supports)(Dtype) = nullptr;
  void (*gemm)(const GemmArgs&) = nullptr;
  void (*rmsnorm_forward)(const RmsnormForwardArgs&) = nullptr;
  void (*rmsnorm_apply)(const RmsnormApplyArgs&) = nullptr;
  void (*rmsnorm_backward)(const RmsnormBackwardArgs&) = nullptr;
  void (*row_dots)(const RowDotsArgs&) = nullptr;
  void (*inverse_rms)(const InverseRmsArgs&) = nullptr;
  void (*rope)(const RopeArgs&) = nullptr;
  void (*attention_forward)(const AttentionForwardArgs&) = nullptr;
  void (*attention_backward)(const AttentionBackwardArgs&) = nullptr;
  void (*swiglu_forward)(const SwigluForwardArgs&) = nullptr;
  void (*swiglu_backward)(const SwigluBackwardArgs&) = nullptr;
  void (*embedding_forward)(const EmbeddingForwardArgs&) = nullptr;
  void (*embedding_backward)(const EmbeddingBackwardArgs&) = nullptr;
  void (*cross_entropy_stats)(const CrossEntropyStatsArgs&) = nullptr;
  void (*cross_entropy_combine)(const CrossEntropyCombineArgs&) = nullptr;
  void (*cross_entropy_gradient)(const CrossEntropyGradientArgs&) = nullptr;
  void (*adamw)(const AdamwArgs&) = nullptr;
  void (*squared_norm)(const SquaredNormArgs&) = nullptr;
  void (*total)(const TotalArgs&) = nullptr;
  void (*add)(const AddArgs&) = nullptr;
  void (*add_bias)(const AddBiasArgs&) = nullptr;
  void (*bias_gradient)(const BiasGradientArgs&) = nullptr;
  void (*row_lengths)(const RowLengthsArgs&) = nullptr;
  void (*scale_columns)(const ScaleColumnsArgs&) = nullptr;
  void (*project_rows)(const ProjectRowsArgs&) = nullptr;
  void (*accumulate)(const AccumulateArgs&) = nullptr;
  void (*cast)(const CastArgs&) = nullptr;
  void (*zero)(const ZeroArgs&) = nullptr;
  void (*scale)(const ScaleArgs&) = nullptr;
  void (*random_normal)(const RandomNormalArgs&) = nullptr;
};

}  // namespace sextant

// What can be priced, measured and launched: a closed variant. A graph has 1e5 ops but only some dozens of
// distinct works; each is priced once. Every extent is what ONE rank does (already divided by TP, CP, ...).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "core/base/dtype.hpp"
#include "core/base/units.hpp"
#include "core/cluster/group_shape.hpp"
#include "core/model/model_spec.hpp"

namespace sextant {

// The launch units of a decoder, cut where collectives come in:
//   embedding  lookup of the local vocabulary slice
//   norm       residual add of the pending branch (if any) and RMSNorm, on the local token slice (tokens / tp
//              under SP); backward: norm gradient plus the residual's own
//   qkv        Q, K, V projections and RoPE             | between qkv and attention: K/V gathered over cp
//   qk_sums    of norms over the heads of several ranks: each row's sum, before it is reduced over tp; forward of the
//              squares of q and k, backward of both times their gradients
//   qk_norm    norms of q and k, behind qkv, and RoPE (backward before it)
//   attention  attention core and output projection     | before qkv and mlp: gathered over tp; behind
//   attention and mlp        gate/up, activation, down                |   mlp: reduced or scattered over tp
//   residual   the add alone, at the end of a chunk that is sent on (forward only)
//   head       final logits of the local vocabulary slice and the loss; its norm is a unit of its own
enum class BlockKind : std::uint8_t {
  embedding,
  norm,
  qkv,
  qk_sums,
  qk_norm,
  attention,
  mlp,
  residual,
  head
};
// backward = both gradients; backward_input and backward_weight are its halves (zero-bubble schedule).
enum class Pass : std::uint8_t { none, forward, recompute, backward, backward_input, backward_weight };

inline constexpr std::array<std::string_view, 9> kBlockKindNames = {
    "embedding", "norm", "qkv", "qk_sums", "qk_norm", "attention", "mlp", "residual", "head"};
inline constexpr std::array<std::string_view, 6> kPassNames = {
    "none", "forward", "recompute", "backward", "backward_input", "backward_weight"};
constexpr std::string_view name(BlockKind k) { return kBlockKindNames[static_cast<std::size_t>(k)]; }
constexpr std::string_view name(Pass p) { return kPassNames[static_cast<std::size_t>(p)]; }

// One launch unit of the model, with the extents of one rank and one micro-batch.
struct BlockWork {
  BlockKind kind = BlockKind::attention;
  Pass pass = Pass::forward;
  int batch = 1;     // sequences
  int seq_q = 0;     // query tokens per sequence on this rank: S / cp
  int seq_k = 0;     // key tokens per sequence: S
  int hidden = 0;    // h, whole
  int heads = 0;     // local query heads
  int kv_heads = 0;  // local key/value heads (replicated when tp > kv_heads)
  int head_dim = 0;
  int ffn = 0;    // local inner width
  int vocab = 0;  // local (padded) vocabulary slice
  int chunk = 0;  // head: tokens whose logits are made at a time; 0: about 2^24 logits (head_chunk)
  int tp = 1;     // TP degree that made them local; with sp the norms see seq_q / tp tokens
  bool sequence_parallel = false;
  int window = 0;  // attention: keys that a query sees; 0: all up to its own
  bool gated = true;
  bool bias = false;          // the block's GEMMs have biases
  bool joined = false;        // qkv, attention, mlp: Q, K and V, and gate and up, are columns of one tensor
  bool normalized = false;    // head: its rows are divided by their length
  bool short_logits = false;  // head: logits in the format of GEMMs, not of sums
  QkNorm qk_norm = QkNorm::none;  // qkv, its norms, and attention
  bool recompute_core =
      false;  // backward first repeats what selective recomputation did not keep: the attention core, or
              // what the stack's policy by operation makes again
  Dtype dtype = Dtype::bf16;  // of the GEMMs
  std::int64_t tokens() const { return static_cast<std::int64_t>(batch) * seq_q; }
  bool operator==(const BlockWork&) const = default;
};
// Whether norms of q and k are over heads of several TP ranks, which add up their sums first.
constexpr bool norms_over_ranks(QkNorm norm, int tp) { return norm == QkNorm::whole && tp > 1; }
inline bool norms_over_ranks(const BlockWork& w) { return norms_over_ranks(w.qk_norm, w.tp); }

enum class CollectiveKind : std::uint8_t { all_reduce, all_gather, reduce_scatter };
inline constexpr std::array<std::string_view, 3> kCollectiveNames = {"all_reduce", "all_gather",
                                                                     "reduce_scatter"};
constexpr std::string_view name(CollectiveKind k) { return kCollectiveNames[static_cast<std::size_t>(k)]; }

struct CollectiveWork {
  CollectiveKind kind = CollectiveKind::all_reduce;
  Bytes bytes;  // the whole vector: nccl-tests "size" (gathered result, or vector to be scattered)
  GroupShape group;
  bool tp_overlapped = false;  // tiled into the neighbouring GEMM by the stack; only a share is exposed
  bool operator==(const CollectiveWork&) const = default;
};

struct TransferWork {  // stage to stage
  Bytes bytes;
  GroupShape link;  // size 2; the two ends
  bool operator==(const TransferWork&) const = default;
};

enum class CopyDirection : std::uint8_t { device_to_host, host_to_device };
inline constexpr std::array<std::string_view, 2> kCopyNames = {"device_to_host", "host_to_device"};
constexpr std::string_view name(CopyDirection d) { return kCopyNames[static_cast<std::size_t>(d)]; }
struct CopyWork {
  Bytes bytes;
  CopyDirection direction = CopyDirection::device_to_host;
  bool operator==(const CopyWork&) const = default;
};

// Passes over flat state. update: Adam over owned elements (and cast to parameters); norm: squared sum of
// gradients; accumulate: add a reduced shard into its accumulator; zero: clear the gradients of a step.
enum class StateKind : std::uint8_t { update, norm, accumulate, zero };
inline constexpr std::array<std::string_view, 4> kStateKindNames = {"update", "norm", "accumulate", "zero"};
constexpr std::string_view name(StateKind k) { return kStateKindNames[static_cast<std::size_t>(k)]; }
struct StateWork {
  StateKind kind = StateKind::update;
  std::int64_t elements = 0;
  Dtype parameter = Dtype::bf16, gradient = Dtype::fp32;
  bool host = false;  // runs on the CPU beside the device
  bool operator==(const StateWork&) const = default;
};

using Work = std::variant<BlockWork, CollectiveWork, TransferWork, CopyWork, StateWork>;

// A readable, stable text form, used as key of profile tables and in logs; the same value always has the same
// key and parse_work_key(work_key(w)) == w (finite numbers). Words in this order, separated by one space:
//
//   KIND PASS DTYPE bN qN kN hN aN kvN dN fN vN tpN [windowN] [cN] [sp] [plain] [core] [bias] [joined]
//       [normalized] [short] [qk_head|qk_whole]
//       KIND: embedding norm qkv qk_sums qk_norm attention mlp residual head;
//       extents that are 0 are left out; plain = MLP without gate; core = recompute_core;
//       qk_head, qk_whole: norms of q and k
//   all_reduce|all_gather|reduce_scatter NB GROUP [tp_overlapped]
//   transfer NB GROUP
//   copy device_to_host|host_to_device NB
//   state update|norm|accumulate|zero nN PARAMETER_DTYPE GRADIENT_DTYPE [host]
//   GROUP: gN nodesN perN [inXGBps/Yus] [outXGBps/Yus] [startXus] [queuedXGBps/Yus]
//       [switched] [in_switch] [in_network] [reduces_inside]
//       ranks, nodes, ranks per node, links inside a node and between nodes; a pair of zeros is left out
//
//   "attention forward bf16 b1 q2048 k2048 h5120 a40 kv40 d128 tp1"
//   "all_gather 20971520B g8 nodes1 per8 in235GBps/2.5us switched"
std::string work_key(const Work&);
Work parse_work_key(std::string_view);  // throws ConfigError

}  // namespace sextant

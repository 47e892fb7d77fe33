// One pipeline stage being lowered: its parameters' buffers, what is in flight, and the operations of each slot.
//   passes.cpp    forward of a chunk, copies to the host      passes_backward.cpp   its backward
//   units.cpp     parameters fetched unit by unit (ZeRO-3, offload)
//   update.cpp    Adam and parameter gather            reduce.cpp  gradient buckets, norms
#pragma once

#include <array>
#include <map>
#include <utility>
#include <vector>

#include "core/plan/pipeline_order.hpp"
#include "planner/lowering/shapes.hpp"

namespace sextant::lowering {

// Buffers that one micro-batch keeps on one chunk between its forward and its backward.
struct SavedLayer {
  BufferId input = kNoBuffer, attention = kNoBuffer, mlp = kNoBuffer;
  BufferId host = kNoBuffer;  // offloaded activations
  OpId kept_by = 0;           // the forward op that completed them
  OpId copied_out = kNoOp, copied_in = kNoOp;
  OpId copied_after = 0;  // the compute op that the copy back is behind
  BufferId for_attention = kNoBuffer, for_qkv = kNoBuffer, for_mlp = kNoBuffer;  // kept for the weight halves
};
struct SavedChunk {
  std::vector<SavedLayer> layers;
  BufferId head = kNoBuffer, logits = kNoBuffer, stats = kNoBuffer, for_head = kNoBuffer;
};

// Where in the model and the schedule an op stands.
enum class NormSite : std::uint8_t { attention, mlp, final };
struct Site {
  int chunk = 0;
  int layer = kNone16;
  std::uint32_t microbatch = 0;
  NormSite norm = NormSite::attention;
};

class StageLowering {
  struct Stamp;

 public:
  // Forms of slots by kind and number of layers, which inner chunks of all stages share in a folded graph.
  using Alike = std::map<std::pair<SlotKind, int>, std::vector<Stamp>>;

  // `alike` is null where chunks are told apart.
  StageLowering(Emitter&, const Context&, const StageWorks&, int stage, std::vector<Slot> order,
                Alike* alike = nullptr);

  const std::vector<Slot>& order() const { return order_; }
  int stage() const { return stage_; }

  // Adam and the parameter gather at the start of the step.
  void begin_step();

  // `arrival` is the transfer that brought `stream` (kNoOp and kNoBuffer at the ends of the model). Returns the last op
  // of the slot; `stream` becomes what the slot sends on.
  OpId forward(const Slot&, OpId arrival, BufferId& stream);
  OpId backward(const Slot&, OpId arrival, BufferId& stream);
  void weight(const Slot&);

  // Tied embeddings on two stages: what the exchange must wait for on another lane, and what it exchanges. Whole
  // gradients, before they are reduced; with a ring the owned slices, once all micro-batches are accumulated.
  OpId tied_ready() const { return tied_ready_; }
  BufferId tied_buffer() const;
  std::int64_t tied_elements() const;
  void reduce_tied(OpId exchanged);

  // The sum of all stages' squared gradient norms, which ends the step.
  void norm_reduce(const std::vector<StageLowering>& all);

 private:
  struct Fetch {          // one visit of a unit
    OpId wait = kNoOp;    // what its first reader waits for
    OpId gather = kNoOp;  // after it the staged copy is free
    OpId last_reader = kNoOp;
  };

  int model_chunk(const Slot& slot) const { return slot.chunk * context_.plan.pp + stage_; }
  bool last_chunk(int chunk) const { return chunk == context_.n_chunks() - 1; }
  LayerRange range(int chunk) const { return context_.ranges[static_cast<std::size_t>(chunk)]; }
  bool recomputed(int layer_in_chunk) const;
  bool offloaded(int layer_in_chunk) const { return layer_in_chunk < context_.plan.activation_offload; }
  SavedChunk& saved(const Slot&);
  LaneId lane(LaneKind kind) const { return Emitter::lane(stage_, kind); }
  BufferId temporary(std::int64_t bytes) { return emitter_.buffer(BufferKind::workspace, stage_, bytes); }

  // stamp.cpp: a slot that differs from an earlier one of its kind in its micro-batch alone is copied.
  struct Turns {  // how often each ring has turned, and the units visited and fetched so far
    std::size_t regather = 0, gradient = 0, copy = 0, visit = 0, fetch = 0;
  };
  struct Forward {  // of one micro-batch on one chunk
    OpId first = kNoOp, last = kNoOp;
    int stamp = -1;  // its form; -1 one of its own
  };
  struct Entry {  // what a slot finds: all that it may wait for, and what of it is certain already
    Turns turns;
    Forward forward;        // its own micro-batch's
    std::vector<OpId> ops;  // kNoOp where there is none
    std::vector<std::uint64_t>
        told;  // by op: kind of this stage's lane, or kNoLane, and the kinds that are behind it
  };
  struct Stamp {
    Entry entry;
    std::vector<std::uint32_t> order;  // of entry.ops by lane and age
    std::array<OpId, 2> waits_for_forward{kNoOp, kNoOp};
    Emitter::Range ops;
    OpId result = kNoOp;
    std::uint32_t microbatch = 0;
    int stage = 0;
    Turns turned;                                      // while it ran
    std::vector<OpId> after;                           // what it leaves in the rings
    std::vector<std::pair<std::size_t, OpId>> waited;  // changes of Emitter::behind
    std::vector<std::pair<OpId, OpId>> kept;           // of a forward, by layer: kept_by, copied_out
  };
  Turns turns() const { return {next_regather_, next_ring_slot_, next_place_, next_visit_, next_fetch_}; }
  template <class Visit>
  void each_waited(SlotKind, const Turns&, std::size_t first_unit, std::size_t last_unit, const Visit&);
  Forward& forward_of(const Slot& slot) {
    return forwards_[slot.chunk * static_cast<std::size_t>(context_.microbatches) + slot.microbatch];
  }
  bool tells_apart() const { return saved_.size() != static_cast<std::size_t>(context_.plan.vp); }
  std::size_t unit_ring_size() const { return visits_.empty() ? 0 : context_.unit_ring_count(); }
  std::vector<Stamp>& stamps_of(SlotKind, const Slot&);
  static std::vector<LaneKind> lanes_of_slots(const Context&);  // which may have operations
  bool repeatable(const Slot&) const;
  void enter(const Slot&, OpId arrival, Entry&);
  bool matches(const Stamp&, const Entry&) const;
  std::array<OpId, 2> waits_for_forward() const;
  template <class Known>
  bool remember(Stamp&, const Slot&, const Known&);
  OpId repeat(const Stamp&, const Entry&, const Slot&);
  void recall(const Slot&);
  template <class Emit>
  OpId emit_or_repeat(const Slot&, OpId arrival, const Emit&);
  OpId forward_slot(const Slot&, OpId arrival, BufferId& stream);
  OpId backward_slot(const Slot&, OpId arrival, BufferId& stream);
  void weight_slot(const Slot&);

  // passes.cpp
  Op op_at(const Site&, OpRole, Pass, WorkId, LaneId) const;
  OpId block(const Site&, BlockKind, Pass);
  struct Range {
    BufferId buffer = kNoBuffer;
    OperandUse use = OperandUse::stream;
  };
  OpId tp(const Site&, OpRole, Pass, WorkId, Range from, Range to);
  BufferId enter_tp(const Site&, Pass, Range local);       // gathered under SP, the buffer itself otherwise
  BufferId leave_tp(const Site&, Pass, BufferId partial);  // scattered under SP, reduced in place otherwise
  void norm_before(const Site&, Pass, BufferId kept, BufferId stream, BufferId branch);
  OpId norm_after(const Site&, Pass, BufferId kept, BufferId stream, BufferId branch);
  OpId gemm_forward(const Site&, BlockKind, Pass, BufferId kept, BufferId stream, BufferId inside);
  void qk_norm_forward(const Site&, Pass, BufferId kept);
  void qk_norm_backward(const Site&, std::initializer_list<Range> gradients, BufferId saved);
  Range branch_gradient(const Site&, BufferId saved, BufferId stream);
  BufferId layer_forward(const Site&, Pass, SavedLayer&, BufferId stream, BufferId branch, BufferId input);
  void layer_backward(const Site&, SavedLayer&, BufferId stream);
  OpId gemm_backward(const Site&, BlockKind, std::initializer_list<Range> gradients, BufferId saved,
                     BufferId stream, OpId ahead, BufferId* kept);
  void mlp_backward(Site, SavedLayer&, BufferId stream);
  void attention_backward(Site, SavedLayer&, BufferId stream);
  OpId ring_forward(const Site&, Pass, BufferId kv);
  OpId ring_backward(const Site&, BufferId kept, Range dy, BufferId kv, BufferId dkv);
  OpId regather(const Site&, const SavedLayer&, BufferId saved_input);
  void regather_read(OpId reader);
  struct RingedLayer {
    BufferId attention = kNoBuffer, mlp = kNoBuffer;
    OpId reader = kNoOp;  // the op after which the place is free
  };
  RingedLayer& next_place();
  RingedLayer* place_saved(int layer_in_chunk, SavedLayer&);
  BufferId embedding_forward(const Site&);
  void head_forward(Site, SavedChunk&, BufferId stream, BufferId branch);
  OpId copy_out(const Site&, SavedLayer&, OpId after);
  void copy_in(const Site&, SavedLayer&);

  // units.cpp and reduce.cpp
  std::pair<int, int> parameters_of(const Site&, BlockKind) const;  // [first, last) in the layout
  void place_blocks();
  void wait_parameters(const Site&, BlockKind);      // before an op
  void read_parameters(const Site&, BlockKind);      // after it
  void wait_gradients(const Site&, BlockKind);       // before an op: its ring slot must be free
  void add_gradients(const Site&, BlockKind, OpId);  // after it; starts the reductions that become possible
  void plan_visits();
  int norm_bucket() const { return layout_.parameters[static_cast<std::size_t>(final_norm_)].bucket; }
  int head_bucket() const {  // a tied head on the embedding's stage is the embedding
    return layout_.parameters[static_cast<std::size_t>(head_ >= 0 ? head_ : embedding_)].bucket;
  }
  bool fetches_modules() const { return context_.ring_parameters() && context_.stack.rules.fetch_modules; }
  void visit(int bucket);
  void visit_layer(int layer);
  void visit_module(const Site&, BlockKind);  // of the layer, before a block that reads it
  void leave(OpId last_reader) {
    if (!visits_.empty()) visits_[next_visit_ - 1].last_reader = emitter_.hold(last_reader);
  }
  void fetch(std::size_t visit_index);
  struct Reduction {  // of a bucket, as far as it has been emitted
    BufferId gradient = kNoBuffer;
    Op op;
    OpId wait = kNoOp, done = kNoOp;  // what the next op waits for; the newest
  };
  void emit_reduction(Reduction&, OpRole, WorkId);
  std::int64_t range_of_gradient(std::int64_t elements) const;
  void sum_norms(int bucket, Reduction&);
  void accumulate(int bucket, Reduction&);
  void reduce_bucket(int bucket, OpId ready, std::uint32_t microbatch, bool last);  // of the step
  void finish_bucket(int bucket, OpId ready);
  OpId sum_on_host(int bucket, OpId ready, std::uint32_t microbatch, BufferId reduced);
  OpId join_head();  // adds what the head has summed to the embedding's gradient
  bool overlaps_reduction() const {
    return overlaps_grad_reduce(context_.plan, context_.stack.rules) && context_.plan.replicas() > 1;
  }
  Op clearing(std::int64_t elements);
  void clear_padding(int bucket, const Site&);
  void write_padding(int bucket, BufferId to);
  void clear_gradients();
  void write_gradient(std::size_t parameter, bool of_head);
  std::int64_t padding(int bucket) const;  // elements between and behind its parameters
  void find_parameters();
  void number_works();
  void make_buffers();
  void make_state(std::size_t bucket);
  void make_unit_ring(std::int64_t largest);
  void make_gradient_ring(std::int64_t largest);
  void gather_again();
  OpId gather_whole(int bucket, OpId behind, OpId behind_host);
  void update(int first, int last);  // one op over buckets [first, last), and its part on the host
  Op update_op(int first, int last, std::int64_t elements, LaneKind where);
  void update_on_device(int first, int last, std::int64_t elements);
  void update_on_host(int first, int last, std::int64_t elements);
  std::int64_t bytes_of_gradient(std::int64_t elements) const;
  std::int64_t on_host(std::int64_t elements) const;
  const Bucket& bucket(int b) const { return layout_.buckets[static_cast<std::size_t>(b)]; }
  int contributions(int b) const { return static_cast<int>(bucket(b).count) + (b == shared_bucket_ ? 1 : 0); }

  Emitter& emitter_;
  const Context& context_;
  const StageWorks& works_;
  int stage_;
  std::vector<Slot> order_;
  ParameterLayout layout_;
  std::vector<SavedChunk>
      saved_;  // [slot.chunk * microbatches + microbatch]; one a chunk when nothing tells them apart
  std::vector<Forward> forwards_;                   // [slot.chunk * microbatches + microbatch]
  std::vector<std::vector<Stamp>> own_stamps_;      // [slot kind * vp + slot.chunk]
  std::vector<std::vector<Stamp>*> shared_stamps_;  // the same of `alike_`, once looked up
  Alike* alike_;
  std::vector<LaneKind> lanes_of_slots_;
  Entry entry_;  // room for the slot being entered

  std::vector<int> place_of_layer_;  // by model layer: index of its first parameter
  static constexpr std::size_t kNormMlpPart = kBlockKindNames.size(), kNormAttentionPart = kNormMlpPart + 1;
  std::array<std::pair<int, int>, kNormAttentionPart + 1>
      in_layer_{};  // by BlockKind, and the two norms: [first, last) of a layer's
  int embedding_ = -1, final_norm_ = -1, head_ = -1;
  bool head_apart_ = false;  // a tied head that sums its gradient in a place of its own
  BufferId head_gradient_ = kNoBuffer;
  // By bucket. `shard_` is the resting place of a sharded or offloaded parameter slice.
  std::vector<BufferId> parameter_, gradient_, accumulator_, optimizer_, host_optimizer_, host_gradient_,
      shard_;
  std::vector<WorkId> gather_work_, reduce_work_, copy_work_;
  std::vector<OpId> gathered_;  // by bucket: gather that its first reader has yet to wait for
  std::vector<int> remaining_;  // by bucket: gradients that are still to come before it is reduced

  // Parameters fetched unit by unit: every visit of the step in order, through a ring of unit buffers.
  std::vector<int> visit_bucket_;
  std::vector<Fetch> visits_;
  std::size_t next_fetch_ = 0, next_visit_ = 0;
  int module_ = -1;  // bucket of the module visited last in this slot
  std::vector<BufferId> unit_ring_, staging_;
  // Gradients reduced after every micro-batch go through a ring of at most two buffers, those of `shared_bucket_` through a
  // third.
  static constexpr int kSharedSlot = 2;
  std::array<BufferId, 3> gradient_ring_{kNoBuffer, kNoBuffer, kNoBuffer};
  std::array<OpId, 3> ring_reduced_{kNoOp, kNoOp, kNoOp};
  std::vector<int> ring_slot_;     // by bucket: -1 while it holds none
  std::vector<bool> accumulated_;  // by bucket: its accumulator has been written in this step
  std::vector<bool> begun_;        // by parameter: its resident gradient has been written in this step
  bool head_begun_ = false;        // that of a tied head apart
  BufferId landing_ = kNoBuffer;   // on the host: gradients to be added there
  std::size_t next_ring_slot_ = 0;
  // Inputs gathered again for weight gradients under SP, in two buffers by turns.
  std::array<BufferId, 2> regathered_{kNoBuffer, kNoBuffer};
  std::array<OpId, 2> regather_reader_{kNoOp, kNoOp};
  std::size_t next_regather_ = 0;
  // Layers on their way to the host or back: a ring of offload_horizon + 1.
  std::vector<RingedLayer> layer_ring_;
  std::size_t next_place_ = 0;
  OpId copied_back_ = kNoOp;  // the newest copy out whose layer has come back: compute is behind it

  OpId last_ = kNoOp;                            // newest op on the compute lane
  OpId updated_ = kNoOp, host_updated_ = kNoOp;  // what the first gather or fetch must wait for
  bool norm_overlaps_ = false;                   // the partials run beside compute
  OpId norm_partial_ = kNoOp, tied_ready_ = kNoOp;
  BufferId norm_buffer_ = kNoBuffer, norm_total_ = kNoBuffer, update_buffer_ = kNoBuffer;
  int tied_bucket_ = -1;    // the stage's copy of a tied embedding that another stage has as well
  int shared_bucket_ = -1;  // with a ring: an embedding that is this stage's head, too
};

}  // namespace sextant::lowering

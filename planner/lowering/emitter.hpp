// Appends operations, dependencies, buffers and operands to a graph under construction. Knows the graph's form and
// nothing of training.
//
// Folding: an op that waits for nothing but its lane joins the lane's newest op and shares its id, unless somebody waits
// for that one, or may: whoever keeps an id for later says so by hold().
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <vector>

#include "planner/lowering/folded_graph.hpp"

namespace sextant::lowering {

inline constexpr OpId kNoOp = std::numeric_limits<OpId>::max();
inline constexpr BufferId kNoBuffer = std::numeric_limits<BufferId>::max();

class Emitter {
 public:
  Emitter(ExecutionGraph& graph, bool operands)
      : Emitter(&graph, nullptr, operands, graph.works, graph.deps, graph.plan.pp) {}
  // Folds.
  Emitter(FoldedGraph& graph, int pp)
      : Emitter(nullptr, &graph, kWithoutOperands, graph.works, graph.deps, pp) {}

  void reserve(std::size_t ops, std::size_t deps) {
    folded_ ? folded_->ops.reserve(ops) : whole_->ops.reserve(ops);
    deps_.reserve(deps);
  }

  bool operands() const { return operands_; }
  static LaneId lane(int stage, LaneKind kind) {
    return static_cast<LaneId>(stage * kLaneKinds + static_cast<int>(kind));
  }

  // Equal works share an id. The newest of a place by size is mostly the one that is asked for; there are only some dozens
  // of distinct ones, so that otherwise a linear look-up serves.
  WorkId work(const Work& work) {
    const std::int64_t size = size_of(work);
    WorkId& newest = newest_[static_cast<std::uint64_t>(size) * 0x9E3779B97F4A7C15ull >> 58];
    if (newest < sizes_.size() && sizes_[newest] == size && works_[newest] == work) return newest;
    std::size_t id = 0;
    while (id < sizes_.size() && !(sizes_[id] == size && works_[id] == work)) ++id;
    if (id == sizes_.size()) {
      works_.push_back(work);
      sizes_.push_back(size);
    }
    return newest = static_cast<WorkId>(id);
  }

  struct Lasting {
    bool resident = false;  // all step long
    bool scratch = false;   // for the kernels, nothing reads it later
  };
  BufferId buffer(BufferKind kind, int stage, std::int64_t bytes) { return buffer(kind, stage, bytes, {}); }
  BufferId buffer(BufferKind kind, int stage, std::int64_t bytes, Lasting lasting) {
    if (!operands_ || bytes <= 0) return kNoBuffer;
    Buffer buffer;
    buffer.kind = kind;
    buffer.stage = static_cast<std::uint16_t>(stage);
    buffer.bytes = bytes;
    buffer.resident = lasting.resident;
    buffer.scratch = lasting.scratch;
    whole_->buffers.push_back(buffer);
    return static_cast<BufferId>(whole_->buffers.size() - 1);
  }
  // Of a bucket, held all step long.
  BufferId state(BufferKind kind, int stage, std::int64_t bytes, OperandUse use, std::size_t bucket) {
    const BufferId id = buffer(kind, stage, bytes, {.resident = true});
    if (id == kNoBuffer) return id;
    whole_->buffers[id].use = use;
    whole_->buffers[id].bucket = static_cast<std::uint16_t>(bucket);
    return id;
  }

  // The op's dependencies are `deps` (kNoOp entries are skipped) and, on a compute lane, everything queued for its stage
  // by `after`; of those, only what its lane is not behind already.
  OpId emit(const Op& op, std::initializer_list<OpId> deps = {}) {
    const std::size_t begin = deps_.size();
    for (OpId dep : deps)
      if (dep != kNoOp) wait(op, begin, dep);
    if (auto& queued = queued_[op.stage]; !queued.empty() && kind_of(op) == LaneKind::compute) {
      for (const OpId dep : queued) wait(op, begin, dep);
      queued.clear();
    }
    const auto count = static_cast<std::uint16_t>(deps_.size() - begin);
    if (folded_) {
      if (joins(op, count)) return open_[op.lanes[0]];
      folded_->ops.push_back({op.work, op.lanes, count});
    } else {
      Op& added = whole_->ops.emplace_back(op);
      added.dep_begin = static_cast<std::uint32_t>(begin);
      added.dep_count = count;
      added.operand_begin = static_cast<std::uint32_t>(whole_->operands.size());
    }
    return size() - 1;
  }
  // Nothing joins the op any more: what waits for it later means its end as it is now.
  OpId hold(OpId op) {
    if (!folded_ || op == kNoOp) return op;
    OpId& open = open_[folded_->ops[op].lanes[0]];
    if (open == op) open = kNoOp;
    return op;
  }
  // The same for all that the stage has put on its lanes.
  void hold_all(int stage) { std::fill_n(open_.begin() + lane(stage, LaneKind::compute), kLaneKinds, kNoOp); }

  // Queues a dependency for the next op on the stage's compute lane.
  void after(int stage, OpId dep) {
    if (dep != kNoOp) queued_[static_cast<std::size_t>(stage)].push_back(dep);
  }

  bool folds() const { return folded_; }
  OpId size() const { return static_cast<OpId>(folded_ ? folded_->ops.size() : whole_->ops.size()); }
  // What the operations so far wait for, in their order.
  std::span<const OpId> deps() const { return deps_; }

  // Nothing is queued for the stage.
  bool idle(int stage) const { return queued_[static_cast<std::size_t>(stage)].empty(); }

  // The newest op of each kind of lane that each of the stage's lanes is behind: [kind * kLaneKinds + kind of the other].
  std::span<OpId> behind(int stage) {
    return std::span(behind_).subspan(std::size_t{lane(stage, LaneKind::compute)} * kLaneKinds,
                                      std::size_t{kLaneKinds} * kLaneKinds);
  }
  // The op's lane on that stage.
  LaneId lane_at(int stage, OpId op) const {
    for (const LaneId on : folded_ ? folded_->ops[op].lanes : whole_->ops[op].lanes)
      if (on != kNoLane && on / kLaneKinds == stage) return on;
    return kNoLane;
  }
  // The kinds of the stage's lanes, as bits and of `kinds` alone, that are behind the op, which is on lane `on`.
  std::uint32_t past(int stage, OpId op, LaneId on, std::span<const LaneKind> kinds) {
    if (on == kNoLane) return 0;
    std::uint32_t bits = 0;
    const OpId* newest = behind(stage).data() + on % kLaneKinds;
    for (const LaneKind kind : kinds) {
      const OpId waited = newest[static_cast<std::size_t>(kind) * kLaneKinds];
      bits |= static_cast<std::uint32_t>(waited != kNoOp && op <= waited) << static_cast<unsigned>(kind);
    }
    return bits;
  }

  // Repeats ops [first, last), which wait for [deps_first, deps_last) of the deps, of one stage and micro-batch for another.
  // Dependencies inside the range move with it; `outside` says what becomes of the others.
  struct Place {
    int stage = 0;
    std::uint32_t microbatch = 0;
  };
  struct Range {
    OpId first = kNoOp, last = kNoOp;
    std::size_t deps_first = 0, deps_last = 0;
  };
  template <class Outside>
  void repeat(const Range& range, Place from, Place to, const Outside& outside) {
    const auto dep_shift = static_cast<std::uint32_t>(deps_.size() - range.deps_first);
    const auto lanes = static_cast<LaneId>((to.stage - from.stage) * kLaneKinds);
    const OpId shift = size() - range.first;
    const std::size_t deps = deps_.size(), ops = size();
    deps_.resize(deps + (range.deps_last - range.deps_first));
    const OpId* waited = deps_.data() + range.deps_first;
    for (OpId *dep = deps_.data() + deps, *end = deps_.data() + deps_.size(); dep != end; ++dep, ++waited)
      *dep = *waited >= range.first ? *waited + shift : outside(*waited);
    const auto copy = [&](auto& list, const auto& move) {
      list.resize(ops + (range.last - range.first));
      const auto* source = list.data() + range.first;
      for (auto *op = list.data() + ops, *end = list.data() + list.size(); op != end; ++op, ++source) {
        *op = *source;
        op->lanes[0] = static_cast<LaneId>(op->lanes[0] + lanes);
        move(*op);
      }
    };
    if (folded_) return copy(folded_->ops, [](TimedOp&) {});
    copy(whole_->ops, [&](Op& op) {
      if (op.microbatch == from.microbatch) op.microbatch = static_cast<std::uint16_t>(to.microbatch);
      op.stage = static_cast<std::uint16_t>(to.stage);
      op.dep_begin += dep_shift;
    });
  }

  // Operands of the op emitted last.
  void read(BufferId buffer, OperandUse use) { touch(buffer, use, false); }
  void write(BufferId buffer, OperandUse use) { touch(buffer, use, true); }
  void read(BufferId buffer, OperandUse use, std::int64_t begin, std::int64_t end) {
    touch(buffer, use, false, begin, end);
  }
  void write(BufferId buffer, OperandUse use, std::int64_t begin, std::int64_t end) {
    touch(buffer, use, true, begin, end);
  }

 private:
  static constexpr bool kWithoutOperands = false;
  // What works mostly differ in.
  static std::int64_t size_of(const Work& work) {
    if (const auto* collective = std::get_if<CollectiveWork>(&work)) return collective->bytes.v;
    if (const auto* state = std::get_if<StateWork>(&work)) return state->elements;
    if (const auto* block = std::get_if<BlockWork>(&work)) return static_cast<std::int64_t>(block->kind);
    return 0;
  }
  static LaneKind kind_of(const Op& op) { return static_cast<LaneKind>(op.lanes[0] % kLaneKinds); }
  // Whether a new op becomes part of its lane's newest; otherwise it is what others may join.
  bool joins(const Op& op, std::uint16_t dep_count) {
    OpId& open = open_[op.lanes[0]];
    const LaneKind kind = kind_of(op);
    if (op.lanes[1] == kNoLane && (kind == LaneKind::compute || kind == LaneKind::grad_reduce)) {
      if (open != kNoOp && dep_count == 0)
        if (const WorkId both = run(folded_->ops[open].work, op.work); both != 0) {
          folded_->ops[open].work = both;
          return true;
        }
      open = size();
      return false;
    }
    open = kNoOp;
    if (op.lanes[1] != kNoLane) open_[op.lanes[1]] = kNoOp;
    return false;
  }
  // The run of `before` and then `last`; 0 when there is no number left for it.
  WorkId run(WorkId before, WorkId last) {
    auto& followers = before < kFirstRun ? after_work_ : after_run_;
    const std::size_t place = before % kFirstRun;
    if (followers.size() <= place) followers.resize(place + 1);
    for (const Follower& known : followers[place])
      if (known.last == last) return known.both;
    if (folded_->runs.size() + 1 >= kFirstRun) return 0;
    const auto id = static_cast<WorkId>(kFirstRun + folded_->runs.size());
    folded_->runs.push_back({before, last});
    followers[place].push_back({last, id});
    return id;
  }
  void wait(const Op& op, std::size_t dep_begin, OpId dep) {
    hold(dep);
    const LaneId from = lane_at(op.stage, dep);
    if (from == kNoLane) return deps_.push_back(dep);
    if (from == op.lanes[0]) return;
    OpId& newest = behind_[std::size_t{op.lanes[0]} * kLaneKinds + from % kLaneKinds];
    if (newest != kNoOp && dep <= newest) return;
    // A dependency of this very op that the new one covers gives way to it.
    const auto mine = deps_.begin() + static_cast<std::ptrdiff_t>(dep_begin);
    const auto covered = newest == kNoOp ? deps_.end() : std::find(mine, deps_.end(), newest);
    if (covered == deps_.end())
      deps_.push_back(dep);
    else
      *covered = dep;
    newest = dep;
  }
  void touch(BufferId buffer, OperandUse use, bool write) {
    if (operands_ && buffer != kNoBuffer) touch(buffer, use, write, 0, whole_->buffers[buffer].bytes);
  }
  void touch(BufferId buffer, OperandUse use, bool write, std::int64_t begin, std::int64_t end) {
    if (!operands_ || buffer == kNoBuffer || begin >= end) return;
    whole_->operands.push_back({buffer, use, write, begin, end});
    ++whole_->ops.back().operand_count;
  }

  Emitter(ExecutionGraph* whole, FoldedGraph* folded, bool operands, std::vector<Work>& works,
          std::vector<OpId>& deps, int pp)
      : whole_(whole),
        folded_(folded),
        operands_(operands),
        works_(works),
        deps_(deps),
        queued_(static_cast<std::size_t>(pp)),
        behind_(queued_.size() * kLaneKinds * kLaneKinds, kNoOp),
        open_(queued_.size() * kLaneKinds, kNoOp) {}

  ExecutionGraph* whole_;  // the one of the two that is built
  FoldedGraph* folded_;
  bool operands_;
  std::vector<Work>& works_;
  std::vector<OpId>& deps_;
  std::vector<std::int64_t> sizes_;  // by work
  std::array<WorkId, 64> newest_{};
  std::vector<std::vector<OpId>> queued_;  // by stage
  std::vector<OpId>
      behind_;  // [lane][kind of another lane of its stage]: newest op of that one it has waited for
  std::vector<OpId> open_;  // by lane: the op that the next one may join
  struct Follower {
    WorkId last = 0, both = 0;
  };
  std::vector<std::vector<Follower>> after_work_,
      after_run_;  // runs by what they are without their last work
};

}  // namespace sextant::lowering

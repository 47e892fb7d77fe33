#include "planner/lowering/lower.hpp"

#include <utility>
#include <vector>

#include "core/base/error.hpp"
#include "planner/lowering/stage.hpp"

namespace sextant {
namespace {

using namespace lowering;

// Emits the slots in the merged order of the schedule, with the transfers between them.
class Pipeline {
 public:
  Pipeline(Emitter& e, const Context& c, const std::vector<StageWorks>& works,
           std::vector<StageLowering>& stages, const std::vector<StageSlot>& order)
      : emitter_(e),
        context_(c),
        works_(works),
        stages_(stages),
        order_(order),
        activations_(static_cast<std::size_t>(c.n_chunks() * c.microbatches)),
        gradients_(activations_.size()) {}

  void run() {
    for (const StageSlot& entry : order_) emit(stages_[static_cast<std::size_t>(entry.stage)], entry.slot);
  }

 private:
  struct Arrival {
    OpId op = kNoOp;
    BufferId buffer = kNoBuffer;
  };
  Arrival& at(std::vector<Arrival>& list, int chunk, std::uint32_t microbatch) {
    return list[static_cast<std::size_t>(chunk * context_.microbatches) + microbatch];
  }

  void emit(StageLowering& stage, const Slot& slot) {
    const int chunk = slot.chunk * context_.plan.pp + stage.stage();
    if (slot.kind == SlotKind::weight) return stage.weight(slot);
    const bool forward = slot.kind == SlotKind::forward;
    const bool starts = forward ? chunk == 0 : chunk == context_.n_chunks() - 1;
    const bool ends = forward ? chunk == context_.n_chunks() - 1 : chunk == 0;
    auto& list = forward ? activations_ : gradients_;
    Arrival arrival;
    if (!starts) arrival = at(list, chunk, slot.microbatch);
    BufferId stream = arrival.buffer;
    const OpId last =
        forward ? stage.forward(slot, arrival.op, stream) : stage.backward(slot, arrival.op, stream);
    if (!ends)
      at(list, forward ? chunk + 1 : chunk - 1, slot.microbatch) =
          send(stage, slot, chunk, forward, last, stream);
  }

  Arrival send(const StageLowering& stage, const Slot& slot, int chunk, bool forward, OpId last,
               BufferId stream) {
    const int to = context_.stage_of(forward ? chunk + 1 : chunk + context_.plan.pp * context_.plan.vp - 1);
    const int link_stage = forward ? stage.stage() : to;  // gradients travel the same link backwards
    const StackRules& rules = context_.stack.rules;
    const bool overlaps = context_.plan.schedule == PipelineSchedule::interleaved
                              ? rules.p2p_overlaps_compute_interleaved
                              : rules.p2p_overlaps_compute_1f1b;
    Op op;
    op.role = OpRole::send;
    op.pass = forward ? Pass::forward : Pass::backward;
    op.stage = static_cast<std::uint16_t>(stage.stage());
    op.chunk = static_cast<std::uint16_t>(chunk);
    op.microbatch = static_cast<std::uint16_t>(slot.microbatch);
    op.work = works_[context_.links.index(link_stage)].send;
    op.lanes[0] = Emitter::lane(
        stage.stage(), overlaps ? (forward ? LaneKind::send_next : LaneKind::send_prev) : LaneKind::compute);
    op.lanes[1] = Emitter::lane(to, forward ? LaneKind::recv_prev : LaneKind::recv_next);
    Arrival arrival{emitter_.emit(op, {overlaps ? last : kNoOp}), kNoBuffer};
    arrival.buffer = emitter_.buffer(BufferKind::communication, to, context_.activation.stream);
    emitter_.read(stream, OperandUse::activation);
    emitter_.write(arrival.buffer, OperandUse::activation);
    return arrival;
  }

  Emitter& emitter_;
  const Context& context_;
  const std::vector<StageWorks>& works_;
  std::vector<StageLowering>& stages_;
  const std::vector<StageSlot>& order_;
  std::vector<Arrival> activations_, gradients_;  // by receiving chunk and micro-batch
};

// The two copies of a tied embedding add their gradients; then both stages reduce (unless that is done) and update their
// copy.
void reduce_tied_embedding(Emitter& e, const Context& c, std::vector<StageLowering>& stages) {
  if (!c.model.tied_embeddings || c.plan.pp == 1) return;
  StageLowering &first = stages.front(), &last = stages.back();
  const bool overlaps = overlaps_grad_reduce(c.plan, c.stack.rules) && c.plan.replicas() > 1;
  const LaneKind kind = overlaps ? LaneKind::grad_reduce : LaneKind::compute;
  Op op;
  op.role = OpRole::tied_reduce;
  op.stage = 0;
  op.work =
      e.work(CollectiveWork{CollectiveKind::all_reduce,
                            Bytes(first.tied_elements() * size_bytes(c.training.gradient)), c.links.tied});
  op.lanes = {Emitter::lane(0, kind), Emitter::lane(c.plan.pp - 1, kind)};
  // The first stage's embedding gradient stands behind the head's, unless the head's weight half comes later.
  const OpId done = e.emit(op, {first.tied_ready(), c.split_backward() ? last.tied_ready() : kNoOp});
  for (StageLowering* stage : {&first, &last}) {
    e.read(stage->tied_buffer(), OperandUse::gradient);
    e.write(stage->tied_buffer(), OperandUse::gradient);
  }
  first.reduce_tied(done);
  last.reduce_tied(done);
}

void lower_to(Emitter& e, const Context& c) {
  SEXTANT_CHECK(c.microbatches > 0, "the batch must divide into micro-batches");
  const auto slots = static_cast<std::size_t>(c.microbatches) * static_cast<std::size_t>(c.model.n_layers);
  e.reserve(slots * 24 + 4096, slots * 4 + 4096);
  const std::vector<StageWorks> works = stage_works(e, c);
  // Stages with links of their own, or rings that turn across slots, differ in more than their number.
  StageLowering::Alike alike;
  const bool shares = e.folds() && works.size() == 1 && !c.ring_parameters() && !c.ring_gradients();
  std::vector<StageLowering> stages;
  stages.reserve(static_cast<std::size_t>(c.plan.pp));
  std::vector<std::vector<Slot>> orders =
      pipeline_orders(c.plan.schedule, c.plan.pp, c.plan.vp, c.microbatches);
  const std::vector<StageSlot> order = merged_order(orders, c.plan.vp, c.microbatches);
  for (int s = 0; s < c.plan.pp; ++s)
    stages.emplace_back(e, c, works[c.links.index(s)], s, std::move(orders[static_cast<std::size_t>(s)]),
                        shares ? &alike : nullptr);
  for (StageLowering& stage : stages) stage.begin_step();
  Pipeline(e, c, works, stages, order).run();
  reduce_tied_embedding(e, c, stages);
  for (StageLowering& stage : stages) stage.norm_reduce(stages);
}

}  // namespace

ExecutionGraph lower(const ModelSpec& model, const TrainingSpec& training, const PlanLinks& links,
                     const ParallelPlan& plan, const StackSpec& stack, const LowerOptions& options) {
  const Context c = make_context(model, training, links, plan, stack);
  ExecutionGraph graph;
  graph.model = model;
  graph.training = training;
  graph.plan = plan;
  for (int s = 0; s < plan.pp; ++s)
    for (int k = 0; k < kLaneKinds; ++k)
      graph.lanes.push_back({static_cast<std::uint16_t>(s), static_cast<LaneKind>(k)});
  Emitter e(graph, options.operands);
  lower_to(e, c);
  return graph;
}

FoldedGraph lower_folded(const ModelSpec& model, const TrainingSpec& training, const PlanLinks& links,
                         const ParallelPlan& plan, const StackSpec& stack) {
  FoldedGraph graph;
  lower_folded(model, training, links, plan, stack, graph);
  return graph;
}

void lower_folded(const ModelSpec& model, const TrainingSpec& training, const PlanLinks& links,
                  const ParallelPlan& plan, const StackSpec& stack, FoldedGraph& graph) {
  const Context c = make_context(model, training, links, plan, stack);
  graph.works.clear();
  graph.runs.clear();
  graph.ops.clear();
  graph.deps.clear();
  graph.lanes = static_cast<std::size_t>(plan.pp) * kLaneKinds;
  Emitter e(graph, plan.pp);
  lower_to(e, c);
}

}  // namespace sextant

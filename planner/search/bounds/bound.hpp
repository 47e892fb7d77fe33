// How fast can a layout be at best? Lower bounds of the simulated step, cheap enough to leave most layouts of a space
// unsimulated. Never a second opinion about time: every term is the price of an operation that lower() emits, put where
// the operation cannot run earlier; tests/planner/search/bound_test.cpp holds that over random models, clusters and plans.
//
// What they leave out: waits inside a slot, most interference, contention between lanes.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "core/graph/parameter_layout.hpp"
#include "core/plan/pipeline_order.hpp"
#include "core/plan/plan_links.hpp"
#include "planner/lowering/job.hpp"

namespace sextant {

// Seconds on the compute lane of one micro-batch, by part of the model. Depends on tp, cp, micro-batch, SP, TP overlap,
// kind of recompute, split backward, and the links of tp, cp and the next stage; not on ranks or stages otherwise.
struct LayerTimes {
  double forward = 0, recompute = 0, weight = 0;
  double backward = 0;        // of a layer whose activations were kept
  double backward_again = 0;  // of a recomputed one, without the repeated forward
  double embedding_forward = 0, embedding_backward = 0, residual = 0;
  double head_forward = 0, head_backward = 0, head_weight = 0;
  double head_gemm = 0;  // of head_forward: what follows the final norm
  double send = 0;
  double regather = 0;  // collectives beside a backward layer whose activations were kept (under SP)
  double slowed = 0;    // such a layer is at least that much longer for them, from the second on, when steady
  double copy_out = 0, copy_in = 0;  // of one layer's offloaded activations
  // Parts of forward, recompute and backward (either kind) in which attention is done and its ring is not: other work of
  // the lane may fill them.
  double forward_wait = 0, recompute_wait = 0, backward_wait = 0;

  double layer_total() const { return forward + weight + backward; }
  double recomputed_layer_total() const { return forward + weight + (recompute + backward_again); }
  double layer_wait() const { return forward_wait + backward_wait; }
  double recomputed_layer_wait() const { return forward_wait + backward_wait + recompute_wait; }
};
// Prices of the blocks alone, by kind and pass: what many links share.
struct BlockTimes {
  std::array<std::array<double, 6>, kBlockKindNames.size()>
      by_kind{};  // index: BlockKind, Pass; 0 where the layout has no such op
  double of(BlockKind kind, Pass pass) const {
    return by_kind[static_cast<std::size_t>(kind)][static_cast<std::size_t>(pass)];
  }
  BlockTimes slower(double factor) const;  // all of them that many times as long
};
BlockTimes block_times(const Job&, const ParallelPlan&);
// Prices of what a layer says over its links, and copies to the host.
struct LinkTimes {
  double qk_reduce = 0;
  double tp_gather = 0, tp_leave = 0, loss_gather = 0;  // leave: reduce-scatter under SP, else all-reduce
  double cp_gather = 0, cp_gather_backward = 0, cp_scatter = 0;
  double send = 0;
  double copy_out = 0, copy_in = 0;
};
enum class LinkPart : std::uint8_t { tp, cp, next, copies, all };
LinkTimes link_times(const Job&, const ParallelPlan&, const StageLinks&, LinkPart part = LinkPart::all);
// Of the two; arithmetic alone. Without links: no communication.
LayerTimes layer_times(const ParallelPlan&, const BlockTimes&, const LinkTimes&, const StackSpec&);

// Those of all stages: most stages have equal links.
struct StageLayerTimes {
  std::vector<LayerTimes> distinct;
  std::vector<std::uint16_t> index;  // by stage; empty when all are equal
  bool uneven = false;               // some compute faster than others
  const LayerTimes& of(int stage) const {
    return distinct[index.empty() ? 0 : index[static_cast<std::size_t>(stage)]];
  }
};

// The compute lane's time of each slot of the model's chunks.
struct PipelineTimes {
  int pp = 1, vp = 1, microbatches = 1;
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  bool p2p_overlaps = true;                       // transfers leave the compute lane free
  std::vector<double> forward, backward, weight;  // by model chunk
  // By model chunk: compute of the forward slot and of the backward slot, without waits.
  std::vector<double> busy_forward, busy;
  std::vector<double> layer_forward, layer_backward;  // by model chunk: one layer, the least
  // In the last chunk behind its layers and before their backward; in the first one behind the backward of its layers.
  double head_forward = 0, head_gemm = 0, head_backward = 0, embedding_backward = 0;
  std::vector<double> send;      // by stage: to the next one, and gradients back
  std::vector<double> slowed;    // by model chunk: part of `backward` that is interference
  std::vector<double> regather;  // by model chunk: collectives beside one backward slot
  std::vector<double> copies;    // by stage: busiest copy lane, over the step
  double slows = 0;              // StackKernels::comm_slows_compute
  // Offloaded activations: layer by layer, since a copy waits for a place in the ring.
  struct OffloadedChunk {
    int count = 0, first = 0, last = 0;  // layers; those from `first` to before `last` rest on the host
    double forward = 0, backward = 0, backward_again = 0, copy_out = 0, copy_in = 0;  // of one layer
    double lead_forward = 0, lead_backward = 0;  // embedding before the layers; head before their backward
  };
  std::vector<OffloadedChunk> offloaded;  // by model chunk; empty without
  int ring = 0;                           // layers fetched back that fit the device
};
// `chunks` are the layers of each model chunk. `steady`: nothing but the pipeline holds up a slot (see is_steady), so
// that gathers beside it are known to slow it. `out` is reused.
void pipeline_times(const ParallelPlan&, const std::vector<LayerRange>& chunks, const StackSpec&,
                    int microbatches, const StageLayerTimes& by_stage, bool steady, PipelineTimes& out);
bool is_steady(const ParallelPlan&, const StackRules&);

// What parameters, gradients and optimizer state add to one stage.
struct StateTimes {
  double start = 0;  // the compute lane is taken until here when the step begins
  struct Ready {
    double seconds = 0;
    int layers = 0;     // of the chunk, behind the one whose parameters come last
    bool head = false;  // the head's GEMM alone waits for them
  };
  std::vector<Ready> ready;  // by chunk of the stage: its parameters are all there; empty: at once
  double per_forward = 0, per_backward = 0;      // added to every slot of the stage, spread over its chunks
  double forward_floor = 0, backward_floor = 0;  // a slot is never shorter: units fetched and reduced in turn
  double lane_total = 0;                         // the busiest other lane, over the whole step
  double on_compute = 0;                         // reductions on the compute lane, once
  double held = 0;             // of it, what the compute lane only waits: nothing is slowed then
  double on_compute_last = 0;  // those of them in the stage's last slot
  struct Reduction {
    std::uint16_t chunk = 0;   // of the stage
    std::uint16_t layers = 0;  // backward layers of that slot that come before it
    bool head = false;         // it is the head's, which goes before the layers
    bool embedding = false;    // it is the embedding's, which goes behind them
    double seconds = 0;
    bool is_ready_with(const Reduction& other) const {
      return chunk == other.chunk && layers == other.layers && head == other.head &&
             embedding == other.embedding;
    }
  };
  // Of the last micro-batch, in order of readiness: those beside compute, and all where gradients go to the host.
  std::vector<Reduction> reductions;
  struct Copied {
    double all = 0, last = 0;  // the last bucket of it
  };
  std::vector<Copied> copied;  // to the host, by reduction; empty: nothing
  double last_overlapped = 0;  // the last of those beside compute
  double overlapped_total = 0;
  // What a backward slot of a chunk reduces in every micro-batch, beside it through a ring of two places or on its own lane:
  // the first bucket, and the seconds of all buckets, of all but the last and of all but the last two (negative where there
  // is one).
  struct Ring {
    Reduction first;
    double all = 0, but_one = 0, but_two = 0;
  };
  std::vector<Ring> rings;  // by chunk of the stage; empty: nothing is reduced so
  // Collectives beside compute over the whole step without the last reduction, and the lanes that they take.
  double collectives = 0;
  int collective_lanes = 0;
};
// Those of all stages; neighbours often have the same.
class StageStates {
 public:
  std::size_t size() const { return index_.size(); }
  bool empty() const { return index_.empty(); }
  const StateTimes& operator[](std::size_t stage) const { return distinct_[index_[stage]]; }
  bool is_as_before(std::size_t stage) const { return stage > 0 && index_[stage] == index_[stage - 1]; }
  void add(StateTimes t) {
    index_.push_back(static_cast<std::uint16_t>(distinct_.size()));
    distinct_.push_back(std::move(t));
  }
  void repeat() { index_.push_back(index_.back()); }  // the stage before once more
  void clear() {
    distinct_.clear();
    index_.clear();
  }
  void reserve(std::size_t stages) {
    distinct_.reserve(std::min<std::size_t>(3, stages));
    index_.reserve(stages);
  }
  std::size_t bytes() const {
    std::size_t n = index_.capacity() * sizeof index_[0] + distinct_.capacity() * sizeof distinct_[0];
    for (const StateTimes& t : distinct_)
      n += t.ready.size() * sizeof t.ready[0] + t.reductions.size() * sizeof t.reductions[0] +
           t.copied.size() * sizeof t.copied[0] + t.rings.size() * sizeof t.rings[0];
    return n;
  }

 private:
  std::vector<StateTimes> distinct_;
  std::vector<std::uint16_t> index_;  // by stage
};
// What of a stage's buckets its times depend on, in order of completion in the backward pass. Equal for stages that
// hold as many layers and neither end of the model. Most buckets are as large as another.
struct BucketSize {
  std::int64_t elements = 0, slice = 0;
  std::int64_t norms = 0;  // elements whose gradients are summed over the TP ranks under SP
  bool operator==(const BucketSize&) const = default;
};
struct BucketView {
  std::uint16_t size = 0;  // into StageBuckets::sizes
  ParameterKind first = ParameterKind::embedding, last = first;
  std::uint16_t first_chunk = 0, last_chunk = 0;  // of the stage, of the first and the last parameter
  std::uint16_t before = 0;  // backward layers of the last one's chunk that come before it is done
  std::uint16_t point = 0;   // into StageBuckets::points
  bool operator==(const BucketView&) const = default;
};
struct StageBuckets {
  std::vector<BucketSize> sizes;  // those that differ
  std::vector<BucketView> buckets;
  std::vector<StateTimes::Reduction> points;  // when they are ready, each once; `buckets` decide them
  int shards = 1;
  std::int64_t padded = 0, elements = 0;
  ParameterKind last_used = ParameterKind::embedding;  // of a layer's parameters, by its backward
  int layers = 0;                                      // buckets that begin with one of these
  bool operator==(const StageBuckets& other) const {
    return sizes == other.sizes && buckets == other.buckets && shards == other.shards &&
           padded == other.padded && elements == other.elements;
  }
};
std::vector<StageBuckets> stage_buckets(const Job&, const ParallelPlan&);  // by stage

// Of all buckets of one size.
struct SizeTimes {
  std::int64_t count = 0;
  std::int64_t on_host = 0;  // elements of the slice
  double gather = 0, reduce = 0, norm = 0;
  double update = 0, host_update = 0, host_copy = 0;  // where each bucket is updated apart
  double gradient_copy = 0, host_sum = 0;             // to the host, and added there
};
// Reused between calls.
struct StateScratch {
  std::vector<SizeTimes> by_size;
  std::vector<double> gathers, gathered;  // by bucket
  std::vector<StateTimes::Reduction> reductions;
  std::vector<StateTimes::Copied> copied;
};
// With some `any_share`, a bound of all plans that differ in what share of the update is on the host, if it is one of these.
StageStates state_times(const Job&, const ParallelPlan&, const PlanLinks&, const std::vector<StageBuckets>&,
                        StateScratch&, std::span<const double> any_share = {});

// Time of the all-reduce that ends the step, 0 when the stack does not clip.
double closing_time(const Job&, const PlanLinks&);

// The two copies of a tied embedding add their gradients behind the first stage's last backward, which is the last
// backward of all. 0 where one stage holds both.
double tied_reduction_time(const Job&, const ParallelPlan&, const PlanLinks&);

// One stage whose compute lane begins at `head` at least, and has that much `work`, without what waits for others.
// Collectives may go on for as long as `beyond` behind it.
double alone_bound(const PipelineTimes&, const StateTimes&, int stage, double head, double work,
                   double beyond = 0);

// When what its slot has computed of it at least, and when the forward of a first micro-batch ends at least.
inline double ready_to_reduce(const PipelineTimes& p, std::size_t chunk, const StateTimes::Reduction& r,
                              double start) {
  const double head = chunk + 1 == p.forward.size() && !r.head ? p.head_backward : 0.0;
  return start + head + r.layers * p.layer_backward[chunk] + (r.embedding ? p.embedding_backward : 0.0);
}
double forward_end(const PipelineTimes&, std::size_t chunk, const StateTimes::Ready&);

// Closed form, O(pp): first micro-batch's arrival, the stage's own work, and the way back. `state` may be empty. `closing`
// is what follows it all.
double closed_bound(const PipelineTimes&, const StageStates& state, double closing);

// A slot of merged_order() by the places of what it reads and leaves, which do not depend on times.
inline constexpr std::size_t kSlotKinds = 3;
struct SlotStep {
  std::uint32_t from = 0, to = 0;  // of what arrives: its activation or gradient, and the one that it sends
  std::uint32_t at = 0;            // model chunk * micro-batches + micro-batch
  std::uint16_t of = 0;            // kSlotKinds * model chunk + SlotKind
  bool is_first = false, is_last = false;  // forward of the first micro-batch; backward of the last
};
// The slots of a schedule, each behind what it waits for; of few micro-batches the first and the last. Between two steady slots the
// others of every stage are left out then: a bound counts what they take of the stage and of its ways.
struct SlotSteps {
  std::vector<SlotStep> steps;
  int walked = 0;       // micro-batches that have steps
  int left_out = 0;     // those that have none
  std::size_t cut = 0;  // before which step they would be
};
SlotSteps slot_steps(PipelineSchedule, int pp, int vp, int microbatches);
SlotSteps few_slot_steps(PipelineSchedule, int pp, int vp, int microbatches);  // all, where no part repeats

struct SlotScratch {
  std::vector<double> lane;        // by stage: free again
  std::vector<double> left;        // by stage: compute of the slots to come
  std::vector<double> way;         // to the next stages, to the previous ones, and nowhere: free again
  std::vector<double> arrival;     // by stage: its first slot begins
  std::vector<double> last_busy;   // by stage: end of its last backward, but for its waits
  std::vector<double> last_start;  // by model chunk: of the last micro-batch's backward
  // Reductions of every micro-batch: their lane by stage, without the last of them as well; the lane when the last
  // micro-batch's backward begins, by model chunk.
  std::vector<double> reduced, reduced_but_one, reduced_before;
  std::vector<double> arrived;  // by SlotStep::from
  struct Taken {
    double span = 0, held = 0;  // until what it sends may leave; until the lane is free, without waits
    double compute = 0, send = 0;
    std::uint32_t lane = 0, way = 0;
  };
  std::vector<Taken> taken;  // by SlotStep::of
  StageStates least;         // of several states
  // Offloaded activations: copy lanes, places of the ring by stage, and by slot when a layer's copy out is done.
  std::vector<double> out_lane, in_lane, readers, copied;
  std::vector<std::size_t> turn;
};
// One pass over the slots of all stages: exact but for what happens inside a slot. Of whichever of the states is the
// best, and not above the least of theirs; without any, as if there were none. `Start::open`: of all that differ from the
// states in what of the update is on the host, so that it is not known when the step starts. `steps` are of the schedule; few
// of them only where may_walk_few.
// `scratch` is reused between calls. Above `limit` it may end early with any bound above it.
enum class Start : std::uint8_t { known, open };
double slot_bound(const PipelineTimes&, std::span<const StageStates* const> states, double closing,
                  const SlotSteps& steps, SlotScratch& scratch, double limit = INFINITY,
                  Start start = Start::known);
// Whether the slots of these times may be walked so: those left out turn the ring of offloaded activations whole times.
bool may_walk_few(const PipelineTimes&, const SlotSteps& few);

// A bound made of these, without a look at buckets, is one of any choice of buckets and overlaps; where the start is open, of
// any offload of the state as well. Not to be mixed with state_times(). `chunks` are the layers of each model chunk.
StageStates least_state_times(const Job&, const ParallelPlan&, const PlanLinks&,
                              const std::vector<LayerRange>& chunks, Start start);

// All of it for the best of some plans that differ in buckets, overlaps and offloaded activations alone: what the tests
// compare with the simulator.
Seconds step_lower_bound(const Job&, std::span<const ParallelPlan> any, const PlanLinks& links);

}  // namespace sextant

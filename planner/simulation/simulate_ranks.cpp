#include "planner/simulation/simulate_ranks.hpp"

#include <algorithm>

#include "core/base/error.hpp"
#include "core/graph/op_groups.hpp"

namespace sextant {
namespace {

// Ranks of a stage by position: tp fastest, then cp, then dp, whatever their order on the cluster. Position / tp is the
// replica; a shard group is consecutive replicas, a replica group takes one of each (core/plan/plan_links).
struct Positions {
  explicit Positions(const ParallelPlan& p)
      : tp(static_cast<std::size_t>(p.tp)),
        cp(static_cast<std::size_t>(p.cp)),
        shards(static_cast<std::size_t>(p.shards() > 1 ? p.shards() : p.replicas())),
        count(static_cast<std::size_t>(p.tp * p.replicas())) {}
  std::size_t tp, cp, shards, count;
};

// `members` positions `stride` apart meet: each gets the maximum.
void meet(std::vector<double>& ready, std::size_t members, std::size_t stride) {
  if (members <= 1) return;
  for (std::size_t block = 0; block < ready.size(); block += members * stride) {
    double* first = ready.data() + block;
    for (std::size_t m = 1; m < members; ++m)
      for (std::size_t i = 0; i < stride; ++i) first[i] = std::max(first[i], first[m * stride + i]);
    for (std::size_t m = 1; m < members; ++m) std::copy(first, first + stride, first + m * stride);
  }
}

void meet(OpRole role, const Positions& at, std::vector<double>& ready) {
  switch (role) {
    case OpRole::tp_gather:
    case OpRole::tp_scatter:
    case OpRole::tp_reduce:
    case OpRole::sp_reduce:
      return meet(ready, at.tp, 1);
    case OpRole::cp_gather:
    case OpRole::cp_scatter:
      return meet(ready, at.cp, at.tp);
    case OpRole::param_gather:
    case OpRole::grad_reduce:
      return meet(ready, at.shards, at.tp);
    case OpRole::grad_replica_reduce:
      return meet(ready, at.count / (at.tp * at.shards), at.tp * at.shards);
    case OpRole::norm_reduce:
      return meet(ready, at.count, 1);
    case OpRole::block:
    case OpRole::send:
    case OpRole::grad_accumulate:
    case OpRole::tied_reduce:
    case OpRole::norm_partial:
    case OpRole::update:
    case OpRole::copy_out:
    case OpRole::copy_in:
    case OpRole::zero_grad:
      return;
  }
}

// Ends of ops that later ops wait for, one row of positions each. A row is used again once nobody waits for it.
class Ends {
 public:
  Ends(const ExecutionGraph& g, std::size_t width)
      : left_(g.ops.size(), 0), row_(g.ops.size(), 0), width_(width) {
    for (const OpId dep : g.deps) ++left_[dep];
  }
  void keep(OpId op, const std::vector<double>& end) {
    if (left_[op] == 0) return;
    if (free_.empty()) {
      free_.push_back(rows_.size());
      rows_.emplace_back(width_);
    }
    row_[op] = free_.back();
    free_.pop_back();
    rows_[row_[op]] = end;
  }
  void wait(OpId op, std::vector<double>& ready) {
    const std::vector<double>& end = rows_[row_[op]];
    for (std::size_t i = 0; i < width_; ++i) ready[i] = std::max(ready[i], end[i]);
    if (--left_[op] == 0) free_.push_back(row_[op]);
  }

 private:
  std::vector<std::uint32_t> left_;
  std::vector<std::size_t> row_;
  std::size_t width_;
  std::vector<std::vector<double>> rows_;
  std::vector<std::size_t> free_;
};

class RankSweep {
 public:
  RankSweep(const ExecutionGraph& g, std::vector<double> duration, std::span<const double> factor,
            std::span<const int> record)
      : graph_(g),
        duration_(std::move(duration)),
        at_(g.plan),
        ends_(g, at_.count),
        free_(g.lanes.size(), std::vector<double>(at_.count, 0.0)),
        factor_(static_cast<std::size_t>(g.plan.pp), std::vector<double>(at_.count, 1.0)),
        waited_(factor_.size(), std::vector<double>(at_.count, 0.0)),
        rank_of_(factor_.size(), std::vector<int>(at_.count, 0)),
        owned_(at_.count, 1.0),
        ready_(at_.count),
        arrived_(at_.count) {
    const RankGrid grid(g.plan);
    const std::vector<double> shares = shares_of_largest(g.plan);
    SEXTANT_CHECK(factor.empty() || static_cast<int>(factor.size()) == g.plan.world(),
                  "one compute factor for each rank");
    for (int rank = 0; rank < g.plan.world(); ++rank) {
      const RankCoord c = grid.coord(rank);
      const auto stage = static_cast<std::size_t>(c.pp);
      const auto position = static_cast<std::size_t>(c.tp + g.plan.tp * (c.cp + g.plan.cp * c.dp));
      rank_of_[stage][position] = rank;
      owned_[position] = shares[static_cast<std::size_t>(shard_of(g.plan, c))];
      if (!factor.empty()) factor_[stage][position] = factor[static_cast<std::size_t>(rank)];
    }
    for (const int rank : record) {
      const RankCoord c = grid.coord(rank);
      recorded_.push_back({static_cast<std::size_t>(c.pp),
                           static_cast<std::size_t>(c.tp + g.plan.tp * (c.cp + g.plan.cp * c.dp))});
      spans_.push_back({rank, std::vector<Span>(g.ops.size())});
    }
  }

  RankTimeline run() {
    for (OpId i = 0; i < graph_.ops.size(); ++i) {
      const bool joins = graph_.ops[i].role == OpRole::norm_reduce;
      SEXTANT_CHECK(joins || joined_.empty(), "the stages' parts of a sum over the world stand together");
      if (joins)
        join(i);
      else
        step(i);
    }
    return result();
  }

 private:
  void wait(OpId i) {
    const Op& op = graph_.ops[i];
    ready_ = free_[op.lanes[0]];
    if (op.lanes[1] != kNoLane)
      for (std::size_t r = 0; r < at_.count; ++r) ready_[r] = std::max(ready_[r], free_[op.lanes[1]][r]);
    for (const OpId dep : graph_.deps_of(op)) ends_.wait(dep, ready_);
    arrived_ = ready_;
    meet(op.role, at_, ready_);
  }

  void step(OpId i) {
    const Op& op = graph_.ops[i];
    wait(i);
    // Only a wait inside the stage's own groups: what a transfer waits for is the pipeline.
    auto& waited = waited_[op.stage];
    for (std::size_t r = 0; r < at_.count; ++r) waited[r] += ready_[r] - arrived_[r];
    finish(i);
  }

  // Turns ready_ into the end of op i on every position.
  void finish(OpId i) {
    const Op& op = graph_.ops[i];
    const double duration = duration_[i];
    if (!recorded_.empty()) arrived_ = ready_;
    const bool computes = op.role == OpRole::block || op.role == OpRole::update,
               of_slice = works_on_slice(op);
    const auto& factor = factor_[op.stage];
    const std::size_t width = graph_.plan.replica_microbatches.empty() ? at_.count : at_.tp * at_.cp;
    for (std::size_t first = 0; first < at_.count; first += width)
      if (!left_out(graph_.plan, op, static_cast<int>(first / width)))
        for (std::size_t r = first; r < first + width; ++r)
          ready_[r] += duration * (computes ? factor[r] : 1.0) * (of_slice ? owned_[r] : 1.0);
    for (std::size_t k = 0; k < recorded_.size(); ++k) {
      const auto [stage, position] = recorded_[k];
      const bool other_end = op.lanes[1] != kNoLane && graph_.lanes[op.lanes[1]].stage == stage;
      if (op.stage == stage || other_end) spans_[k].spans[i] = {arrived_[position], ready_[position]};
    }
    ends_.keep(i, ready_);
    if (op.lanes[1] != kNoLane) free_[op.lanes[1]] = ready_;
    free_[op.lanes[0]] = ready_;
  }

  // Every rank of the world meets: the sum starts when the last stage has come to it.
  void join(OpId i) {
    wait(i);
    join_start_ = std::max(join_start_, ready_.front());
    auto& waited = waited_[graph_.ops[i].stage];
    for (std::size_t r = 0; r < at_.count; ++r) waited[r] -= arrived_[r];
    joined_.push_back(i);
    if (joined_.size() < factor_.size()) return;
    for (const OpId op : joined_) {
      for (double& w : waited_[graph_.ops[op].stage]) w += join_start_;
      std::fill(ready_.begin(), ready_.end(), join_start_);
      finish(op);
    }
    joined_.clear();
    join_start_ = 0;
  }

  RankTimeline result() {
    RankTimeline out;
    const auto world = static_cast<std::size_t>(graph_.plan.world());
    out.finish.resize(world);
    out.waited.resize(world);
    for (std::size_t lane = 0; lane < free_.size(); ++lane)
      for (std::size_t r = 0; r < at_.count; ++r) {
        Seconds& finish = out.finish[static_cast<std::size_t>(rank_of_[graph_.lanes[lane].stage][r])];
        finish = std::max(finish, Seconds(free_[lane][r]));
        out.makespan = std::max(out.makespan, finish);
      }
    for (std::size_t stage = 0; stage < waited_.size(); ++stage)
      for (std::size_t r = 0; r < at_.count; ++r)
        out.waited[static_cast<std::size_t>(rank_of_[stage][r])] = Seconds(waited_[stage][r]);
    out.spans = std::move(spans_);
    return out;
  }

  const ExecutionGraph& graph_;
  std::vector<double> duration_;
  Positions at_;
  Ends ends_;
  std::vector<std::vector<double>> free_;             // [lane][position]
  std::vector<std::vector<double>> factor_, waited_;  // [stage][position]
  std::vector<std::vector<int>> rank_of_;             // [stage][position]
  std::vector<double> owned_;                         // [position]: share of the largest slice
  std::vector<double> ready_, arrived_;
  std::vector<OpId> joined_;
  double join_start_ = 0;
  struct Recorded {
    std::size_t stage = 0, position = 0;
  };
  std::vector<Recorded> recorded_;
  std::vector<Timeline::RankSpans> spans_;
};

}  // namespace

RankTimeline simulate_ranks(const ExecutionGraph& g, std::span<const OpCost> by_work,
                            std::span<const double> compute_factor, const SimulateOptions& options,
                            std::span<const int> record) {
  SimulateScratch scratch;
  simulated_step(g, by_work, options, scratch);
  return RankSweep(g, std::move(scratch.duration), compute_factor, record).run();
}

}  // namespace sextant

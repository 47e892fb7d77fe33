// The space as a tree: one group of fields is decided per level, and every node knows how many members lie below it.
// Expanding a node sorts its children into outcomes, or gives them a lower bound. Used by search.cpp alone.
//
//   level      decides                            bound adds                        memory floor adds
//   degrees    tp, cp, pp (dp follows)            compute                           mean state of a stage
//   placement  micro-batch, class of axis orders  tp and cp collectives
//   sharding   ZeRO, shard degree, axis order     gathers, reductions per slot      its own state
//   kernels    SP, TP overlap, recompute          what is recomputed                one micro-batch of a stage
//   pipeline   schedule, vp, stage split          stages, bubble
//   offload    activations, optimizer, parameters copies, update                    micro-batches in flight
//   full       buckets, overlap                   gathers, reductions, then slots   the heaviest stage, then everything
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "planner/search/search.hpp"
#include "planner/search/search_cache.hpp"

namespace sextant {

enum class Level : std::uint8_t { root, degrees, placement, sharding, kernels, pipeline, offload, full };

struct Node {
  double bound = 0;  // seconds of the simulated step
  std::uint64_t members = 1;
  Choice choice;
  Level level = Level::root;
  std::uint8_t refined = 0;      // how often its slots have been walked (see passes)
  std::uint8_t order_class = 0;  // from the placement on: the first of the orders of axes with equal links
  std::int64_t peak = 0;         // of a full node, once asked for: its memory, bytes
};

struct Expansion {
  std::vector<Node> children;
  OutcomeCounts outcomes;
  std::vector<OutcomeExample> examples;
  std::uint64_t bounds = 0;
  std::array<bool, kOutcomeNames.size()> exemplified{};  // outcomes of which no more examples are wanted
  double limit = INFINITY;                               // children with a higher bound are of no use
  void add(const Node& child) {
    if (child.bound > limit)
      outcomes[Outcome::pruned_by_bound] += child.members;
    else
      children.push_back(child);
  }
};

class SearchTree {
 public:
  // `stopped` is asked amid what takes long: a guess then ends with what it has.
  SearchTree(
      const Job&, const SearchSpace&, Bytes memory_limit,
      std::function<bool()> stopped = [] { return false; });

  // Between expansions only. Nodes from before may not fit any more: refine() looks at that first.
  void lower_memory_limit(Bytes limit) {
    memory_limit_ = limit;
    lowered_ = true;
  }

  Node root() const;
  void expand(const Node&, SearchCache&, Expansion&) const;
  // How often a node is worth refining: once with its stages, once with all that is offloaded, once as a whole.
  static int passes(Level level) { return level < Level::pipeline ? 0 : 1; }
  // A tighter bound of a node whose stages are decided. One that does not fit a lowered limit has no members left.
  void refine(Node&, SearchCache&, Expansion&) const;
  // Whether a full node fits, which takes ten times as long as a bound: asked just before it is simulated.
  bool fits(Node&, SearchCache&, Expansion&) const;
  ParallelPlan plan(const Choice&, SearchCache&) const;
  bool fits(const ParallelPlan&) const;
  // The tightest bound of a plan, of any cut into stages. Nothing when it is unlawful, outside the limits, above `limit`,
  // or clearly too large.
  std::optional<double> bound(const ParallelPlan&, double limit, SearchCache&) const;
  // A member of a division of the ranks that is worth simulating first: what a practitioner would try, with more on the host
  // or sharded than that, with just as much of the optimizer on the host as it needs, or with as much of everything that saves
  // memory. None when what was tried does not fit or is bounded by `limit`.
  enum class Guess : std::uint8_t { usual, on_host, roomy, roomy_on_host, lean };
  std::optional<Node> guess(const Node& division, Guess, double limit, SearchCache&) const;
  // One member with its tightest bound, unless it is unlawful or its bound is above the limit; with ZeRO 0 for a ZeRO 1
  // that shards nothing.
  std::optional<Node> member(Choice, double limit, SearchCache&) const;
  // Of a plan whatever its state is: seconds.
  double quickest(const ParallelPlan&, SearchCache&) const;
  // The choice with as little of the optimizer on the host as fits; nothing where none does.
  std::optional<Choice> with_least_share(Choice, SearchCache&) const;

  // What the search for the lowest-memory (planner/answers/lowest_memory.hpp) builds on.
  // The plan with every field that is decided below the level at its neutral value.
  ParallelPlan decided(const Choice&, Level, SearchCache&) const;
  ParallelPlan with_some_stage(ParallelPlan) const;
  bool has_kernels(const ParallelPlan&) const;
  // Layers of the chunks as the stack can cut them; where it cannot cut unevenly, `balanced` is what it would be.
  void fill_chunks(const ParallelPlan&, StageSplit, SearchCache&, std::vector<LayerRange>& out) const;
  // Those of a plan that states none.
  void fill_even(const ParallelPlan&, std::vector<LayerRange>& out) const;
  // Of a plan with more chunks than layers: embedding, LM head or both alone. Empty where it has no more, or may not have them.
  std::vector<LayerRange> more_chunks_than_layers(const ParallelPlan&) const;
  // Why the plan is not lawful, whatever cut the stack can make of its layers.
  std::optional<RejectReason> refused(const ParallelPlan& plan) const {
    return cuts_ends_ && plan.pp > 1 ? unlawful_reason(job_, with_ends(plan)) : unlawful_reason(job_, plan);
  }
  // Bytes on the device: parameter, gradient and optimizer state of one element.
  double state_of_element(const ParallelPlan&) const;
  double lowest_memory_offload(
      ParallelPlan) const;  // with as much offload as stack, space and host memory allow
  double lowest_memory_state(ParallelPlan) const;  // and the lowest-memory ZeRO stage
  bool host_holds_state(const ParallelPlan&) const;
  // What must fit of a stage that holds at least so many bytes in buffers, bytes.
  double needed(double floor_bytes) const;
  // Whether ZeRO 0 and 1 are the same where one replica shards nothing: some frameworks make other copies.
  bool shards_one_alike(ParallelPlan) const;
  // What the first stage holds when its first backward begins.
  struct Flight {
    double elements = 0;     // parameters of its layers
    double activations = 0;  // bytes of the micro-batches in flight
  };
  Flight flight(const ParallelPlan&, const std::vector<LayerRange>& chunks) const;
  // What a stage holds beside its state and what its micro-batches keep, bytes.
  struct Held {
    double resident = 0;                 // all step long
    double whole = 0, input = 0;         // kept of a layer, and of one that is recomputed
    double layer = 0;                    // while the first layer goes backward, beyond what is kept
    double head = 0, head_resident = 0;  // on the head's stage: when its backward begins; all step long
  };
  Held held(const ParallelPlan&) const;
  // The same, asked for once, of plans that differ in schedule and offload alone.
  class HeldBefore {
   public:
    explicit HeldBefore(const SearchTree& tree) : tree_(tree) {}
    const Held& of(const ParallelPlan& p) {
      const Key key{p.schedule == PipelineSchedule::zero_bubble,
                    p.activation_offload > 0 ? p.offload_horizon : 0};
      for (const auto& [known, held] : held_)
        if (known == key) return held;
      return held_.emplace_back(key, tree_.held(p)).second;
    }

   private:
    using Key = std::pair<bool, int>;
    const SearchTree& tree_;
    std::deque<std::pair<Key, Held>> held_;
  };
  // What some stage holds: whatever the stages and what is offloaded; with stages and offload decided.
  double kernels_floor(ParallelPlan, SearchCache&) const;
  double stages_floor(const ParallelPlan&, double state_of_one, const std::vector<LayerRange>& chunks,
                      const Flight&, const Held&) const;
  // The fullest stage whatever the buckets are.
  // What of buckets and overlap is left of a plan where all else is given.
  using Buckets =
      std::tuple<std::int64_t, int, bool, bool>;  // elements, last split, reduction, gather overlapped
  Buckets buckets(const ParallelPlan&) const;
  struct Fullest {
    double bytes = 0;
    BufferKind largest = BufferKind::parameter;
    std::size_t stage = 0;
  };
  Fullest fullest(ParallelPlan) const;

 private:
  class Trial;
  class Room;
  class KeptBounds;
  void expand_root(SearchCache&, Expansion&) const;
  void expand_degrees(const Node&, SearchCache&, Expansion&) const;
  void expand_placement(const Node&, SearchCache&, Expansion&) const;
  void expand_sharding(const Node&, SearchCache&, Expansion&) const;
  void expand_kernels(const Node&, SearchCache&, Expansion&) const;
  void expand_pipeline(const Node&, SearchCache&, Expansion&) const;
  void expand_offload(const Node&, SearchCache&, Expansion&) const;

  std::uint64_t below(Level) const;  // members below one child of that level, classes of orders apart
  // is_steady() of every member below a plan whose sharding is decided.
  bool steady(const ParallelPlan& p) const {
    return !may_offload_activations_ && !may_offload_parameters_ && is_steady(p, job_.stack.rules);
  }
  enum class Links : std::uint8_t { open, known };  // of the plan's groups
  template <class F>
  void each_kernel_choice(ParallelPlan&, Links, F visit) const;
  // Adds one child for each order of axes whose links no other before it has; the cache's sketches are of all of them.
  void add_placements(Node child, ParallelPlan, const std::vector<std::uint8_t>& orders, double least_above,
                      SearchCache&, Expansion&) const;
  // Adds to the cache's sketches: of any schedule and stage split, one for each kind of stage.
  void sketch(const ParallelPlan&, SearchCache&, int recomputed, Links) const;
  // The least step of any sketch.
  static double unscheduled(const SearchCache&, int microbatches, const SearchCache::EveryMicrobatch&);
  // Rules that look at the schedule alone; how many layers a chunk holds is looked at with the stages.
  std::vector<SearchCache::Law>& form_laws(ParallelPlan, std::uint64_t members, SearchCache&,
                                           Expansion&) const;
  // Whether the stack can make the cut, and every chunk holds the layers that the plan recomputes or offloads.
  bool cut_is_possible(const ParallelPlan&, StageSplit, const SearchCache::Stages&, std::uint64_t members,
                       Expansion&) const;
  // By each lawful form of the space, each split.
  std::vector<SearchCache::Stages> stages_of(ParallelPlan, const std::vector<SearchCache::Law>&, bool steady,
                                             SearchCache&) const;
  // state_of_element() of every choice of what of the state is on the host.
  std::vector<double> states_of_element(ParallelPlan) const;
  // How many members offload activations so, of which the plan has as many as the `longest` chunk's layers; those that
  // do not are counted.
  std::uint64_t members_offloading(const ActivationOffload&, const ParallelPlan&, int longest,
                                   std::uint64_t members, Expansion&) const;
  template <class Lawful, class Visit>
  void each_bucketing(ParallelPlan&, Choice&, const Lawful&, const Visit&) const;
  // Buckets and overlaps of a plan that is lawful without them, each kind once; what of the update is on the host does not
  // matter to them.
  using Bucketings = std::vector<SearchCache::Bucketing>;
  Bucketings bucketings(ParallelPlan, SearchCache&) const;
  // Of the choices of what of the state is on the host, and of buckets and overlaps: what decides whether they are lawful.
  std::vector<SearchCache::Law>& state_laws(const ParallelPlan&, SearchCache&) const;
  std::vector<SearchCache::Law>& bucket_laws(const ParallelPlan&, SearchCache&) const;
  // Adds to the cache's room.
  static void list_states(ParallelPlan, const Bucketings&, int chunks_id, SearchCache&,
                          SearchCache::Share share = SearchCache::Share::own);
  // Of the plan's share of the optimizer on the host and all above it. Gradients of a whole optimizer there may be summed
  // there, which it has in common with no smaller share.
  void list_states_from(ParallelPlan, const Bucketings&, int chunks_id, SearchCache&,
                        SearchCache::Share) const;
  // Whether the listed states say when the step starts.
  Start list_fitting_states(ParallelPlan, const std::vector<LayerRange>& chunks, SearchCache&) const;
  // `law` is of all plans of which rules and stack say the same; the first of them is looked at.
  bool lawful(const ParallelPlan& plan, SearchCache::Law& law) const {
    if (!law.known) law = {true, refused(plan)};
    return !law.against;
  }
  bool lawful(const ParallelPlan&, std::uint64_t members, Expansion&, SearchCache::Law& law) const;
  bool lawful(const ParallelPlan& plan, std::uint64_t members, Expansion& out) const {
    SearchCache::Law law;
    return lawful(plan, members, out, law);
  }
  // Counts them; `text` is asked while an example of the outcome is wanted.
  template <class Text>
  static void reject(Outcome outcome, std::uint64_t members, const ParallelPlan& plan, const Text& text,
                     Expansion& out) {
    out.outcomes[outcome] += members;
    if (out.exemplified[static_cast<std::size_t>(outcome)] || out.examples.size() >= 4) return;
    out.examples.push_back({outcome, plan_key(plan), text()});
  }

  // search_floor.cpp: the least memory of everything below.
  template <class What>
  bool above_memory(double floor_bytes, const ParallelPlan&, std::uint64_t members, const What&,
                    Expansion&) const;
  bool state_fits(const ParallelPlan&, double state_of_one, std::uint64_t members, SearchCache&,
                  Expansion&) const;
  bool micro_batch_fits(const ParallelPlan&, double state_of_one, std::uint64_t members, SearchCache&,
                        Expansion&) const;
  bool flight_fits(const Flight&, const ParallelPlan&, double state_of_one, std::uint64_t members,
                   Expansion&) const;
  bool stages_fit(double floor_bytes, const ParallelPlan&, std::uint64_t members, Expansion&) const;
  bool within_memory(double floor_bytes) const {
    return needed(floor_bytes) <= static_cast<double>(memory_limit_.v);
  }
  bool estimate_fits(const ParallelPlan&, std::uint64_t members, Expansion&) const;
  bool still_fits(const Node&, const ParallelPlan&, const std::vector<LayerRange>& chunks, Expansion&) const;

  // Where the stack's ends alone may differ and no even split is, a cut that it can make.
  ParallelPlan with_ends(ParallelPlan) const;
  // A cut of those that the stack's own rule makes; the prices decide which is the balanced one.
  const std::vector<int>* ruled_cut(const ParallelPlan&, StageSplit, SearchCache&) const;

  const Job& job_;
  const SearchSpace& space_;
  Bytes memory_limit_;
  std::function<bool()> stopped_;
  bool lowered_ = false;
  // What the stack leaves possible of what the space asks for.
  bool may_offload_activations_, may_offload_parameters_, may_split_backward_;
  double most_optimizer_offload_, parameters_;
  int most_vp_, least_horizon_, most_horizon_;
  int most_chunks_;
  bool cuts_ends_, cuts_evenly_;                                        // unless asked for other cuts
  std::map<std::pair<int, int>, std::vector<std::vector<int>>> ruled_;  // by pp and vp: ruled_cuts()
  int least_offloaded_ = kMaxLayers;  // layers that are listed, all of a chunk apart
};

}  // namespace sextant

// What a search remembers: links by placement, times by what they depend on. Values depend on their keys alone, so that
// threads share them and it does not matter who computed one; beside them each thread has room to work in.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <forward_list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <vector>

#include <tbb/concurrent_unordered_map.h>

#include "planner/search/bounds/bound.hpp"
#include "planner/search/search_space.hpp"

namespace sextant {

class SearchCache {
  using Key = std::array<int, 16>;
  using Packed = std::array<std::uint64_t, 2>;  // of what is asked for most
  // Sums of products of two halves each (NH): the products do not wait for one another.
  struct KeyHash {
    std::size_t operator()(const Key& key) const {
      std::array<std::uint64_t, 8> w;
      static_assert(sizeof w == sizeof key);
      std::memcpy(w.data(), key.data(), sizeof w);
      std::uint64_t h = 0;
      for (std::size_t i = 0; i < 8; i += 2)
        h += (w[i] + 0x9E3779B97F4A7C15ull * (i + 1)) * (w[i + 1] + 0xD6E8FEB86659FD93ull * (i + 3));
      return mixed(h);
    }
    std::size_t operator()(const Packed& w) const {
      return mixed((w[0] + 0x9E3779B97F4A7C15ull) * (w[1] + 0xD6E8FEB86659FD93ull));
    }
    static std::size_t mixed(std::uint64_t h) { return (h ^ h >> 32) * 0x9FB21C651E98DF25ull >> 7; }
  };
  template <class T, class K = Key>
  using Map = tbb::concurrent_unordered_map<K, T, KeyHash>;
  using LinkIds = std::array<int, 3>;  // of a stage's links of tp, cp and to the next stage
  struct StageKind {
    LinkIds links;
    double factor = 1;  // its compute takes that many times as long
    bool operator==(const StageKind&) const = default;
  };
  struct Linked {
    PlanLinks links;
    std::vector<StageKind> distinct;
    std::vector<std::uint16_t> index;  // by stage, into `distinct`; empty when all are equal
    double closing = 0;
    bool same_core(const Linked& other) const {
      return distinct == other.distinct && index == other.index && links.world == other.links.world &&
             links.tied == other.links.tied;
    }
  };
  struct ShapeHash {
    std::size_t operator()(const GroupShape&) const;
  };

 public:
  // What a stage fetches and reduces for every micro-batch at least, the mean over stages. Zero when nothing is.
  struct EveryMicrobatch {
    double fetched = 0, reduced = 0;
  };
  // Orders of axes by equal links of tp, cp, stages and world; an order that places the same ranks as an earlier one is
  // in no class.
  struct Classes {
    std::vector<std::vector<std::uint8_t>> members;
    std::size_t repeated = 0, refused = 0;  // refused: the stack places no ranks so
  };

  // Of layouts that differ in buckets and overlaps alone: asked for one after the other.
  struct Bucketing {
    std::int64_t elements = 0;
    int last_split = 1;
    bool reduce = false, gather = false;
    bool operator==(const Bucketing&) const = default;
  };
  struct StatesByBuckets {
    std::mutex adding;
    std::forward_list<std::pair<Bucketing, StageStates>> made;
  };

  // What a form and a split of the layers make of the stages, whatever is sharded.
  struct Stages {
    double least = 0;                      // bound without state, and without what follows all slots
    double elements = 0, activations = 0;  // SearchTree::Flight
    int longest = 0;                       // layers of the longest chunk
    bool uneven = false;                   // balanced in another way than evenly
  };

  // What all threads of a search share.
  struct Shared {
    Map<Linked, Packed> links;
    Map<BlockTimes, Packed> blocks;
    Map<LinkTimes, Packed> link_times;
    Map<StatesByBuckets> states;
    Map<std::vector<Stages>, Packed> stages;
    std::atomic<std::size_t> state_bytes = 0;  // of what both hold
    Map<std::vector<StageBuckets>> buckets;
    Map<EveryMicrobatch> every;
    Map<double> tied_reductions;
    Map<Classes> classes;
    Map<std::int64_t> elements;
    std::mutex numbering;
    std::unordered_map<GroupShape, int, ShapeHash> shapes;
    std::map<std::vector<int>, int> chunk_ids;
  };
  SearchCache(const Job&, const SearchSpace&, std::shared_ptr<Shared> = make_shared());
  static std::shared_ptr<Shared> make_shared();

  const PlanLinks& links(const ParallelPlan& p) { return linked(p, p.shards()).links; }
  double closing(const ParallelPlan& p) { return linked(p, 1).closing; }
  // The same, and what comes before it whatever the buckets are: for bounds that know nothing of state.
  double stateless_closing(const ParallelPlan& p);

  // Times of a layer by stage; without links, of any stage. Good until the next call.
  const StageLayerTimes& layers(const ParallelPlan&);
  const StageLayerTimes& layers_without_links(const ParallelPlan&);
  // `chunks` is chunks_id() of the plan's. Of any share of the update on the host that is the plan's or more: a bound of all
  // those that the space has.
  enum class Share { own, any };
  const std::vector<double>& shares() const { return shares_; }  // of the space, ascending
  const StageStates& state(const ParallelPlan&, int chunks, Share share = Share::own);
  // A search that goes on for long would keep more of them than memory holds. Between expansions, by each thread's cache
  // once the shared ones are gone: references to states end here.
  static constexpr std::size_t kMostStateBytes = std::size_t{512} << 20;
  void forget_last_states() { last_states_ = nullptr; }
  int chunks_id(const std::vector<LayerRange>&);
  const SlotSteps& steps(const ParallelPlan&, int microbatches);
  // Few, where the slots of these times may be walked so.
  const SlotSteps& few_steps(const ParallelPlan&, int microbatches, const PipelineTimes&);

  const EveryMicrobatch& every_microbatch(const ParallelPlan&);

  std::int64_t elements(int tp);  // parameters of one tensor-parallel rank, all layers

  const Classes& classes(const ParallelPlan&);

  // What rules and stack say of each of so many choices, where only the numbers of the key decide it. Of this thread.
  struct Law {
    bool known = false;
    std::optional<RejectReason> against;
  };
  enum class Asked : int { sharding, kernels, form, activations, state, buckets };
  std::vector<Law>& laws(Asked about, const std::array<int, 3>& key, std::size_t choices);

  // Of layouts that differ in what is sharded and in orders of axes with equal links, made once: by each lawful form, each
  // split. `made` gives them.
  template <class Make>
  const std::vector<Stages>& stages(const Choice& c, std::uint8_t order_class, bool steady,
                                    const Make& make) {
    const Packed key{
        std::uint64_t{c.tp} << 24 | std::uint64_t{c.cp} << 16 | std::uint64_t{c.pp} << 8 | order_class,
        std::uint64_t{c.micro_batch} << 32 | std::uint64_t{c.sequence_parallel} << 24 |
            std::uint64_t{c.overlap_tp} << 16 | std::uint64_t{c.recompute} << 8 | steady};
    return of(shared_->stages, key, [&] {
      std::vector<Stages> made = make();
      shared_->state_bytes += made.capacity() * sizeof made[0];
      return made;
    });
  }

  // Room for one expansion, kept to spare allocations.
  PipelineTimes times;
  SlotScratch slots;
  StateScratch state_scratch;
  std::vector<const StageStates*> states;
  std::vector<LayerRange> chunks, even;
  struct Sketch {
    double compute = 0;  // of one micro-batch, the mean over stages
    double waits = 0;    // beside it, which other work of the lane may fill
    double ramp = 0;     // of the pipeline, once
    double shared = 0;   // of one micro-batch on the busiest stage, where stages are of unequal speed
    bool split = false;  // backward in halves: gradients are reduced once
    double after = 0;    // all slots of every stage, once
  };
  std::vector<Sketch> sketches;

 private:
  // What was asked for last, by the lower bits of the hash.
  template <class T>
  struct Front {
    static constexpr std::size_t kPlaces = 1024;
    // Null where it was another key's.
    const T*& at(const Packed& key) {
      const std::size_t place = KeyHash()(key) % kPlaces;
      if (keys[place] != key) {
        keys[place] = key;
        values[place] = nullptr;
      }
      return values[place];
    }

   private:
    std::array<Packed, kPlaces> keys{};
    std::array<const T*, kPlaces> values{};
  };
  template <class T, class Make>
  static const T& of(Front<T>& front, Map<T, Packed>& map, const Packed& key, const Make& make) {
    if (const T* recent = front.at(key)) return *recent;
    const T& found = of(map, key, make);  // which may ask for others
    return *(front.at(key) = &found);
  }
  // The value of a key, made when nobody has.
  template <class T, class K, class Make>
  static const T& of(Map<T, K>& map, const K& key, const Make& make) {
    if (const auto found = map.find(key); found != map.end()) return found->second;
    return map.emplace(key, make()).first->second;
  }

  const Linked& linked(const ParallelPlan&, int shards);  // 1: links of tp, cp and stages alone
  const BlockTimes& blocks(const ParallelPlan&);
  LinkTimes times_over(const LinkIds&, const ParallelPlan&, const StageLinks&);
  StageStates state_of(const ParallelPlan&, int chunks, Share);
  EveryMicrobatch every_of(const ParallelPlan&);
  Classes classes_of(const ParallelPlan&);
  void number(Linked&, const ParallelPlan&);

  const Job& job_;
  const SearchSpace& space_;
  std::shared_ptr<Shared> shared_;
  std::vector<double> shares_;
  StageLayerTimes layers_;
  std::vector<LinkTimes> over_;  // by kind of stage, of what was asked last
  std::tuple<const Linked*, int, bool, bool, bool, RecomputeKind> over_asked_{};
  Front<BlockTimes> recent_blocks_;
  Front<LinkTimes> recent_links_;
  Key last_state_key_{};
  StatesByBuckets* last_states_ = nullptr;  // of last_state_key_
  Front<Linked> recent_;
  std::unordered_map<Key, SlotSteps, KeyHash> steps_, few_steps_;
  std::unordered_map<Key, std::vector<Law>, KeyHash> laws_;
  std::size_t slots_kept_ = 0;
  template <class Make>
  const SlotSteps& known_steps(std::unordered_map<Key, SlotSteps, KeyHash>& known, const ParallelPlan&,
                               int microbatches, const Make&);
};

}  // namespace sextant

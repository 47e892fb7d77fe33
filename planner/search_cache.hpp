// What a search remembers: links by placement, times by what they depend on. Values depend on their keys alone, so that
// threads share them and it does not matter who computed one; beside them each thread has room to work in.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include <tbb/concurrent_unordered_map.h>

#include "planner/bound.hpp"
#include "planner/search_space.hpp"

namespace sextant {

class SearchCache {
  using Key = std::array<int, 16>;
  struct KeyHash {
    std::size_t operator()(const Key& key) const {
      std::uint64_t h = 0x9E3779B97F4A7C15ull;
      for (const int x : key) h = (h ^ static_cast<std::uint32_t>(x)) * 0xD6E8FEB86659FD93ull, h ^= h >> 32;
      return h;
    }
  };
  template <class T>
  using Map = tbb::concurrent_unordered_map<Key, std::unique_ptr<const T>, KeyHash>;
  struct Linked {
    PlanLinks links;
    int core = 0;  // number of these links of tp, cp and next stages
    double closing = 0;
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
    std::size_t repeated = 0;
  };

  // What all threads of a search share.
  struct Shared {
    Map<Linked> links;
    Map<std::vector<LayerTimes>> layers;
    Map<LayerTimes> unlinked;
    Map<BlockTimes> blocks;
    Map<std::vector<StateTimes>> state;
    Map<EveryMicrobatch> every;
    Map<Classes> classes;
    Map<std::int64_t> elements;
    std::mutex numbering;
    std::vector<std::vector<StageLinks>> cores;
    std::map<std::vector<int>, int> chunk_ids;
  };
  SearchCache(const Job&, const SearchSpace&, std::shared_ptr<Shared> = make_shared());
  static std::shared_ptr<Shared> make_shared();

  const PlanLinks& links(const ParallelPlan& p) { return linked(p, p.shards()).links; }
  double closing(const ParallelPlan& p) { return linked(p, 1).closing; }

  // Times of a layer by stage (one entry when stages are equal).
  const std::vector<LayerTimes>& layers(const ParallelPlan&);
  const LayerTimes& layer_without_links(const ParallelPlan&);
  // `chunks` is chunks_id() of the plan's.
  const std::vector<StateTimes>& state(const ParallelPlan&, int chunks);
  int chunks_id(const std::vector<LayerRange>&);
  const std::vector<StageSlot>& order(const ParallelPlan&, int microbatches);

  const EveryMicrobatch& every_microbatch(const ParallelPlan&);

  std::int64_t elements(int tp);  // parameters of one tensor-parallel rank, all layers

  const Classes& classes(const ParallelPlan&);

  // Room for one expansion, kept to spare allocations.
  PipelineTimes times;
  SlotScratch slots;
  std::vector<StateTimes> relaxed;
  std::vector<LayerRange> chunks, even;

 private:
  // The value of a key, made when nobody has.
  template <class T, class Make>
  static const T& of(Map<T>& map, const Key& key, const Make& make) {
    if (const auto found = map.find(key); found != map.end()) return *found->second;
    return *map.emplace(key, std::make_unique<const T>(make())).first->second;
  }

  const Linked& linked(const ParallelPlan&, int shards);  // 1: links of tp, cp and stages alone
  const BlockTimes& blocks(const ParallelPlan&);
  EveryMicrobatch every_of(const ParallelPlan&);
  Classes classes_of(const ParallelPlan&);
  int core_id(const PlanLinks&);

  const Job& job_;
  const SearchSpace& space_;
  std::shared_ptr<Shared> shared_;
  std::unordered_map<Key, std::unique_ptr<std::vector<StageSlot>>, KeyHash> orders_;
  std::size_t slots_kept_ = 0;
};

}  // namespace sextant

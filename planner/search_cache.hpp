// What one thread of a search remembers: links by placement, times by what they depend on. Values depend on their keys
// alone, so that each thread may have its own.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "planner/bound.hpp"
#include "planner/search_space.hpp"

namespace sextant {

class SearchCache {
 public:
  SearchCache(const Job& job, const SearchSpace& space) : job_(job), space_(space) {}

  const PlanLinks& links(const ParallelPlan& p) { return linked(p).links; }
  double closing(const ParallelPlan& p) { return linked(core(p)).closing; }

  // Times of a layer by stage (one entry when stages are equal).
  const std::vector<LayerTimes>& layers(const ParallelPlan&);
  const LayerTimes& layer_without_links(const ParallelPlan&);
  const std::vector<StateTimes>& state(const ParallelPlan&, const std::vector<LayerRange>& chunks);
  const std::vector<StageSlot>& order(const ParallelPlan&, int microbatches);

  // What a stage fetches and reduces for every micro-batch at least, the mean over stages. Zero when nothing is.
  struct EveryMicrobatch {
    double fetched = 0, reduced = 0;
  };
  const EveryMicrobatch& every_microbatch(const ParallelPlan&);

  std::int64_t elements(int tp);  // parameters of one tensor-parallel rank, all layers

  // Orders of axes by equal links of tp, cp, stages and world; an order that places the same ranks as an earlier one is
  // in no class.
  struct Classes {
    std::vector<std::vector<std::uint8_t>> members;
    std::size_t repeated = 0;
  };
  const Classes& classes(const ParallelPlan&);

  // Without what sharding adds: the links of tp, cp and stages are the same for all of these.
  static ParallelPlan core(ParallelPlan p) {
    p.zero_stage = 0, p.shard_degree = 0;
    return p;
  }

  // Room for one expansion, kept to spare allocations.
  PipelineTimes times;
  SlotScratch slots;
  std::vector<StateTimes> relaxed;
  std::vector<LayerRange> chunks, even;

 private:
  using Key = std::array<int, 16>;
  struct KeyHash {
    std::size_t operator()(const Key& key) const {
      std::uint64_t h = 0x9E3779B97F4A7C15ull;
      for (const int x : key) h = (h ^ static_cast<std::uint32_t>(x)) * 0xD6E8FEB86659FD93ull, h ^= h >> 32;
      return h;
    }
  };
  template <class T>
  using Map = std::unordered_map<Key, std::unique_ptr<T>, KeyHash>;
  struct Linked {
    PlanLinks links;
    int core = 0;  // number of these links of tp, cp and next stages
    double closing = 0;
  };

  const Linked& linked(const ParallelPlan&);
  const BlockTimes& blocks(const ParallelPlan&);
  int core_id(const PlanLinks&);
  int chunks_id(const std::vector<LayerRange>&);

  const Job& job_;
  const SearchSpace& space_;
  Map<Linked> links_;
  Map<std::vector<LayerTimes>> layers_;
  Map<LayerTimes> unlinked_;
  Map<BlockTimes> blocks_;
  Map<std::vector<StateTimes>> state_;
  Map<EveryMicrobatch> every_;
  Map<Classes> classes_;
  std::vector<std::vector<StageLinks>> cores_;
  std::map<std::vector<int>, int> chunk_ids_;
  std::map<int, std::int64_t> elements_;
  Map<std::vector<StageSlot>> orders_;
  std::size_t slots_kept_ = 0;
};

}  // namespace sextant

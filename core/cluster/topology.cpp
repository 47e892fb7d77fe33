#include "core/cluster/topology.hpp"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "core/cluster/cluster_graph.hpp"
#include "core/cluster/group_links.hpp"
#include "core/cluster/group_memo.hpp"
#include "core/cluster/rank_pattern.hpp"
#include "core/cluster/rank_placement.hpp"

namespace sextant {

struct Topology::Impl : GroupLinks {
  using GroupLinks::GroupLinks;
  mutable GroupMemo memo;
};

Topology::Topology(const ClusterSpec& spec) : impl_(std::make_unique<Impl>(spec)) {}
Topology::~Topology() = default;
Topology::Topology(Topology&&) noexcept = default;
Topology& Topology::operator=(Topology&&) noexcept = default;

int Topology::ranks() const { return static_cast<int>(impl_->places.size()); }
int Topology::node_of(int rank) const { return impl_->places.at(static_cast<std::size_t>(rank)).node; }
double Topology::compute_factor(int rank) const {
  SEXTANT_CHECK(rank >= 0 && rank < ranks(), "no such rank");
  return impl_->state(rank).compute;
}

GroupShape Topology::group(const RankGrid& grid, std::initializer_list<Axis> axes, int stage) const {
  if (!impl_->uniform) return slowest_group(grid, axes, stage);
  return impl_->memo.of(group_key(grid, axes, stage_period(grid) == 1 ? -1 : stage, impl_->period),
                        [&] { return GroupMemo::Groups{slowest_group(grid, axes, stage)}; })[0];
}

GroupShape Topology::slowest_group(const RankGrid& grid, std::initializer_list<Axis> axes, int stage) const {
  // Without defects the groups repeat block by block: those of the first block stand for all.
  const RankPattern pattern(grid, axes, stage, impl_->uniform ? impl_->period : 0);
  SEXTANT_CHECK(pattern.world() <= ranks(), "the plan has more ranks than the cluster");
  GroupShape worst;
  if (pattern.size() > 1) {
    const LinkSharing use = impl_->sharing(pattern);
    std::vector<int> members;
    bool first = true;
    for (const int base : pattern.stage_bases()) {
      pattern.members(base, members);
      const auto one = impl_->shape(members, pattern.continues(), pattern.continues(), &use);
      first ? void(worst = one) : worsen(worst, one);
      first = false;
    }
    worst.nodes *= pattern.repeats();
    worst.size = pattern.size();
  }
  impl_->finish(worst);
  return worst;
}

GroupShape Topology::group_of(std::span<const int> ranks_in, int concurrent_per_node) const {
  SEXTANT_CHECK(!ranks_in.empty() && concurrent_per_node > 0, "a group needs ranks");
  std::vector<int> members(ranks_in.begin(), ranks_in.end());
  std::ranges::sort(members);
  SEXTANT_CHECK(members.front() >= 0 && members.back() < ranks(), "no such rank");
  return repeated_group(members, concurrent_per_node, 1);
}

GroupShape Topology::repeated_group(std::span<const int> members, int concurrent_per_node,
                                    int repeats) const {
  GroupShape shape = impl_->shape(members, repeats > 1, repeats > 1, nullptr);
  shape.size *= repeats;
  shape.nodes *= repeats;
  if (shape.network_bandwidth.v > 0) {  // no more than an equal part of all the NICs of an NVLink domain
    double least = std::numeric_limits<double>::infinity();
    int last = -1;
    for (const int r : members) {
      if (impl_->place(r).kind == last) continue;
      last = impl_->place(r).kind;
      double all = 0;
      for (const double b : impl_->kinds[static_cast<std::size_t>(last)].bundle) all += b;
      least = std::min(least, all / concurrent_per_node);
    }
    shape.network_bandwidth = std::min(shape.network_bandwidth, BytesPerSecond(least));
  }
  impl_->finish(shape);
  return shape;
}

// Ranks `first` + i * inner.stride + j * outer.stride, written in one way each.
namespace {
struct Strided {
  int stride = 0, extent = 1;
};
GroupMemo::Key digits_key(int first, Strided inner, Strided outer) {
  if (inner.extent == 1) std::swap(inner, outer);
  if (outer.extent > 1 && outer.stride < inner.stride) std::swap(inner, outer);
  if (outer.extent > 1 && outer.stride == inner.stride * inner.extent) {
    inner.extent *= outer.extent;
    outer.extent = 1;
  }
  if (inner.extent == 1) inner.stride = 0;
  if (outer.extent == 1) outer.stride = 0;
  return {GroupMemo::kDigits, first, inner.stride, inner.extent, outer.stride, outer.extent};
}

// Of it, what lies in one block of `period` ranks; 0 where its blocks are not alike.
int extent_in_block(const Strided& digit, int period) {
  const int end = digit.stride * digit.extent;
  if (digit.extent == 1 || digit.stride % period == 0) return 1;
  if (period % end == 0) return digit.extent;
  return period % digit.stride == 0 && end % period == 0 ? period / digit.stride : 0;
}
}  // namespace

// A group of ranks, or of that many blocks like theirs, while others of its kind in the first one's node use its NICs as
// well.
GroupShape Topology::beside_others(std::vector<int>& members, int repeats) const {
  int node_gpus = 0, in_node = 0;
  while (node_gpus < ranks() && node_of(node_gpus) == node_of(0)) ++node_gpus;
  for (const int rank : members) in_node += node_of(rank) == node_of(members.front()) ? 1 : 0;
  std::ranges::sort(members);
  SEXTANT_CHECK(members.back() < ranks(), "no such rank");
  return repeated_group(members, std::max(1, node_gpus / in_node), repeats);
}

GroupShape Topology::queued(GroupShape shape) const {
  const FabricSpec& fabric = impl_->spec.fabric;
  if (shape.nodes <= 1) return shape;
  shape.queued_bandwidth = fabric.congestion;
  shape.queued_latency = fabric.queued_latency;
  return shape;
}

GroupShape Topology::replica_group(const RankGrid& grid, int stage) const {
  return queued(group(grid, {Axis::cp, Axis::dp}, stage));
}

Topology::ShardGroups Topology::shard_groups(const RankGrid& grid, int stage, int shards) const {
  const ShardGroups groups = groups_of_shards(grid, stage, shards);
  return {queued(groups.shard), queued(groups.replica)};
}

Topology::ShardGroups Topology::groups_of_shards(const RankGrid& grid, int stage, int shards) const {
  RankCoord origin;
  origin.pp = stage % stage_period(grid);
  const int first = grid.rank(origin);
  const Strided cp{grid.stride(Axis::cp), grid.extent(Axis::cp)},
      dp{grid.stride(Axis::dp), grid.extent(Axis::dp)};
  // Without defects the first groups stand for all; many layouts share them.
  if (impl_->uniform && (cp.extent % shards == 0 || shards % cp.extent == 0)) {
    const int of_cp = std::min(shards, cp.extent), of_dp = shards / of_cp;
    const auto group = [&](const Strided& inner, const Strided& outer) {
      return impl_->memo.of(digits_key(first, inner, outer), [&] {
        SEXTANT_CHECK(first + inner.stride * (inner.extent - 1) + outer.stride * (outer.extent - 1) < ranks(),
                      "no such rank");
        int inner_n = extent_in_block(inner, impl_->period), outer_n = extent_in_block(outer, impl_->period);
        if (inner_n == 0 || outer_n == 0) {
          inner_n = inner.extent;
          outer_n = outer.extent;
        }
        std::vector<int> members;
        for (int j = 0; j < outer_n; ++j)
          for (int i = 0; i < inner_n; ++i) members.push_back(first + i * inner.stride + j * outer.stride);
        return GroupMemo::Groups{beside_others(members, inner.extent / inner_n * (outer.extent / outer_n))};
      })[0];
    };
    return {group({cp.stride, of_cp}, {dp.stride, of_dp}),
            group({cp.stride * of_cp, cp.extent / of_cp}, {dp.stride * of_dp, dp.extent / of_dp})};
  }
  const GroupMemo::Key key{
      GroupMemo::kShards,   cp.stride, cp.extent, dp.stride, dp.extent, shards, first, grid.stride(Axis::tp),
      grid.extent(Axis::tp)};
  const GroupMemo::Groups groups = impl_->memo.of(key, [&] {
    const auto n = static_cast<std::size_t>(shards);
    std::vector<int> replicas, members;
    const auto strided = [&](std::size_t from, std::size_t count, std::size_t stride) {
      members.clear();
      for (std::size_t i = 0; i < count; ++i) members.push_back(replicas[from + i * stride]);
      return beside_others(members, 1);
    };
    replicas = grid.group(origin, {Axis::cp, Axis::dp});
    GroupMemo::Groups found{strided(0, n, 1), strided(0, replicas.size() / n, n)};
    if (impl_->uniform) return found;
    for (; origin.tp < grid.extent(Axis::tp); ++origin.tp) {
      replicas = grid.group(origin, {Axis::cp, Axis::dp});
      for (std::size_t from = 0; from < replicas.size(); from += n) worsen(found[0], strided(from, n, 1));
      for (std::size_t from = 0; from < n; ++from) worsen(found[1], strided(from, replicas.size() / n, n));
    }
    for (GroupShape& shape : found) impl_->finish(shape);
    return found;
  });
  return {groups[0], groups[1]};
}

GroupShape Topology::stage_link(const RankGrid& grid, int stage) const {
  const int stages = grid.extent(Axis::pp);
  if (stages == 1) return {};
  SEXTANT_CHECK(stage >= 0 && stage < stages, "no such stage");
  if (!impl_->uniform) return slowest_stage_link(grid, stage);
  const bool wrap = stage == stages - 1;
  const int world = grid.extent(Axis::tp) * grid.extent(Axis::cp) * grid.extent(Axis::dp) * stages;
  const int period = stage_period(grid), here = wrap ? -1 : stage % period;
  // From node to node all pairs are alike, where leaves do not matter.
  const GroupMemo::Key key =
      period == 1 && !impl_->leaves_matter()
          ? GroupMemo::Key{GroupMemo::kNext, -1, -1, -1, here}
          : GroupMemo::Key{GroupMemo::kNext, world, stages, grid.stride(Axis::pp), here};
  return impl_->memo.of(key, [&] { return GroupMemo::Groups{slowest_stage_link(grid, stage)}; })[0];
}

GroupShape Topology::slowest_stage_link(const RankGrid& grid, int stage) const {
  const int stages = grid.extent(Axis::pp), stride = grid.stride(Axis::pp);
  GroupShape worst;
  const bool wrap = stage == stages - 1;
  const int step = wrap ? -stride * (stages - 1) : stride;
  const RankPattern pattern(grid, {}, stage, impl_->uniform ? impl_->period : 0);
  SEXTANT_CHECK(pattern.world() <= ranks(), "the plan has more ranks than the cluster");
  bool first = true;
  for (const int from : pattern.stage_ranks()) {
    const RankPlace &a = impl_->place(from), &b = impl_->place(from + step);
    GroupShape one;
    one.size = 2;
    if (a.domain == b.domain) {
      const auto& kind = impl_->kinds[static_cast<std::size_t>(a.kind)];
      const auto slots = kind.port.size();
      one.ranks_per_node = 2;
      one.node_bandwidth = BytesPerSecond(
          kind.pair[static_cast<std::size_t>(a.slot) * slots + static_cast<std::size_t>(b.slot)]);
    } else {
      one.nodes = 2;
      one.network_bandwidth =
          BytesPerSecond(impl_->pair_rate(from, from + step, stride, stages, pattern.world(), wrap));
    }
    first ? void(worst = one) : worsen(worst, one);
    first = false;
  }
  impl_->finish(worst);
  return worst;
}

int Topology::stage_period(const RankGrid& grid) const {
  const int stages = grid.extent(Axis::pp), stride = grid.stride(Axis::pp);
  if (!impl_->uniform) return stages;
  if (stride % impl_->period == 0) return 1;
  return repeats_with(grid, impl_->period) ? std::min(stages, impl_->period / stride) : stages;
}

AxisOrder Topology::plain_order(const RankDegrees& ranks) const {
  const RankGrid grid(ranks);
  AxisOrder order = ranks.order;
  if (!impl_->uniform || impl_->leaves_matter() || !repeats_with(grid, impl_->period)) return order;
  const auto outer = std::stable_partition(order.begin(), order.end(), [&](Axis axis) {
    return grid.extent(axis) > 1 && grid.stride(axis) < impl_->period;
  });
  std::sort(outer, order.end());
  return order;
}

BytesPerSecond Topology::bisection() const {
  using enum VertexKind;
  const ClusterSpec& spec = impl_->spec;
  constexpr int kDrawnWhole = 512;  // GPUs up to which every link takes part in the cut
  if (ranks() < 2) return {};
  // Halves by NVLink domains, or by GPUs when there is only one NVLink domain.
  const int half_domains = impl_->parts.domains / 2;
  if (half_domains > 0 && ranks() > kDrawnWhole)
    return network_cut(spec, half_domains * spec.node.domain_nodes);
  const ClusterGraph graph(spec);
  std::vector<ClusterVertex> left, right;
  for (int r = 0; r < ranks(); ++r) {
    const RankPlace& s = impl_->place(r);
    const bool is_left = half_domains > 0 ? s.domain < half_domains : r < ranks() / 2;
    (is_left ? left : right).push_back({gpu, s.node, s.slot % spec.node.gpus});
  }
  return graph.min_cut(left, right);
}

std::string Topology::dot() const { return ClusterGraph(impl_->spec).dot(); }

}  // namespace sextant

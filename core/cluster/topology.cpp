#include "core/cluster/topology.hpp"

#include <algorithm>
#include <limits>
#include <tuple>
#include <vector>

#include "core/cluster/cluster_graph.hpp"
#include "core/cluster/group_memo.hpp"
#include "core/cluster/rank_pattern.hpp"
#include "core/cluster/rank_placement.hpp"

namespace sextant {

namespace {
constexpr double kInfinite = std::numeric_limits<double>::infinity();

// Who shares what while all groups of one kind are active.
struct Sharing {
  int first_bundle = 0, first_domain = 0;
  std::vector<int> nic_users;     // by bundle: ranks whose group leaves the NVLink domain
  std::vector<int> uplink_users;  // by bundle: groups that leave their PCIe switch inside the NVLink domain
  std::vector<int> memory_users;  // by NVLink domain: ranks that talk inside the NVLink domain
};
}  // namespace

struct Topology::Impl : RankPlacement {
  using RankPlacement::RankPlacement;
  mutable GroupMemo memo;
  Sharing sharing(const RankPattern&) const;
  double inside(std::span<const int> members, const Sharing*) const;
  double outside(std::span<const int> members, const Sharing*, bool leaves_leaf) const;
  GroupShape shape(std::span<const int> members, bool leaves_domain, bool leaves_leaf, const Sharing*) const;
  double pair_rate(int from, int to, int stage_stride, int stages, int world, bool wrap) const;
};

// Counts over every group of the pattern, all of them active at once.
Sharing Topology::Impl::sharing(const RankPattern& pattern) const {
  Sharing use;
  const int last = pattern.block() - 1;
  use.nic_users.assign(static_cast<std::size_t>(seat(last).bundle) + 1, 0);
  const bool pcie = spec.node.link == NodeLinkKind::pcie,
             shared = spec.node.link == NodeLinkKind::shared_memory;
  if (pcie) use.uplink_users.assign(use.nic_users.size(), 0);
  if (shared) use.memory_users.assign(static_cast<std::size_t>(seat(last).domain) + 1, 0);
  std::vector<int> members;
  for (const int base : pattern.bases()) {
    pattern.members(base, members);
    if (pattern.continues() || seat(members.front()).domain != seat(members.back()).domain)
      for (const int r : members) ++use.nic_users[static_cast<std::size_t>(seat(r).bundle)];
    if (!pcie && !shared) continue;
    for (auto run = members.begin(); run != members.end();) {
      const int domain = seat(*run).domain;
      const auto end = std::find_if(run, members.end(), [&](int r) { return seat(r).domain != domain; });
      if (shared && end - run > 1)
        use.memory_users[static_cast<std::size_t>(domain)] += static_cast<int>(end - run);
      if (pcie && seat(*run).bundle != seat(*(end - 1)).bundle)
        for (int previous = -1; run != end; ++run)
          if (const int b = seat(*run).bundle; b != previous)
            ++use.uplink_users[static_cast<std::size_t>(b)], previous = b;
      run = end;
    }
  }
  return use;
}

// What one rank of `members`, all in one NVLink domain, gets of its links to the others.
double Topology::Impl::inside(std::span<const int> members, const Sharing* use) const {
  double rate = kInfinite;
  if (spec.node.link == NodeLinkKind::nvlink_mesh) {
    const std::vector<double>& rings = spec.node.link_rings;
    if (static_cast<int>(rings.size()) == spec.node.gpus) {
      for (const int r : members) rate = std::min(rate, spec.node.link_bandwidth.v * state(r).node_link);
      return rate * rings[members.size() - 1] / *std::max_element(rings.begin(), rings.end());
    }
    const double edge = spec.node.link_bandwidth.v / (spec.node.gpus - 1);
    for (const int a : members) {
      double sum = 0;
      for (const int b : members)
        if (a != b) sum += edge * std::min(state(a).node_link, state(b).node_link);
      rate = std::min(rate, sum);
    }
    return rate;
  }
  for (const int r : members) rate = std::min(rate, port(r));
  if (spec.node.link == NodeLinkKind::shared_memory) {
    const int users = use ? use->memory_users[static_cast<std::size_t>(seat(members[0]).domain)] : 0;
    rate =
        std::min(rate, spec.node.host_memory_bandwidth.v / std::max(users, static_cast<int>(members.size())));
  }
  if (spec.node.link == NodeLinkKind::pcie && seat(members.front()).bundle != seat(members.back()).bundle)
    for (const int r : members) {
      const int users = use ? use->uplink_users[static_cast<std::size_t>(seat(r).bundle)] : 1;
      rate = std::min(rate, spec.device.host_link.v / std::max(users, 1));
    }
  return rate;
}

// What `members`, all in one NVLink domain, get together of its NICs: each uses the NICs on its own PCIe switch. Beyond the leaf
// no more than its uplinks leave of them.
double Topology::Impl::outside(std::span<const int> members, const Sharing* use, bool leaves_leaf) const {
  double sum = 0;
  for (std::size_t i = 0; i < members.size();) {
    const auto bundle = static_cast<std::size_t>(seat(members[i]).bundle);
    std::size_t end = i;
    while (end < members.size() && seat(members[end]).bundle == static_cast<int>(bundle)) ++end;
    const auto mine = static_cast<double>(end - i);
    const double users = use ? std::max(use->nic_users[bundle], 1) : mine;
    double share = bundle_rate[bundle] * (mine / users);
    if (spec.node.link != NodeLinkKind::shared_memory)
      share = std::min(share, mine * spec.device.host_link.v);
    sum += leaves_leaf ? share * uplink_factor(seat(members[i])) : share;
    i = end;
  }
  return sum;
}

// `members` ascend; those of one NVLink domain stand together.
GroupShape Topology::Impl::shape(std::span<const int> members, bool leaves_domain, bool leaves_leaf,
                                 const Sharing* use) const {
  GroupShape out;
  out.size = static_cast<int>(members.size());
  out.nodes = 0;
  double node_rate = kInfinite, network_rate = kInfinite;
  leaves_domain = leaves_domain || seat(members.front()).domain != seat(members.back()).domain;
  leaves_leaf = leaves_leaf || seat(members.front()).leaf != seat(members.back()).leaf;
  for (std::size_t i = 0; i < members.size();) {
    const int domain = seat(members[i]).domain;
    std::size_t end = i;
    while (end < members.size() && seat(members[end]).domain == domain) ++end;
    const auto run = members.subspan(i, end - i);
    if (run.size() > 1) node_rate = std::min(node_rate, inside(run, use));
    if (leaves_domain) network_rate = std::min(network_rate, outside(run, use, leaves_leaf));
    out.ranks_per_node = std::max(out.ranks_per_node, static_cast<int>(run.size()));
    ++out.nodes;
    i = end;
  }
  // A ring does not know the leaves: all its traffic may have to take the uplinks, of which it gets a fair
  // share.
  if (leaves_leaf && leaves_matter()) network_rate /= spec.fabric.oversubscription;
  out.node_bandwidth = BytesPerSecond(node_rate == kInfinite ? 0 : node_rate);
  out.network_bandwidth = BytesPerSecond(network_rate == kInfinite ? 0 : network_rate);
  return out;
}

namespace {
// Each field at its worst over the groups: the widest spread, then the narrowest links.
void worsen(GroupShape& worst, const GroupShape& other) {
  const auto narrower = [](BytesPerSecond a, BytesPerSecond b) {
    return a.v == 0 ? b : b.v == 0 ? a : std::min(a, b);
  };
  if (std::tuple(other.nodes, -other.ranks_per_node) > std::tuple(worst.nodes, -worst.ranks_per_node))
    worst.nodes = other.nodes, worst.ranks_per_node = other.ranks_per_node;
  worst.node_bandwidth = narrower(worst.node_bandwidth, other.node_bandwidth);
  worst.network_bandwidth = narrower(worst.network_bandwidth, other.network_bandwidth);
}

void finish(GroupShape& shape, const ClusterSpec& spec) {
  if (shape.node_bandwidth.v > 0) shape.node_latency = spec.node.link_latency;
  if (shape.nodes > 1) {
    shape.network_latency = spec.fabric.latency, shape.network_start = spec.fabric.start;
    shape.in_network = spec.fabric.in_network;
    shape.reduces_inside = spec.fabric.reduces_inside || spec.fabric.in_network;
  }
  shape.switched = spec.node.link == NodeLinkKind::nvswitch;
  shape.in_switch = shape.ranks_per_node > 1 && spec.node.nvls;
}
}  // namespace

Topology::Topology(const ClusterSpec& spec) : impl_(std::make_unique<Impl>(spec)) {}
Topology::~Topology() = default;
Topology::Topology(Topology&&) noexcept = default;
Topology& Topology::operator=(Topology&&) noexcept = default;

int Topology::ranks() const { return static_cast<int>(impl_->seats.size()); }
int Topology::node_of(int rank) const { return impl_->seats.at(static_cast<std::size_t>(rank)).node; }
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
    const Sharing use = impl_->sharing(pattern);
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
  finish(worst, impl_->spec);
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
  shape.size *= repeats, shape.nodes *= repeats;
  if (shape.network_bandwidth.v > 0) {  // no more than an equal part of all the NICs of an NVLink domain
    double least = kInfinite;
    int last = -1;
    for (const int r : members) {
      if (impl_->seat(r).kind == last) continue;
      last = impl_->seat(r).kind;
      double all = 0;
      for (const double b : impl_->kinds[static_cast<std::size_t>(last)].bundle) all += b;
      least = std::min(least, all / concurrent_per_node);
    }
    shape.network_bandwidth = std::min(shape.network_bandwidth, BytesPerSecond(least));
  }
  finish(shape, impl_->spec);
  return shape;
}

// The rate of one stage-to-stage transfer while every pair of neighbouring stages transfers in this
// direction.
double Topology::Impl::pair_rate(int from, int to, int stride, int stages, int world, bool wrap) const {
  const auto next = [&](int r,
                        int step) {  // the rank one stage on (step = 1) or back (-1); -1 if there is none
    const int here = r / stride % stages, there = here + step;
    if (there >= 0 && there < stages) return r + step * stride;
    return wrap ? r - step * stride * (stages - 1) : -1;
  };
  const auto users = [&](int bundle, int step) {
    int n = 0;
    const auto b = static_cast<std::size_t>(bundle);
    for (int r = bundle_first[b]; r < std::min(bundle_first[b + 1], world); ++r)
      if (const int peer = next(r, step); peer >= 0 && seat(peer).domain != seat(r).domain) ++n;
    return n;
  };
  const auto end = [&](int rank, int step) {
    const int b = seat(rank).bundle;
    return std::min(bundle_rate[static_cast<std::size_t>(b)] / users(b, step),
                    spec.node.link == NodeLinkKind::shared_memory ? kInfinite : spec.device.host_link.v);
  };
  double rate = std::min(end(from, 1), end(to, -1));
  if (leaves_matter() && seat(from).leaf != seat(to).leaf) {
    // The pairs of one rail that leave (step 1) or enter (-1) a rank's leaf share its uplink.
    const auto crossing = [&](int rank, int step) {
      const auto first = std::ranges::lower_bound(seats, seat(rank).leaf, {}, &Seat::leaf);
      int n = 0;
      for (auto r = static_cast<int>(first - seats.begin()); r < world && seat(r).leaf <= seat(rank).leaf;
           ++r) {
        const bool same_rail =
            !spec.fabric.rails || (seat(r).bundle - seat(rank).bundle) % parts.bundles == 0;
        if (const int peer = next(r, step); same_rail && peer >= 0 && seat(peer).leaf != seat(r).leaf) ++n;
      }
      return std::max(n, 1);
    };
    const double uplink = parts.bundle.v * (spec.fabric.rails ? 1 : parts.bundles) * spec.fabric.leaf_nodes /
                          spec.fabric.oversubscription;
    rate = std::min(rate, uplink * uplink_factor(seat(from)) / crossing(from, 1));
    // Where nothing is degraded, a leaf is entered by as many as leave the one before it.
    if (const double entry = uplink_factor(seat(to)); entry < 1)
      rate = std::min(rate, uplink * entry / crossing(to, -1));
  }
  return rate;
}

// Ranks `first` + i * inner.stride + j * outer.stride, written in one way each.
namespace {
struct Strided {
  int stride = 0, extent = 1;
};
GroupMemo::Key digits_key(int first, Strided inner, Strided outer) {
  if (inner.extent == 1) std::swap(inner, outer);
  if (outer.extent > 1 && outer.stride < inner.stride) std::swap(inner, outer);
  if (outer.extent > 1 && outer.stride == inner.stride * inner.extent)
    inner.extent *= outer.extent, outer.extent = 1;
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

Topology::ShardGroups Topology::shard_groups(const RankGrid& grid, int stage, int shards) const {
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
        if (inner_n == 0 || outer_n == 0) inner_n = inner.extent, outer_n = outer.extent;
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
    for (GroupShape& shape : found) finish(shape, impl_->spec);
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
    const Seat &a = impl_->seat(from), &b = impl_->seat(from + step);
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
  finish(worst, impl_->spec);
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
    const Seat& s = impl_->seat(r);
    const bool is_left = half_domains > 0 ? s.domain < half_domains : r < ranks() / 2;
    (is_left ? left : right).push_back({gpu, s.node, s.slot % spec.node.gpus});
  }
  return graph.min_cut(left, right);
}

std::string Topology::dot() const { return ClusterGraph(impl_->spec).dot(); }

}  // namespace sextant

#include "core/cluster/group_links.hpp"

#include <algorithm>
#include <limits>
#include <tuple>

namespace sextant {

namespace {
constexpr double kInfinite = std::numeric_limits<double>::infinity();
}  // namespace

LinkSharing GroupLinks::sharing(const RankPattern& pattern) const {
  LinkSharing use;
  const int last = pattern.block() - 1;
  use.nic_users.assign(static_cast<std::size_t>(place(last).bundle) + 1, 0);
  const bool pcie = spec.node.link == NodeLinkKind::pcie,
             shared = spec.node.link == NodeLinkKind::shared_memory;
  if (pcie) use.uplink_users.assign(use.nic_users.size(), 0);
  if (shared) use.memory_users.assign(static_cast<std::size_t>(place(last).domain) + 1, 0);
  std::vector<int> members;
  for (const int base : pattern.bases()) {
    pattern.members(base, members);
    if (pattern.continues() || place(members.front()).domain != place(members.back()).domain)
      for (const int r : members) ++use.nic_users[static_cast<std::size_t>(place(r).bundle)];
    if (!pcie && !shared) continue;
    for (auto run = members.begin(); run != members.end();) {
      const int domain = place(*run).domain;
      const auto end = std::find_if(run, members.end(), [&](int r) { return place(r).domain != domain; });
      if (shared && end - run > 1)
        use.memory_users[static_cast<std::size_t>(domain)] += static_cast<int>(end - run);
      if (pcie && place(*run).bundle != place(*(end - 1)).bundle)
        for (int previous = -1; run != end; ++run)
          if (const int b = place(*run).bundle; b != previous) {
            ++use.uplink_users[static_cast<std::size_t>(b)];
            previous = b;
          }
      run = end;
    }
  }
  return use;
}

// What one rank of `members`, all in one NVLink domain, gets of its links to the others.
double GroupLinks::inside(std::span<const int> members, const LinkSharing* use) const {
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
    const int users = use ? use->memory_users[static_cast<std::size_t>(place(members[0]).domain)] : 0;
    rate =
        std::min(rate, spec.node.host_memory_bandwidth.v / std::max(users, static_cast<int>(members.size())));
  }
  if (spec.node.link == NodeLinkKind::pcie && place(members.front()).bundle != place(members.back()).bundle)
    for (const int r : members) {
      const int users = use ? use->uplink_users[static_cast<std::size_t>(place(r).bundle)] : 1;
      rate = std::min(rate, spec.device.host_link.v / std::max(users, 1));
    }
  return rate;
}

// What `members`, all in one NVLink domain, get together of its NICs: each uses the NICs on its own PCIe switch. Beyond the leaf
// no more than its uplinks leave of them.
double GroupLinks::outside(std::span<const int> members, const LinkSharing* use, bool leaves_leaf) const {
  double sum = 0;
  for (std::size_t i = 0; i < members.size();) {
    const auto bundle = static_cast<std::size_t>(place(members[i]).bundle);
    std::size_t end = i;
    while (end < members.size() && place(members[end]).bundle == static_cast<int>(bundle)) ++end;
    const auto mine = static_cast<double>(end - i);
    const double users = use ? std::max(use->nic_users[bundle], 1) : mine;
    double share = bundle_rate[bundle] * (mine / users);
    if (spec.node.link != NodeLinkKind::shared_memory)
      share = std::min(share, mine * spec.device.host_link.v);
    sum += leaves_leaf ? share * uplink_factor(place(members[i])) : share;
    i = end;
  }
  return sum;
}

GroupShape GroupLinks::shape(std::span<const int> members, bool leaves_domain, bool leaves_leaf,
                             const LinkSharing* use) const {
  GroupShape out;
  out.size = static_cast<int>(members.size());
  out.nodes = 0;
  double node_rate = kInfinite, network_rate = kInfinite;
  leaves_domain = leaves_domain || place(members.front()).domain != place(members.back()).domain;
  leaves_leaf = leaves_leaf || place(members.front()).leaf != place(members.back()).leaf;
  for (std::size_t i = 0; i < members.size();) {
    const int domain = place(members[i]).domain;
    std::size_t end = i;
    while (end < members.size() && place(members[end]).domain == domain) ++end;
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

void worsen(GroupShape& worst, const GroupShape& other) {
  const auto narrower = [](BytesPerSecond a, BytesPerSecond b) {
    return a.v == 0 ? b : b.v == 0 ? a : std::min(a, b);
  };
  if (std::tuple(other.nodes, -other.ranks_per_node) > std::tuple(worst.nodes, -worst.ranks_per_node)) {
    worst.nodes = other.nodes;
    worst.ranks_per_node = other.ranks_per_node;
  }
  worst.node_bandwidth = narrower(worst.node_bandwidth, other.node_bandwidth);
  worst.network_bandwidth = narrower(worst.network_bandwidth, other.network_bandwidth);
}

void GroupLinks::finish(GroupShape& shape) const {
  if (shape.node_bandwidth.v > 0) shape.node_latency = spec.node.link_latency;
  if (shape.nodes > 1) {
    shape.network_latency = spec.fabric.latency;
    shape.network_start = spec.fabric.start;
    shape.in_network = spec.fabric.in_network;
    shape.reduces_inside = spec.fabric.reduces_inside || spec.fabric.in_network;
  }
  shape.switched = spec.node.link == NodeLinkKind::nvswitch;
  shape.in_switch = shape.ranks_per_node > 1 && spec.node.nvls;
}

double GroupLinks::pair_rate(int from, int to, int stride, int stages, int world, bool wrap) const {
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
      if (const int peer = next(r, step); peer >= 0 && place(peer).domain != place(r).domain) ++n;
    return n;
  };
  const auto end = [&](int rank, int step) {
    const int b = place(rank).bundle;
    return std::min(bundle_rate[static_cast<std::size_t>(b)] / users(b, step),
                    spec.node.link == NodeLinkKind::shared_memory ? kInfinite : spec.device.host_link.v);
  };
  double rate = std::min(end(from, 1), end(to, -1));
  if (leaves_matter() && place(from).leaf != place(to).leaf) {
    // The pairs of one rail that leave (step 1) or enter (-1) a rank's leaf share its uplink.
    const auto crossing = [&](int rank, int step) {
      const auto first = std::ranges::lower_bound(places, place(rank).leaf, {}, &RankPlace::leaf);
      int n = 0;
      for (auto r = static_cast<int>(first - places.begin()); r < world && place(r).leaf <= place(rank).leaf;
           ++r) {
        const bool same_rail =
            !spec.fabric.rails || (place(r).bundle - place(rank).bundle) % parts.bundles == 0;
        if (const int peer = next(r, step); same_rail && peer >= 0 && place(peer).leaf != place(r).leaf) ++n;
      }
      return std::max(n, 1);
    };
    const double uplink = parts.bundle.v * (spec.fabric.rails ? 1 : parts.bundles) * spec.fabric.leaf_nodes /
                          spec.fabric.oversubscription;
    rate = std::min(rate, uplink * uplink_factor(place(from)) / crossing(from, 1));
    // Where nothing is degraded, a leaf is entered by as many as leave the one before it.
    if (const double entry = uplink_factor(place(to)); entry < 1)
      rate = std::min(rate, uplink * entry / crossing(to, -1));
  }
  return rate;
}

}  // namespace sextant

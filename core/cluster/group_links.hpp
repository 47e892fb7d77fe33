// What links do the ranks of one group get? NVLink, PCIe switches, NICs and the uplinks of leaves, shared with the groups that
// are active at the same time. Answers for the groups it is given; which groups a plan forms is core/cluster/topology.cpp's.
// Internal to core/cluster.
#pragma once

#include <span>
#include <vector>

#include "core/cluster/group_shape.hpp"
#include "core/cluster/rank_pattern.hpp"
#include "core/cluster/rank_placement.hpp"

namespace sextant {

// Who shares what while all groups of one kind are active.
struct LinkSharing {
  std::vector<int> nic_users;     // by bundle: ranks whose group leaves the NVLink domain
  std::vector<int> uplink_users;  // by bundle: groups that leave their PCIe switch inside the NVLink domain
  std::vector<int> memory_users;  // by NVLink domain: ranks that talk inside the NVLink domain
};

struct GroupLinks : RankPlacement {
  using RankPlacement::RankPlacement;

  // Counts over every group of the pattern, all of them active at once.
  LinkSharing sharing(const RankPattern&) const;
  // Rates of one group; alone where no sharing is given. `members` ascend; those of one NVLink domain stand together.
  GroupShape shape(std::span<const int> members, bool leaves_domain, bool leaves_leaf,
                   const LinkSharing*) const;
  // The rate of one stage-to-stage transfer, bytes/s, while every pair of neighbouring stages transfers in this direction.
  double pair_rate(int from, int to, int stage_stride, int stages, int world, bool wrap) const;
  // Latencies, and what switches can do.
  void finish(GroupShape&) const;

 private:
  double inside(std::span<const int> members, const LinkSharing*) const;
  double outside(std::span<const int> members, const LinkSharing*, bool leaves_leaf) const;
};

// Each field at its worst over the groups: the widest spread, then the narrowest links.
void worsen(GroupShape& worst, const GroupShape& other);

}  // namespace sextant

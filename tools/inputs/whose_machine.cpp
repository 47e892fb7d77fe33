#include "tools/inputs/whose_machine.hpp"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/error.hpp"
#include "core/cluster/device_words.hpp"

namespace sextant {

namespace {

constexpr const char* kAnotherMachine =
    "give the cluster that it was measured on; --allow-other-device takes it all the same";

// "NVIDIA " is the maker, "Graphics Device" no product.
std::string_view product_of(std::string_view device) {
  for (const std::string_view maker : kDeviceMakers)
    if (device.starts_with(maker)) return device.substr(maker.size());
  return device;
}

void check_device(const Origin& o, const ClusterSpec& cluster, std::vector<Problem>& problems,
                  std::vector<std::string>& notes) {
  const double has = gib(cluster.device.memory);
  if (o.device_GiB > 0 && names_device(o.device, cluster.device) && std::abs(o.device_GiB / has - 1) > 0.04)
    problems.push_back({o.file, "device", fmt::format("{} with {:.1f} GiB", o.device, o.device_GiB),
                        fmt::format("{:.1f} GiB of {}, as --cluster states", has, cluster.device.name),
                        kAnotherMachine});
  std::vector<std::string> named = o.device.empty() ? o.printed.devices : std::vector<std::string>{o.device};
  if (!o.device.empty() && !names_product(product_of(o.device)) && !names_device(o.device, cluster.device)) {
    notes.push_back(fmt::format("{}: its device is called {}, which names no product; taken as {}", o.file,
                                o.device, cluster.device.name));
    return;
  }
  if (named.empty() ||
      std::ranges::any_of(named, [&](const std::string& d) { return names_device(d, cluster.device); }))
    return;
  problems.push_back({o.file, "device", fmt::format("{}", fmt::join(named, ", ")),
                      fmt::format("{}, as --cluster states", cluster.device.name), kAnotherMachine});
}

// `ranks_of_node` are listed by a table, which may have been made with part of a node; a log's layout lies on whole nodes.
void check_node(const Origin& o, const ClusterSpec& cluster, std::vector<Problem>& problems,
                std::vector<std::string>& notes) {
  const int node = cluster.node.gpus;
  const int most = std::max(o.ranks_of_node, o.printed.gpus_per_node);
  const bool whole_job = o.printed.of_ranks == 0 || o.printed.of_ranks == o.ranks;
  const bool smaller = most > 0 && most < node && (o.nodes > 1 || o.ranks_of_node > 0);
  if (most > node || (smaller && o.ranks_of_node == 0 && whole_job))
    problems.push_back(
        {o.file, "ranks", fmt::format("{} on one node", most),
         fmt::format("{}{} of a node, as --cluster states", most > node ? "at most " : "", node),
         kAnotherMachine});
  else if (smaller && o.ranks_of_node > 0)
    notes.push_back(
        fmt::format("{}: {} rank{} on {}, taken as {} of the {} GPUs of a node of --cluster; if its nodes "
                    "have {}, that is --cluster {}x{}x{}",
                    o.file, most, most == 1 ? "" : "s",
                    o.nodes == 1 ? "one node" : fmt::format("each of {} nodes", o.nodes), most, node, most,
                    o.nodes, most, cluster.device.name));
}

void check_network(const Origin& o, const ClusterSpec& cluster, std::vector<Problem>& problems) {
  const std::string &said = o.printed.network, &kind = cluster.fabric.kind;
  if (o.nodes < 2 || said.empty()) return;
  // Omni-Path's hosts show verbs too.
  if (said != kind && !(kind == "omnipath" && said == "infiniband"))
    problems.push_back(
        {o.file, "network", fmt::format("{}, as NCCL's lines report", said),
         fmt::format("{} ({}), as --cluster states", kind, cluster.fabric.name),
         "--cluster NxGxDEVICE@FABRIC names another (sextant presets fabrics); --allow-other-device "
         "takes it all the same"});
  else if (o.printed.nics > 0 && o.printed.nics < cluster.node.nics)
    problems.push_back(
        {o.file, "network",
         fmt::format("{} NIC{} on a node, as NCCL's lines report", o.printed.nics,
                     o.printed.nics == 1 ? "" : "s"),
         fmt::format("{} ({}), as --cluster states", cluster.node.nics, cluster.fabric.name),
         "--cluster NxGxDEVICE@FABRIC names another (sextant presets fabrics), or NCCL_IB_HCA left some "
         "out; --allow-other-device takes it all the same"});
}

}  // namespace

void require_machine(const Origin& origin, const ClusterSpec& cluster, bool any,
                     std::vector<std::string>& notes) {
  std::vector<Problem> problems;
  check_device(origin, cluster, problems, notes);
  check_node(origin, cluster, problems, notes);
  check_network(origin, cluster, problems);
  if (!problems.empty() && !any) throw ConfigError(std::move(problems));
}

}  // namespace sextant

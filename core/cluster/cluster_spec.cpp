#include "core/cluster/cluster_spec.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/annotated.hpp"
#include "core/base/json_io.hpp"
#include "core/cluster/cluster_limits.hpp"

namespace sextant {

using nlohmann::json;

namespace {

constexpr std::array<std::string_view, 4> kLinkNames = {"nvswitch", "nvlink_mesh", "pcie", "shared_memory"};
constexpr std::array<std::string_view, 6> kFabricKinds = {"infiniband", "roce",     "efa",
                                                          "omnipath",   "ethernet", "none"};
constexpr int kMaxNics = 1024;

// Lawful values in the unit of their key. Upper bounds are far above anything built: they catch slips of
// unit.
constexpr Range positive(double most) { return {.least = 0, .most = most, .least_excluded = true}; }
constexpr Range from_zero(double most) { return {.least = 0, .most = most}; }
constexpr Range kFactor = positive(1);

constexpr auto kDeviceFields = [](auto& io, auto& d) {
  io.required("name", d.name);
  io.required("generation", d.generation);
  io.required("memory_GiB", d.memory, positive(1e6));
  io.required("memory_bandwidth_GBps", d.memory_bandwidth, positive(1e6));
  io.required("peak_TFLOPS", d.peak, kDtypeNames, positive(1e6));
  io.required("multiprocessors", d.multiprocessors, between(1, 1e5));
  io.required("launch_overhead_us", d.launch_overhead, from_zero(1e6));
  io.required("host_link_GBps", d.host_link, positive(1e5));
  io.optional("power_W", d.power_W, from_zero(1e5));
  io.optional("power_limit_W", d.power_limit_W, from_zero(1e5));
  io.optional("clock_factor", d.clock_factor, kFactor);
  io.optional("price_usd_per_hour", d.price_usd_per_hour, from_zero(1e5));
};

constexpr auto kNodeFields = [](auto& io, auto& n) {
  io.required("gpus", n.gpus, between(1, kMaxGpusPerNode));
  io.required("link", n.link, kLinkNames);
  io.required("link_bandwidth_GBps", n.link_bandwidth, positive(1e5));
  io.required("link_latency_us", n.link_latency, from_zero(1e6));
  io.optional("link_rings", n.link_rings);
  io.optional("nvls", n.nvls);
  io.optional("domain_nodes", n.domain_nodes, between(1, 1024));
  io.required("nics", n.nics, between(0, kMaxNics));
  io.optional("nic_bandwidth_GBps", n.nic_bandwidth, from_zero(1e5));
  io.required("host_memory_GiB", n.host_memory, positive(1e7));
  io.required("host_memory_bandwidth_GBps", n.host_memory_bandwidth, positive(1e6));
};

constexpr auto kFabricFields = [](auto& io, auto& f) {
  io.required("name", f.name);
  io.required("kind", f.kind);
  io.optional("bandwidth_GBps", f.bandwidth, from_zero(1e6));
  io.required("efficiency", f.efficiency, kFactor);
  io.required("latency_us", f.latency, from_zero(1e6));
  io.optional("start_us", f.start, from_zero(1e6));
  io.optional("congestion_GBps", f.congestion, from_zero(1e6));
  io.optional("queued_latency_us", f.queued_latency, from_zero(1e6));
  io.optional("leaf_nodes", f.leaf_nodes, between(0, kMaxNodes));
  io.optional("oversubscription", f.oversubscription, between(1, 1000));
  io.optional("rails", f.rails);
  io.optional("in_network", f.in_network);
  io.optional("reduces_inside", f.reduces_inside);
};

constexpr auto kDefectFields = [](auto& io, auto& d) {
  io.optional("node", d.node, between(-1, kMaxNodes - 1));
  io.optional("gpu", d.gpu, between(-1, kMaxGpusPerNode - 1));
  io.optional("nic", d.nic, between(-1, kMaxNics - 1));
  io.optional("leaf", d.leaf, between(-1, kMaxNodes - 1));
  io.optional("compute_factor", d.compute_factor, kFactor);
  io.optional("node_link_factor", d.node_link_factor, kFactor);
  io.optional("network_factor", d.network_factor, kFactor);
  io.optional("missing", d.missing);
};

constexpr auto kJitterFields = [](auto& io, auto& j) {
  io.optional("compute_sigma", j.compute_sigma, from_zero(2));
  io.optional("network_sigma", j.network_sigma, from_zero(2));
};

constexpr auto kStorageFields = [](auto& io, auto& s) {
  io.optional("write_GBps", s.write, from_zero(1e7));
  io.optional("read_GBps", s.read, from_zero(1e7));
  io.optional("node_GBps", s.node, from_zero(1e6));
};

constexpr auto kFailureFields = [](auto& io, auto& f) {
  io.optional("node_mtbf_hours", f.node_mtbf_hours, from_zero(1e9));
  io.optional("restart_s", f.restart, from_zero(1e7));
};

constexpr auto kClusterFields = [](auto& io, auto& c) {
  io.optional("name", c.name);
  io.required("nodes", c.nodes, between(1, kMaxNodes));
  io.required("device", c.device);
  io.required("node", c.node);
  io.required("fabric", c.fabric);
  io.optional("defects", c.defects);
  io.optional("jitter", c.jitter);
  io.optional("storage", c.storage);
  io.optional("failures", c.failures);
};

template <class T, class Fields>
void read_annotated(const json& j, T& out, const Fields& fields) {
  read_object(plain_values(j), out, fields);
}

// JSON has no way to write NaN or infinity: a visitor that reports them and puts a lawful 1 in their place.
struct FiniteFilter {
  std::string prefix;
  std::vector<Problem>& problems;

  template <class T, class... Rules>
  void required(std::string_view key, T& value, const Rules&...) {
    visit(prefix + std::string(key), value);
  }
  template <class T, class... Rules>
  void optional(std::string_view key, T& value, const Rules&...) {
    visit(prefix + std::string(key), value);
  }

 private:
  template <class T>
  void visit(const std::string&, T&) {}  // texts, counts, switches
  void visit(const std::string& path, double& x) {
    if (std::isfinite(x)) return;
    problems.push_back({"", path, fmt::format("{}", x), "a finite number", ""});
    x = 1;
  }
  template <class Tag>
  void visit(const std::string& path, Quantity<Tag, double>& q) {
    visit(path, q.v);
  }
  void visit(const std::string& path, std::map<Dtype, FlopsPerSecond>& peak) {
    for (auto& [dtype, rate] : peak) visit(fmt::format("{}.{}", path, sextant::name(dtype)), rate);
  }
  void visit(const std::string& path, DeviceSpec& d) { nested(path, d, kDeviceFields); }
  void visit(const std::string& path, NodeSpec& n) { nested(path, n, kNodeFields); }
  void visit(const std::string& path, FabricSpec& f) { nested(path, f, kFabricFields); }
  void visit(const std::string& path, JitterSpec& j) { nested(path, j, kJitterFields); }
  void visit(const std::string& path, StorageSpec& s) { nested(path, s, kStorageFields); }
  void visit(const std::string& path, FailureSpec& f) { nested(path, f, kFailureFields); }
  void visit(const std::string& path, std::vector<Defect>& defects) {
    for (std::size_t i = 0; i < defects.size(); ++i)
      nested(fmt::format("{}[{}]", path, i), defects[i], kDefectFields);
  }
  template <class T, class Fields>
  void nested(const std::string& path, T& value, const Fields& fields) {
    FiniteFilter inner{path + ".", problems};
    fields(inner, value);
  }
};

// Ranges of a value that no file brought: written and read back, so that the reader's rules and words are the
// only ones.
void check_fields(ClusterSpec c, std::vector<Problem>& problems) {
  FiniteFilter filter{"", problems};
  kClusterFields(filter, c);
  try {
    const json j = c;
    ClusterSpec ignored;
    JsonReader reader(j);
    kClusterFields(reader, ignored);
    reader.finish();
  } catch (const ConfigError& e) {
    problems.insert(problems.end(), e.problems().begin(), e.problems().end());
  }
}

template <class Names>
void check_choice(const char* key, const std::string& value, const Names& names,
                  std::vector<Problem>& problems) {
  if (std::ranges::find(names, value) != names.end()) return;
  const std::string near = closest(value, std::vector<std::string>(names.begin(), names.end()));
  problems.push_back({"", key, fmt::format("\"{}\"", value), fmt::format("one of {}", fmt::join(names, ", ")),
                      near.empty() ? "" : fmt::format("did you mean {}?", near)});
}

// A defect is of a node or of a leaf, and says nothing that has no meaning there.
void check_defect(const ClusterSpec& c, const Defect& d, const auto& add) {
  const NodeSpec& n = c.node;
  const auto in_range = [&](const char* key, int value, int count, const char* what) {
    if (value >= count) add(key, value, fmt::format("{} from 0 to {}", what, count - 1));
  };
  const auto none = [&](const char* key, const auto& value, const auto& usual, const char* of) {
    if (value != usual) add(key, value, fmt::format("{} for {}", usual, of));
  };
  if ((d.node < 0) == (d.leaf < 0)) {
    const bool neither = d.node < 0;
    return add("node", neither ? "-1 and no leaf" : "a node and a leaf",
               neither ? "a node from 0 on, or a leaf" : "one of the two");
  }
  const bool one_nic = d.node >= 0 && d.nic >= 0;
  if (d.node >= 0) {
    in_range("node", d.node, c.nodes, "a node");
    in_range("gpu", d.gpu, n.gpus, "-1 for the whole node, or a GPU");
  } else if (c.fabric.leaf_nodes == 0) {
    add("leaf", d.leaf, "no leaf without fabric.leaf_nodes",
        "it is the number of nodes under one leaf switch");
  } else if (c.fabric.leaf_nodes >= c.nodes) {
    add("leaf", d.leaf, fmt::format("no leaf: all {} nodes are under one", c.nodes),
        "its uplinks are not used");
  } else {
    in_range("leaf", d.leaf, (c.nodes + c.fabric.leaf_nodes - 1) / c.fabric.leaf_nodes, "a leaf");
    if (!c.fabric.rails) none("nic", d.nic, -1, "a leaf without rails");
  }
  if (d.nic >= 0 && n.nics == 0) return add("nic", d.nic, "-1: the nodes have no NICs");
  in_range("nic", d.nic, n.nics, "-1 for all, or a NIC");
  if (!one_nic && d.leaf < 0) return;
  const char* of = one_nic ? "one NIC" : "a leaf";
  none("gpu", d.gpu, -1, of);
  none("compute_factor", d.compute_factor, 1.0, of);
  none("node_link_factor", d.node_link_factor, 1.0, of);
  none("missing", d.missing, false, of);
}

void check_power(const DeviceSpec& d, std::vector<Problem>& problems) {
  if (d.power_limit_W <= 0) return;
  if (d.power_W <= 0)
    problems.push_back({"", "device.power_limit_W", fmt::format("{:g}", d.power_limit_W),
                        "device.power_W, which it is a share of", ""});
  else if (d.power_limit_W > d.power_W || d.power_limit_W < 0.2 * d.power_W)
    problems.push_back({"", "device.power_limit_W", fmt::format("{:g}", d.power_limit_W),
                        fmt::format("between {:g} and the {:g} W of the board", 0.2 * d.power_W, d.power_W),
                        ""});
}

// What no single field shows: how the fields fit together.
void check_together(const ClusterSpec& c, std::vector<Problem>& problems) {
  const auto add = [&](std::string key, std::string value, std::string expected, std::string hint = "") {
    problems.push_back({"", std::move(key), std::move(value), std::move(expected), std::move(hint)});
  };
  const NodeSpec& n = c.node;
  check_power(c.device, problems);
  if (c.device.peak.empty())
    add("device.peak_TFLOPS", "nothing", "the dense peak of at least one number format");
  if (static_cast<long>(c.nodes) * n.gpus > kMaxGpus)
    add("nodes", fmt::format("{} nodes of {} GPUs", c.nodes, n.gpus),
        fmt::format("at most {} GPUs", kMaxGpus));
  const double node_rate = n.nics * n.nic_bandwidth.v, stated = c.fabric.bandwidth.v;
  if (std::abs(node_rate - stated) > 1e-6 * std::max(node_rate, stated))
    add("fabric.bandwidth_GBps", fmt::format("{:g}", stated / 1e9),
        fmt::format("{:g}, since node.nics * node.nic_bandwidth_GBps = {} * {:g}", node_rate / 1e9, n.nics,
                    n.nic_bandwidth.v / 1e9),
        "the two contradict each other: give only one of them");
  if (c.nodes > n.domain_nodes && stated <= 0)
    add("fabric.bandwidth_GBps", "0", fmt::format("a network between {} nodes", c.nodes),
        "use nodes = 1, or choose a fabric with bandwidth");
  if (n.domain_nodes > 1 && n.link != NodeLinkKind::nvswitch)
    add("node.domain_nodes", std::to_string(n.domain_nodes), "1 unless node.link is nvswitch");
  if (n.nvls && n.link != NodeLinkKind::nvswitch)
    add("node.nvls", "true", "false unless node.link is nvswitch");
  const std::vector<double>& rings = n.link_rings;
  if (!rings.empty() && n.link != NodeLinkKind::nvlink_mesh)
    add("node.link_rings", fmt::format("{} numbers", rings.size()), "none unless node.link is nvlink_mesh");
  else if (!rings.empty() && static_cast<int>(rings.size()) != n.gpus)
    add("node.link_rings", fmt::format("{} numbers", rings.size()),
        fmt::format("{}, one for each number of GPUs of a node, or none", n.gpus));
  for (std::size_t i = 0; i < rings.size(); ++i)
    if (!(rings[i] > 0 && rings[i] <= kMaxGpusPerNode))
      add(fmt::format("node.link_rings[{}]", i), fmt::format("{:g}", rings[i]),
          fmt::format("above 0 and at most {}", kMaxGpusPerNode));
  if (c.fabric.oversubscription > 1 && c.fabric.leaf_nodes == 0)
    add("fabric.oversubscription", fmt::format("{:g}", c.fabric.oversubscription),
        "1 without fabric.leaf_nodes",
        "it acts between leaves: set fabric.leaf_nodes to the number of nodes under one leaf switch");
  if ((c.fabric.congestion.v > 0) != (c.fabric.queued_latency.v > 0)) {
    const bool rate = c.fabric.congestion.v > 0;
    add(rate ? "fabric.queued_latency_us" : "fabric.congestion_GBps", "0",
        fmt::format("above 0 beside fabric.{}", rate ? "congestion_GBps" : "queued_latency_us"),
        "queues of collectives take both, or neither");
  }
  for (std::size_t i = 0; i < c.defects.size(); ++i)
    check_defect(
        c, c.defects[i],
        [&](const char* key, const auto& value, const std::string& expected, const std::string& hint = "") {
          add(fmt::format("defects[{}].{}", i, key), fmt::format("{}", value), expected, hint);
        });
}

}  // namespace

std::string_view name(NodeLinkKind kind) { return kLinkNames[static_cast<std::size_t>(kind)]; }

int ClusterSpec::gpus() const {
  std::set<std::pair<int, int>> missing;
  for (const Defect& d : defects) {
    if (!d.missing || d.node < 0) continue;
    for (int g = d.gpu < 0 ? 0 : d.gpu; g < (d.gpu < 0 ? node.gpus : d.gpu + 1); ++g)
      missing.emplace(d.node, g);
  }
  return nodes * node.gpus - static_cast<int>(missing.size());
}

std::vector<Problem> validate(const ClusterSpec& c) {
  std::vector<Problem> problems;
  check_fields(c, problems);
  check_choice("device.generation", c.device.generation, kGenerations, problems);
  check_choice("fabric.kind", c.fabric.kind, kFabricKinds, problems);
  if (problems.empty()) check_together(c, problems);
  if (problems.empty() && c.gpus() < 1)
    problems.push_back({"", "defects", "every GPU is missing", "at least one usable GPU", ""});
  return problems;
}

void to_json(json& j, const DeviceSpec& d) { write_object(j, d, kDeviceFields); }
void from_json(const json& j, DeviceSpec& d) { read_annotated(j, d, kDeviceFields); }
void to_json(json& j, const NodeSpec& n) { write_object(j, n, kNodeFields); }
void from_json(const json& j, NodeSpec& n) { read_annotated(j, n, kNodeFields); }
void to_json(json& j, const FabricSpec& f) { write_object(j, f, kFabricFields); }
void from_json(const json& j, FabricSpec& f) { read_annotated(j, f, kFabricFields); }
void to_json(json& j, const Defect& d) { write_object(j, d, kDefectFields); }
void from_json(const json& j, Defect& d) { read_annotated(j, d, kDefectFields); }
void to_json(json& j, const JitterSpec& s) { write_object(j, s, kJitterFields); }
void from_json(const json& j, JitterSpec& s) { read_annotated(j, s, kJitterFields); }
void to_json(json& j, const StorageSpec& s) { write_object(j, s, kStorageFields); }
void from_json(const json& j, StorageSpec& s) { read_annotated(j, s, kStorageFields); }
void to_json(json& j, const FailureSpec& f) { write_object(j, f, kFailureFields); }
void from_json(const json& j, FailureSpec& f) { read_annotated(j, f, kFailureFields); }
void to_json(json& j, const ClusterSpec& c) { write_object(j, c, kClusterFields); }

void from_json(const json& annotated, ClusterSpec& out) {
  const json j = plain_values(annotated);
  ClusterSpec c;
  JsonReader reader(j);
  kClusterFields(reader, c);
  // The network's rate is stated once, by the NIC or by the node.
  const auto given = [&](const char* part, const char* key) {
    return j.is_object() && j.contains(part) && j[part].is_object() && j[part].contains(key);
  };
  if (!given("fabric", "bandwidth_GBps"))
    c.fabric.bandwidth = BytesPerSecond(c.node.nics * c.node.nic_bandwidth.v);
  else if (!given("node", "nic_bandwidth_GBps") && c.node.nics > 0)
    c.node.nic_bandwidth = BytesPerSecond(c.fabric.bandwidth.v / c.node.nics);
  // How fields fit together is told only when each of them could be read.
  reader.finish();
  if (auto problems = validate(c); !problems.empty()) throw ConfigError(std::move(problems));
  out = std::move(c);
}

double clock_share(const DeviceSpec& d) {
  const double by_power =
      d.power_limit_W > 0 && d.power_W > 0 ? std::sqrt(std::min(1.0, d.power_limit_W / d.power_W)) : 1;
  return std::min(d.clock_factor, by_power);
}

}  // namespace sextant

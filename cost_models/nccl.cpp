#include "cost_models/nccl.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/json_io.hpp"

namespace sextant {

namespace {

constexpr auto kDevice = [](auto& io, auto& d) {
  io.required("device", d.device);
  io.required("ring_efficiency", d.ring_efficiency, above(0));
  io.optional("rings", d.rings);
  io.optional("in_switch_efficiency", d.in_switch_efficiency, at_least(0));
  io.required("source", d.source);
  io.required("date", d.date);
};

constexpr auto kFabric = [](auto& io, auto& f) {
  io.required("fabric", f.fabric);
  io.optional("hierarchical", f.hierarchical);
  io.optional("efficiency", f.efficiency, at_least(0));
  io.optional("nic_GBps", f.nic_GBps, at_least(0));
  io.optional("domain_efficiency", f.domain_efficiency, at_least(0));
  io.required("start_us", f.start_us, at_least(0));
  io.optional("per_domain_us", f.per_domain_us, at_least(0));
  io.optional("fill_us", f.fill_us, at_least(0));
  io.optional("fill_half_MB", f.fill_half_MB, at_least(0));
  io.required("source", f.source);
  io.required("date", f.date);
};

constexpr auto kModel = [](auto& io, auto& m) {
  io.ignored("about");
  io.required("start_us", m.start_us, above(0));
  io.required("per_rank_us", m.per_rank_us, above(0));
  io.required("ring_half_ranks", m.ring_half_ranks, above(0));
  io.required("devices", m.devices);
  io.required("fabrics", m.fabrics);
};

template <class Entry>
const Entry& entry_for(const std::vector<Entry>& entries, std::string Entry::*name, const std::string& text,
                       const char* key) {
  for (const Entry& e : entries)
    if (text.find(e.*name) != std::string::npos) return e;
  std::vector<std::string> known;
  for (const Entry& e : entries) known.push_back(e.*name);
  throw ConfigError(Problem{"", key, text, fmt::format("a text with one of {}", fmt::join(known, ", ")), ""});
}

// Bus rate of a rank inside one node or domain. Source: NCCL's rings use every link that closes a ring; few ranks use
// fewer channels. Bytes/s.
double inside_rate(const NcclCase& c, const NcclDevice& d, const NcclModel& m, int ranks) {
  if (!d.rings.empty()) {
    const std::size_t most = d.rings.size();
    const double rings = d.rings[std::min(static_cast<std::size_t>(ranks), most) - 1];
    return c.link * d.ring_efficiency * rings / d.rings.back();
  }
  if (d.in_switch_efficiency > 0 && c.kind == CollectiveKind::all_reduce)
    return c.link * d.in_switch_efficiency;
  return c.link * d.ring_efficiency * ranks / (ranks + m.ring_half_ranks);
}

}  // namespace

void from_json(const nlohmann::json& j, NcclDevice& d) { read_object(j, d, kDevice); }
void from_json(const nlohmann::json& j, NcclFabric& f) { read_object(j, f, kFabric); }
void from_json(const nlohmann::json& j, NcclModel& m) { read_object(j, m, kModel); }

NcclModel load_nccl_model(const std::filesystem::path& preset_dir) {
  return load_json<NcclModel>(preset_dir / "nccl.json");
}

int NcclModel::constants() const {
  std::vector<std::string> seen;  // the same source decided the same numbers
  int count = 3;
  const auto fresh = [&](const std::string& source) {
    if (source.starts_with("as ") || std::find(seen.begin(), seen.end(), source) != seen.end()) return false;
    seen.push_back(source);
    return true;
  };
  for (const NcclDevice& d : devices)
    if (fresh(d.source)) count += 1 + (d.in_switch_efficiency > 0);
  for (const NcclFabric& f : fabrics)
    if (fresh(f.source))
      for (const double x :
           {f.efficiency, f.domain_efficiency, f.start_us, f.per_domain_us, f.fill_us, f.fill_half_MB})
        count += x > 0;
  return count;
}

double bus_factor(CollectiveKind kind, int ranks) {
  return (kind == CollectiveKind::all_reduce ? 2.0 : 1.0) * (ranks - 1) / ranks;
}

// Source: nccl-tests' PERFORMANCE.md for the bytes that a rank moves; a node that has reduced inside first exchanges
// 2 (N-1)/N of the message with N nodes. Units: bytes, seconds.
Seconds nccl_time(const NcclCase& c, const NcclModel& m) {
  if (c.ranks <= 1 || c.bytes <= 0) return Seconds(0);
  const NcclDevice& device = entry_for(m.devices, &NcclDevice::device, c.device, "gpu");
  const double moved = bus_factor(c.kind, c.ranks) * c.bytes;
  const int inside = std::min(c.ranks, c.domain_ranks);
  const double rate = inside_rate(c, device, m, inside);
  const double start = 1e-6 * (m.start_us + m.per_rank_us * inside);
  if (c.ranks <= c.domain_ranks) return Seconds(start + moved / rate);

  const NcclFabric& fabric = entry_for(m.fabrics, &NcclFabric::fabric, c.fabric, "fabric");
  const int domains = (c.ranks + c.domain_ranks - 1) / c.domain_ranks;
  if (fabric.nic_GBps > 0) {  // NVLink domains: two of them exchange as fast as they reduce
    const double across = domains > 2 ? fabric.nic_GBps * 1e9 * fabric.domain_efficiency : rate;
    return Seconds(start + 1e-6 * (fabric.start_us + fabric.per_domain_us * domains) +
                   moved / std::min(rate, across));
  }
  double across = c.node_network * fabric.efficiency;
  if (fabric.hierarchical)
    across *= (static_cast<double>(c.ranks - 1) / c.ranks) / (static_cast<double>(domains - 1) / domains);
  double latency = 1e-6 * fabric.start_us;
  if (fabric.fill_half_MB > 0)
    latency += 1e-6 * fabric.fill_us * c.bytes / (c.bytes + 1e6 * fabric.fill_half_MB);
  else
    latency += start;
  return Seconds(latency + moved / std::min(rate, across));
}

}  // namespace sextant

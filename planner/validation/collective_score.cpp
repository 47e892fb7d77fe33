#include "planner/validation/collective_score.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>

#include <fmt/format.h>

#include "core/base/csv.hpp"
#include "core/base/decimal.hpp"
#include "core/base/error.hpp"
#include "core/cluster/cluster_files.hpp"
#include "core/cluster/topology.hpp"
#include "core/runs/framework_map.hpp"
#include "cost_models/collective.hpp"

namespace sextant {

namespace {

constexpr double kSpread = 1.15;

std::optional<CollectiveKind> kind_of(const std::string& text) {
  if (text == "all_reduce") return CollectiveKind::all_reduce;
  if (text == "all_gather") return CollectiveKind::all_gather;
  if (text == "reduce_scatter") return CollectiveKind::reduce_scatter;
  return std::nullopt;
}

// Fabric preset that the row's text selects for steps; empty: what such nodes usually have.
std::string fabric_of_steps(const std::string& text, const FrameworkMap& map) {
  const auto rule = std::find_if(map.clusters.begin(), map.clusters.end(), [&](const ClusterRule& r) {
    return !r.preset.empty() && text.find(r.fabric) != std::string::npos;
  });
  return rule == map.clusters.end() ? "" : rule->preset;
}

// Of the first ranks of a cluster. Seconds.
double time_on(const ClusterSpec& cluster, const CollectiveRow& row, const CostConstants& constants) {
  std::vector<int> ranks(static_cast<std::size_t>(row.on.ranks));
  std::iota(ranks.begin(), ranks.end(), 0);
  const CollectiveWork work{row.kind, Bytes(std::llround(row.bytes)), Topology(cluster).group_of(ranks),
                            false};
  return price_collective(work, Machine(cluster.device, cluster.node, constants)).duration.v;
}

// Throws ConfigError of columns that are missing.
void require_columns(const CsvTable& table) {
  std::vector<Problem> problems;
  for (const char* column : {"source", "collective", "gpu", "ranks", "nodes", "gpus_per_node", "fabric",
                             "size_bytes", "time_us", "bus_bandwidth_GBps"})
    if (table.column(column) < 0)
      problems.push_back({table.file, column, "", "this column", "see the header of a collectives.csv"});
  if (!problems.empty()) throw ConfigError(std::move(problems));
}

// What the row states, without predictions; what it cannot say goes to `problems`.
CollectiveRow stated_row(const CsvTable& table, const CsvRow& line, std::vector<Problem>& problems) {
  enum class Least : std::uint8_t { zero, above_zero };
  const auto number = [&](const char* column, Least least = Least::zero) -> std::optional<double> {
    const bool positive = least == Least::above_zero;
    const std::string& text = table.cell(line, column);
    if (text.empty()) return std::nullopt;
    const auto x = parse_decimal(text);
    if (!x || *x > kLargestNumber || (*x < kSmallestNumber && (positive || *x != 0)))
      problems.push_back({fmt::format("{}:{}", table.file, line.line), column, text,
                          positive ? "a number above 0, or nothing" : "a number of at least 0, or nothing",
                          x && *x > 0 ? fmt::format("from {} to {}", kSmallestNumber, kLargestNumber) : ""});
    return x;
  };
  CollectiveRow row;
  row.line = line.line;
  row.source = table.cell(line, "source");
  row.on.device = table.cell(line, "gpu");
  row.on.fabric = table.cell(line, "fabric");
  const auto kind = kind_of(table.cell(line, "collective"));
  if (!kind)
    problems.push_back({fmt::format("{}:{}", table.file, line.line), "collective",
                        table.cell(line, "collective"), "all_reduce, all_gather or reduce_scatter", ""});
  const auto size = number("size_bytes"), ranks = number("ranks"), nodes = number("nodes"),
             gpus = number("gpus_per_node"), time = number("time_us", Least::above_zero),
             bus = number("bus_bandwidth_GBps", Least::above_zero), low = number("low_bus_bandwidth_GBps"),
             high = number("high_bus_bandwidth_GBps");
  const auto network = number("internode_GBps_per_node");
  if (!kind || !size || !ranks || !nodes || !gpus || row.on.fabric.empty() || *ranks < 2 || (!time && !bus)) {
    row.use = CollectiveRowUse::unstated;
    return row;
  }
  row.kind = *kind;
  row.bytes = *size;
  row.on.ranks = static_cast<int>(*ranks);
  row.on.nodes = static_cast<int>(*nodes);
  row.on.gpus_per_node = std::max(1, static_cast<int>(*gpus));
  row.on.node_network = BytesPerSecond(network.value_or(0) * 1e9);
  row.time_s = time ? *time * 1e-6 : *size * bus_factor(*kind, row.on.ranks) / (*bus * 1e9);
  if (low && high && *low > 0 && *high > *low * kSpread * kSpread) row.use = CollectiveRowUse::spread;
  return row;
}

// Rows that measured the same and say more than the spread apart.
void mark_contradicted(std::vector<CollectiveRow>& rows) {
  using Same = std::tuple<CollectiveKind, std::string, std::string, int, int, double>;
  std::map<Same, std::pair<double, double>> range;
  const auto same = [](const CollectiveRow& r) {
    return Same{r.kind, r.on.device, r.on.fabric, r.on.ranks, r.on.nodes, r.bytes};
  };
  for (const CollectiveRow& r : rows) {
    if (r.use == CollectiveRowUse::unstated) continue;
    auto [at, is_new] = range.try_emplace(same(r), r.time_s, r.time_s);
    at->second = {std::min(at->second.first, r.time_s), std::max(at->second.second, r.time_s)};
  }
  for (CollectiveRow& r : rows)
    if (r.use == CollectiveRowUse::scored)
      if (const auto& [low, high] = range.at(same(r)); high > low * kSpread)
        r.use = CollectiveRowUse::contradicted;
}

}  // namespace

std::vector<CollectiveRow> predict_collectives(const std::filesystem::path& csv,
                                               const std::filesystem::path& preset_dir,
                                               std::span<const Setting> settings) {
  const CsvTable table = read_csv(csv);
  const std::vector<NcclBaseline> networks = load_nccl_baselines(preset_dir);
  const FrameworkMap map = load_framework_map(preset_dir);
  require_columns(table);
  std::vector<Problem> problems;
  std::vector<CollectiveRow> rows;
  for (const CsvRow& line : table.rows) {
    CollectiveRow& row = rows.emplace_back(stated_row(table, line, problems));
    if (row.use == CollectiveRowUse::unstated) continue;
    try {
      const ClusterSpec idle = nccl_baseline_cluster(row.on, networks, preset_dir, settings);
      ClusterSpec of_steps = tested_cluster(row.on, fabric_of_steps(row.on.fabric, map), preset_dir);
      CostConstants constants = load_cost_preset(idle.device.generation, preset_dir / "cost").constants;
      use_settings(settings, of_steps.fabric);
      use_settings(settings, idle.device.generation, constants);
      row.predicted_s = time_on(idle, row, alone(constants));
      row.in_step_s = time_on(of_steps, row, constants);
    } catch (const ConfigError&) {  // hardware that no table knows
      row.use = CollectiveRowUse::unstated;
    }
  }
  if (!problems.empty()) throw ConfigError(std::move(problems));
  mark_contradicted(rows);
  return rows;
}

std::vector<CollectiveScore> score_collectives(std::span<const CollectiveRow> rows) {
  constexpr std::array<double, 2> kBar = {5, 15};
  std::vector<CollectiveScore> scores;
  CollectiveScore all;
  all.source = "all rows";
  const auto add = [&](CollectiveScore& s, const CollectiveRow& r) {
    if (r.use != CollectiveRowUse::scored) {
      ++s.set_aside;
      return;
    }
    const int size = r.bytes >= kLargeMessage ? 0 : 1;
    const double error = 100 * (r.predicted_s / r.time_s - 1);
    s.mape[size] += std::abs(error);
    if (std::abs(error) > std::abs(s.worst[size])) s.worst[size] = error;
    s.in_step_mape[size] += 100 * std::abs(r.in_step_s / r.time_s - 1);
    s.inside[size] += std::abs(error) <= kBar[static_cast<std::size_t>(size)];
    ++s.rows[size];
    s.ranks_low = s.ranks_low == 0 ? r.on.ranks : std::min(s.ranks_low, r.on.ranks);
    s.ranks_high = std::max(s.ranks_high, r.on.ranks);
  };
  for (const CollectiveRow& r : rows) {
    auto at = std::find_if(scores.begin(), scores.end(),
                           [&](const auto& s) { return s.source == r.source && s.gpu == r.on.device; });
    if (at == scores.end()) {
      scores.emplace_back();
      at = scores.end() - 1;
      at->source = r.source;
      at->gpu = r.on.device;
    }
    add(*at, r);
    add(all, r);
  }
  scores.push_back(all);
  for (CollectiveScore& s : scores)
    for (int size : {0, 1})
      for (double* mean : {&s.mape[size], &s.in_step_mape[size]}) *mean /= std::max(1, s.rows[size]);
  return scores;
}

}  // namespace sextant

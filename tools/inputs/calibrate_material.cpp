#include "tools/inputs/calibrate_material.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include <fmt/format.h>

#include "core/base/packed_text.hpp"
#include "core/cluster/cluster_files.hpp"
#include "planner/answers/shortlist.hpp"
#include "planner/calibration/nccl_table.hpp"
#include "planner/validation/plausible.hpp"
#include "tools/inputs/file_kind.hpp"
#include "tools/inputs/measured_log.hpp"
#include "tools/inputs/planning.hpp"
#include "tools/inputs/run_tables.hpp"
#include "tools/inputs/unknown_names.hpp"
#include "tools/inputs/whose_machine.hpp"

namespace sextant {

namespace {

// FILE or FILE=WHAT; a file of that whole name wins.
struct Stated {
  std::string file, what;
};
Stated split_stated(const std::string& text) {
  const std::size_t equals = text.rfind('=');
  if (equals == std::string::npos || std::filesystem::exists(text)) return {text, ""};
  return {text.substr(0, equals), text.substr(equals + 1)};
}

void read_tried(const std::string& file, const std::filesystem::path& presets, Material& m) {
  const Shortlist shortlist = reading_as(FileUse::tried, file, [&] { return load_shortlist(file); });
  for (const Tried& t : shortlist.plans) {
    const PlanFile& f = t.plan;
    if (!t.measured_step_s && !t.out_of_memory) continue;
    const std::string key = plan_key(f.plan);
    ResolvedRun run{f.model, f.training, f.plan, f.cluster, f.stack, false, 1.0, ""};
    if (t.measured_step_s) {
      m.runs.push_back({key, file, std::move(run), Seconds(*t.measured_step_s)});
      continue;
    }
    const RunPrediction p = predict_resolved(std::move(run), {presets});
    m.in_vain.push_back(
        {{key, f.stack.name, f.cluster.device.name, p.memory_GiB.value_or(0), gib(f.cluster.device.memory)},
         p.chance_of_overflow.value_or(0)});
  }
}

NetworkFit read_nccl(const std::string& text, const MaterialOptions& options,
                     const std::filesystem::path& presets, const CalibrationRules& rules,
                     Material& material) {
  std::vector<std::string>& notes = material.notes;
  if (options.question.cluster.empty())
    throw UsageError("--nccl needs --cluster\n  for example: --cluster 8x8xa100-80gb");
  const auto [file, what] = split_stated(text);
  std::optional<CollectiveKind> kind;
  if (!what.empty()) {
    const auto it = std::find(kCollectiveNames.begin(), kCollectiveNames.end(), what);
    if (it == kCollectiveNames.end())
      throw UsageError(fmt::format("--nccl {}: '{}' is none of {}\n  for example: --nccl {}=all_gather", text,
                                   what, fmt::join(kCollectiveNames, ", "), file));
    kind = static_cast<CollectiveKind>(it - kCollectiveNames.begin());
  }
  const ClusterSpec cluster = load_cluster(options.question.cluster, presets);
  const auto constants = load_cost_preset(cluster.device.generation, presets / "cost").constants;
  const NcclTable table = reading_as(FileUse::nccl, file, [&, &name = file] {
    return parse_nccl_table(read_packed_text(name), name, kind);
  });
  std::vector<int> of_node(static_cast<std::size_t>(table.nodes), 0);
  for (const int n : table.node_of) ++of_node[static_cast<std::size_t>(n)];
  require_machine({file, table.device, table.machine, table.ranks, table.nodes,
                   of_node.empty() ? 0 : *std::ranges::max_element(of_node)},
                  cluster, options.allow_other_device, notes);
  const std::vector<NcclBaseline> idle = load_nccl_baselines(presets);
  NetworkFit fit =
      calibrate_network(table, cluster, constants, rules, nccl_baseline_of(cluster.fabric.name, idle));
  if (fit.samples == 0) {
    const auto largest = std::max_element(table.samples.begin(), table.samples.end(),
                                          [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
    throw ConfigError(Problem{file, "size", fmt::format("{} bytes at most", largest->bytes),
                              "sizes of at least 16 MiB: smaller ones inside a node show start-up, not rate",
                              "run it with -b 16M -e 8G -f 2"});
  }
  if (auto warning = odd_rate(table, fit, cluster)) material.warnings.push_back(*std::move(warning) + '\n');
  return fit;
}

// Whose machine was it? --cluster, or the first of the runs on such a device.
ProfileFit read_profile(const std::string& file, const MaterialOptions& options,
                        const std::vector<MeasuredRun>& runs, const std::filesystem::path& presets,
                        const CalibrationRules& rules, std::vector<std::string>& warnings) {
  const WorkProfile profile = reading_as(FileUse::profile, file, [&] { return load_profile(file, presets); });
  if (!profile.former.empty()) warnings.push_back(profile.former + '\n');
  std::vector<ClusterSpec> clusters;
  if (!options.question.cluster.empty()) clusters.push_back(load_cluster(options.question.cluster, presets));
  for (const MeasuredRun& m : runs) clusters.push_back(m.run.cluster);
  if (clusters.empty())
    throw UsageError(
        "--profile needs --cluster, or runs on its device\n  for example: --cluster 8x8xa100-80gb");
  std::set<std::string> devices;
  for (const ClusterSpec& cluster : clusters) {
    if (taken_on(profile, cluster.device)) return profile_priors(profile, file, cluster, presets, rules);
    devices.insert(cluster.device.name);
  }
  throw ConfigError(Problem{file, "machine", profile.machine.empty() ? "(not stated)" : profile.machine,
                            fmt::format("a profile of {}", fmt::join(devices, " or ")),
                            "rates of one device do not hold for another: profile the one of the runs"});
}

// A row that was given twice counts once; other runs of one name are different runs, which the answer cannot tell apart.
void tell_names(Material& m) {
  const std::vector<std::size_t> twice = given_twice(m.runs);
  for (auto i = twice.rbegin(); i != twice.rend(); ++i) {
    m.notes.push_back(fmt::format("{}: {} was given before with the same time; it counts once", m.runs[*i].at,
                                  m.runs[*i].id));
    m.runs.erase(m.runs.begin() + static_cast<std::ptrdiff_t>(*i));
  }
  std::map<std::string, std::vector<std::string>> where;
  for (const MeasuredRun& r : m.runs) where[r.id].push_back(r.at);
  for (const auto& [id, at] : where)
    if (at.size() > 1)
      m.notes.push_back(fmt::format("{} runs have the run_id {}, at {}: all count; name them apart",
                                    at.size(), id, fmt::join(at, ", ")));
}

}  // namespace

std::vector<std::string> MaterialOptions::files() const {
  std::vector<std::string> out = files_read(question);
  for (const auto* list : {&runs, &logs, &nccl, &tried, &profiles})
    out.insert(out.end(), list->begin(), list->end());
  return out;
}

std::vector<ConstantFit> Material::measured_alone() const {
  std::vector<ConstantFit> out;
  const auto add = [&](const ConstantFit& fit) {
    const auto same = [&](const ConstantFit& k) {
      return k.constant.of == fit.constant.of && k.constant.owner == fit.constant.owner &&
             k.constant.key == fit.constant.key;
    };
    if (std::none_of(out.begin(), out.end(), same)) out.push_back(fit);
  };
  for (const NetworkFit& network : networks)
    std::for_each(network.constants.begin(), network.constants.end(), add);
  for (const ProfileFit& profile : profiles)
    std::for_each(profile.constants.begin(), profile.constants.end(), add);
  return out;
}

Material read_material(const MaterialOptions& options, const std::filesystem::path& presets,
                       const CalibrationRules& rules) {
  Material m;
  const FrameworkMap map = load_framework_map(presets);
  for (const auto& file : options.runs) {
    std::vector<RunRow> rows = runs_of(read_run_table(file, BadRows::refuse));
    std::erase_if(rows, [](const RunRow& r) { return r.quality == 'c'; });
    auto more = measured_runs(rows, map, presets);
    std::move(more.begin(), more.end(), std::back_inserter(m.runs));
  }
  tell_names(m);
  std::vector<std::string> of_runs;
  for (const MeasuredRun& run : m.runs) of_runs.push_back(run.run.note);
  for (std::string& unknown : unknown_names(of_runs)) m.notes.push_back(std::move(unknown));
  for (const auto& log : options.logs) {
    const auto [file, plan] = split_stated(log);
    m.runs.push_back(run_of_log(file, plan, options, presets, m));
  }
  for (const auto& file : options.tried) read_tried(file, presets, m);
  for (const auto& file : options.nccl) m.networks.push_back(read_nccl(file, options, presets, rules, m));
  for (const auto& file : options.profiles)
    m.profiles.push_back(read_profile(file, options, m.runs, presets, rules, m.warnings));
  return m;
}

}  // namespace sextant

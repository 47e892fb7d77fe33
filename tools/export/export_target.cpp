#include "tools/export/export_target.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/error.hpp"

namespace sextant {

const std::vector<ExportTarget>& export_targets() {
  static const std::vector<ExportTarget> table = {
      megatron_lm_target(), megatron_bridge_target(), torchtitan_target(), deepspeed_target(),
      fsdp2_target(),       accelerate_target(),      smp_target(),        accelerate_deepspeed_target(),
      nanotron_target(),    colossalai_target(),      sextant_target(),    colossalai_gemini_target()};
  return table;
}

ChosenTarget find_export_target(const std::string& text) {
  const std::size_t at = text.find('@');
  const std::string name = text.substr(0, at), version = at == std::string::npos ? "" : text.substr(at + 1);
  std::vector<std::string> names;
  for (const ExportTarget& t : export_targets()) names.push_back(t.name);
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) {
    std::string near = closest(name, names);
    for (const std::string& other : names)  // "megatron"
      if (near.empty() && !name.empty() && other.starts_with(name)) near = other;
    throw ConfigError(Problem{"--to", "", name, fmt::format("one of {}", fmt::join(names, ", ")),
                              near.empty() ? "" : fmt::format("did you mean {}?", near)});
  }
  const ExportTarget& target = export_targets()[static_cast<std::size_t>(found - names.begin())];
  if (at == std::string::npos) return {&target, target.versions.front()};
  if (std::ranges::count(target.versions, version) == 0)
    throw ConfigError(Problem{"--to", "", text,
                              fmt::format("{} at {}", name, fmt::join(target.versions, " or ")),
                              "these versions are tested with the framework's own parser"});
  return {&target, version};
}

namespace {

// Launchers start as many ranks on each node as on the others.
bool has_broken_node(const PlanFile& file) {
  const int nodes = (file.plan.world() + file.cluster.node.gpus - 1) / file.cluster.node.gpus;
  return std::ranges::any_of(file.cluster.defects, [&](const Defect& d) {
    return d.missing && d.gpu >= 0 && d.node >= 0 && d.node < nodes;
  });
}

}  // namespace

std::vector<Inexpressible> inexpressible(const ChosenTarget& chosen, const StackSpec& stack,
                                         const PlanFile& file) {
  std::vector<Inexpressible> found =
      beyond_features(chosen.target->features(chosen.version, stack.can), file);
  for (Inexpressible& more : chosen.target->rules(file, chosen.version)) found.push_back(std::move(more));
  if (has_broken_node(file))
    found.push_back({"cluster.defects",
                     "missing GPUs",
                     "ranks are started alike on every node: leave the node out as a whole (node missing)",
                     {}});
  if (!found.empty()) return found;
  // Combinations that no single field is to blame for.
  if (const auto refused = refuses(stack, file.plan, file.model, file.training)) {
    const auto change = set_field("no offload", [](ParallelPlan& p) { p = without_offload(std::move(p)); });
    found.push_back({"layout", plan_key(file.plan), refused->text, {change}});
  }
  return found;
}

}  // namespace sextant

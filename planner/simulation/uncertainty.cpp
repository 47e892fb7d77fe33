#include "planner/simulation/uncertainty.hpp"

#include <nlohmann/json.hpp>

#include "core/base/annotated.hpp"
#include "core/base/json_io.hpp"

namespace sextant {

namespace {

constexpr std::array<std::string_view, kUncertaintyClasses> kNames = {"none",    "exposed",    "near_full",
                                                                      "offload", "tp_crosses", "many_cp"};

constexpr std::array<std::string_view, kUncertaintyClasses> kReasons = {
    "",
    "communication lengthens its step by a fifth or more",
    "it fills more than nine tenths of the memory",
    "it keeps state or activations on the host",
    "its tensor parallelism leaves the fast links of a node",
    "few measured runs have more than two context-parallel ranks"};

// Widths by class; every class must be there.
struct Widths {
  std::array<double, kUncertaintyClasses> of{};
};
constexpr auto kWidths = [](auto& io, auto& w) {
  for (std::size_t d = 0; d < kUncertaintyClasses; ++d)
    io.required(std::string(kNames[d]), w.of[d], above(0));
};

void from_json(const nlohmann::json& j, Widths& w) { read_object(j, w, kWidths); }

struct File {
  UncertaintyRules rules;
  Widths step, memory;
};
constexpr auto kIntervalsFields = [](auto& io, auto& f) {
  io.ignored("about");
  io.required("exposed_share", f.rules.exposed_share, above(0));
  io.required("filled_share", f.rules.filled_share, above(0));
  io.required("most_cp", f.rules.most_cp, at_least(1));
  io.required("step", f.step);
  io.required("memory", f.memory);
  io.required("exact_memory", f.rules.exact_memory, above(0));
  io.required("published_runs", f.rules.published_runs, above(0));
  io.required("fitted_share", f.rules.fitted_share, between(0.5, 1));
  io.required("fewest_runs", f.rules.fewest_runs, at_least(2));
};

}  // namespace

std::string_view reason(UncertaintyClass d) { return kReasons[static_cast<std::size_t>(d)]; }
std::string_view name(UncertaintyClass d) { return kNames[static_cast<std::size_t>(d)]; }

UncertaintyRules load_uncertainty_rules(const std::filesystem::path& preset_dir) {
  const auto path = preset_dir / "calibration/intervals.json";
  File file;
  with_file(path.string(), [&] { read_object(read_plain_values(path), file, kIntervalsFields); });
  file.rules.step = file.step.of;
  file.rules.memory = file.memory.of;
  return file.rules;
}

UncertaintyClass uncertainty_of(const UncertaintyRules& rules, const ParallelPlan& p,
                                const ClusterSpec& cluster, const StackSpec& stack, double filled,
                                double exposed_share) {
  if (p.tp > cluster.node.gpus * cluster.node.domain_nodes) return UncertaintyClass::tp_crosses;
  if (p.optimizer_offload > 0 || p.parameter_offload || p.activation_offload > 0)
    return UncertaintyClass::offload;
  if (filled > rules.filled_share && !stack.memory.exact_tensors) return UncertaintyClass::near_full;
  if (p.cp > rules.most_cp) return UncertaintyClass::many_cp;
  return exposed_share > rules.exposed_share ? UncertaintyClass::exposed : UncertaintyClass::none;
}

}  // namespace sextant

// Which few layouts are worth trying on the cluster? The best of three predictions, tried, is almost always the best
// layout of all (regret 0.3 % on published runs, against 1-4 % for the first alone). Layouts whose interval reaches the
// best step and that differ from each other in more than one respect: near copies would teach nothing. What was measured
// goes into the same file, and `sextant calibrate --tried` takes it.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/plan_file.hpp"

namespace sextant {

struct RankedPlan;  // planner/search.hpp

// In how many respects two layouts differ: degrees, virtual stages, ZeRO, micro-batch, recompute, schedule, offload.
int distance(const ParallelPlan&, const ParallelPlan&);

// At most `count` of `ranked` (best first), the best among them. Indices, in their order.
std::vector<std::size_t> shortlist(std::span<const RankedPlan> ranked, int count);

// The tie of the first that is known best, when that is at least twice as well: what to take when nothing can be tried.
std::optional<std::size_t> surer_tie(std::span<const RankedPlan> ranked);

struct Tried {
  PlanFile plan;
  std::optional<double> measured_step_s;  // null until it was tried
};
struct Shortlist {
  std::string schema = "sextant.shortlist/1";
  std::vector<Tried> plans;
};

Shortlist load_shortlist(const std::filesystem::path&);
void save_shortlist(const std::filesystem::path&, const Shortlist&);

void to_json(nlohmann::json&, const Shortlist&);
void from_json(const nlohmann::json&, Shortlist&);

}  // namespace sextant

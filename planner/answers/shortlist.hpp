// Which few layouts are worth trying on the cluster? The best of three predictions, tried, is almost always the best
// layout of all (regret 0.3 % on published runs, against 1-4 % for the first alone). Layouts whose interval reaches the
// best step and that differ in kind: near copies would teach nothing, so other degrees and ZeRO stages are searched for,
// and one layout with room in memory, in case the first has less than the model thinks. What was measured, or that it ran
// out of memory, goes into the same file, and `sextant calibrate --tried` takes it.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/plan/plan_file.hpp"
#include "core/plan/plan_limits.hpp"
#include "planner/lowering/job.hpp"

namespace sextant {

struct Prediction;  // planner/simulation/predict.hpp
struct RankedPlan;  // planner/search/search.hpp
struct SearchOptions;

// How much two layouts differ: tp, pp and ZeRO stage count two each, one each of cp, virtual stages, micro-batch,
// recompute, schedule and offload.
int distance(const ParallelPlan&, const ParallelPlan&);

// Clearly more room than the other: a tenth less at the peak, or at most half its chance of running out.
bool roomier(const RankedPlan&, const RankedPlan& than);

// The best layouts of other kinds than `best`: another tp, pp or ZeRO stage, or a tenth less memory; those that reach its
// step within its interval.
std::vector<RankedPlan> other_kinds(const Job&, const PlanLimits&, const RankedPlan& best,
                                    const SearchOptions&);

// At most `count` of `ranked` (best first), the best among them, and where there is one that reaches it, one roomier than
// the best. Indices, in their order.
std::vector<std::size_t> shortlist(std::span<const RankedPlan> ranked, int count);

// Its step is known nearly twice as well: what is compute-bound beside what fills the memory or offloads.
bool known_better(const Prediction&, const Prediction& than);

// The tie of the first that is known best, when that is at least 1.8 times as well: what to take when nothing can be tried.
std::optional<std::size_t> lower_risk_tie(std::span<const RankedPlan> ranked);

// A tie of the first that is known at least 1.8 times as well, or far less likely to run out of memory: the fastest that keeps
// nothing on the host, leaves room in memory and stays on the fast links of a node, which is searched for where the first
// does not; or that divides the GPUs as the first does and leaves room; else the surest of those ranked.
std::optional<RankedPlan> lower_risk_plan(const Job&, const PlanLimits&, std::span<const RankedPlan> ranked,
                                          const SearchOptions&);
// What tells its kind from the first one's, as --fix takes it: "z=3,mbs=2,ao=0".
PlanLimits told_apart(const ParallelPlan& lower_risk, const ParallelPlan& first);

struct Tried {
  PlanFile plan;
  std::optional<double> measured_step_s = {};  // null until it was tried
  bool out_of_memory = false;                  // "outcome": "oom", instead of a time
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

// What `sextant validate` says of recommendations: their regret on measured groups, the fit of the rule's constants, the layouts
// of experts beside ours, and the counts of measured runs that answers name as evidence.
#pragma once

#include <span>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "planner/validation/decision_score.hpp"
#include "planner/validation/inconsistent_times.hpp"
#include "tools/inputs/verb.hpp"

namespace sextant {

// `agreed`: the groups without the times of `inconsistent`.
struct DecisionGroups {
  std::vector<DecisionGroup> all, agreed;
  std::vector<InconsistentTime> inconsistent;
};
DecisionGroups decision_groups_of(std::span<const RunRow>, std::span<const RunPrediction>,
                                  bool with_quality_c);
void print_decision(Session&, const DecisionGroups&, std::span<const RunRow>);
nlohmann::ordered_json decision_json(const Session&, const DecisionGroups&, std::span<const RunRow>);

// --fit-decision: prints the constants and their regret, in-sample and leave-one-source-out.
ExitCode fit_decision(Session&, const DecisionGroups&, std::span<const RunRow>);
// --write-evidence
void write_evidence(const Session&, std::span<const RunRow>, const FrameworkMap&, const std::string& file);
// --against-experts
ExitCode compare_with_experts(Session&, std::span<const RunRow>, const FrameworkMap&);

}  // namespace sextant

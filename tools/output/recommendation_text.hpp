// The recommendation as a screen of text, at most 24 lines of 80 columns, and as JSON.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/runs/evidence.hpp"
#include "planner/answers/recommend.hpp"
#include "tools/terminal/terminal.hpp"

namespace sextant {

// "TP4 PP4 VP10 DP8 ZeRO-1 MBS2": degrees of one are left out, data parallelism apart; then what else differs from usual.
std::string layout_words(const ParallelPlan&);
// "no recomputation", "10 layers per chunk recomputed, on the host: 36 % of the optimizer and activations of 38 layers".
std::string memory_words(const ParallelPlan&);

// Why this one: one paragraph of two lines at most.
std::string why_text(const Recommendation&, const DecisionRule&);

// A table of what else to try, what it gains and what it costs. Empty where there is nothing.
std::string alternatives_table(const Terminal&, const Recommendation&);

// "features", "plain", "risk" of the recommendation.
nlohmann::ordered_json recommendation_json(const Recommendation&);
// "evidence: 277 runs of such layouts on ampere GPUs, 3 of megatron-core code."
std::string evidence_text(const Evidence&, const std::string& stack, const std::string& generation);
nlohmann::ordered_json evidence_json(const Evidence&);
nlohmann::ordered_json risk_json(const Prediction&, const DecisionRule&, bool safe);

}  // namespace sextant

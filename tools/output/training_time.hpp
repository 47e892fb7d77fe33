// How long does training take, and what does it cost? --tokens of `plan` and `simulate`.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "core/cluster/cluster_spec.hpp"
#include "core/model/training_spec.hpp"
#include "core/plan/parallel_plan.hpp"
#include "planner/simulation/predict.hpp"

namespace sextant {

// "2T tokens: 326.8 days (301.2 to 354.0 in nine of ten cases), 219,610 GPU-hours, 350,000 USD". `tokens` as it was typed, 2T or 3e11.
std::string training_time_text(const std::string& tokens, const TrainingSpec&, const ClusterSpec&,
                               const ParallelPlan&, const Prediction&);

// The days alone, "326.8", for a table.
std::string training_days_text(const std::string& tokens, const TrainingSpec&, const ClusterSpec&,
                               const ParallelPlan&, const Prediction&);

// "tokens", "days", "days_lower", "days_upper", "gpu_hours", "usd" (null where the cluster states no price).
nlohmann::ordered_json training_time_json(const std::string& tokens, const TrainingSpec&, const ClusterSpec&,
                                          const ParallelPlan&, const Prediction&);

}  // namespace sextant

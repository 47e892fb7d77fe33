// What the planning verbs share: the job that a question describes, one layout's step in detail, and how both are
// shown.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "core/breakdown.hpp"
#include "core/plan_file.hpp"
#include "core/timeline.hpp"
#include "cost_models/analytic.hpp"
#include "planner/job.hpp"
#include "planner/predict.hpp"
#include "planner/stage_memory.hpp"
#include "tools/inputs.hpp"

namespace sextant {

// Owns what a Job refers to; the question must outlive it.
struct Planning {
  Planning(const Question&, const std::filesystem::path& presets);
  Topology topology;
  AnalyticCostModel cost;
  Job job;
};

// One layout, simulated in detail. Throws ConfigError when it does not suit model, batch, stack or cluster.
struct Simulated {
  ExecutionGraph graph;
  Timeline timeline;
  Breakdown breakdown;
  MemoryEstimate memory;
  Prediction prediction;
};
Simulated simulate_plan(const Job&, const ParallelPlan&, bool operands);

PlanFile plan_file(const Question&, const ParallelPlan&, const Simulated&);

// "LLaMA-2-13B, 13.02 B parameters, on 64 x A100-SXM4-80GB (8 nodes, hdr-8x200), 4096 tokens x 1024, Megatron-Core"
std::string headline(const Question&);
std::string step_table(Session&, const Breakdown&, const Prediction&);       // by cause, mean and by stage
std::string memory_table(Session&, const MemoryEstimate&, Bytes available);  // by stage and category

nlohmann::ordered_json to_json(const Prediction&);
nlohmann::ordered_json to_json(const Breakdown&);
nlohmann::ordered_json to_json(const MemoryEstimate&);

}  // namespace sextant

// What the verbs over the planner share: the inputs kept alive behind a Job, the plan file of an answer, and
// the lines that say what was asked.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "core/plan_file.hpp"
#include "core/topology.hpp"
#include "cost_models/analytic.hpp"
#include "planner/job.hpp"
#include "planner/predict.hpp"
#include "tools/inputs.hpp"
#include "tools/verbs.hpp"

namespace sextant {

class Planning {
 public:
  Planning(Question question, const std::filesystem::path& presets)
      : question_(std::move(question)),
        topology_(question_.cluster),
        cost_(question_.cluster, question_.stack, presets) {}
  Planning(const Planning&) = delete;
  Planning& operator=(const Planning&) = delete;

  const Question& question() const { return question_; }
  Job job() const {
    return {question_.model, question_.training, question_.cluster, topology_, question_.stack, cost_};
  }

 private:
  Question question_;
  Topology topology_;
  AnalyticCostModel cost_;
};

// "llama-2-13b on 64 x A100-SXM4-80GB (8 nodes, hdr-8x200), megatron-core; 1024 sequences of 4096 tokens".
std::string question_text(const Question&);

// The options that ask the same question of another verb: " --model llama-2-13b --cluster 8x8xa100-80gb".
std::string question_arguments(const QuestionOptions&);

PlanFile plan_file_of(const Session&, const Question&, const ParallelPlan&, const Prediction&,
                      std::map<std::string, double> breakdown_s = {});

nlohmann::ordered_json prediction_json(const ParallelPlan&, const Prediction&);

// "4", "sel", "full", "full12".
std::string recompute_text(const Recompute&);

}  // namespace sextant

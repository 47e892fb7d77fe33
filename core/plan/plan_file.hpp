// The plan file: one layout with everything it was chosen for, so that any verb can read it without presets:
// model, training, cluster, software stack, plan, what was predicted and by which build. Written whole or not
// at all; validated on reading, parts against each other too.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/cluster/cluster_spec.hpp"
#include "core/model/model_spec.hpp"
#include "core/model/training_spec.hpp"
#include "core/plan/parallel_plan.hpp"
#include "core/plan/rank_by.hpp"
#include "core/plan/stack_spec.hpp"

namespace sextant {

inline constexpr const char* kPlanSchema = "sextant.plan_file/1";

// A predicted value and the interval that holds the true one in `coverage` of cases.
struct Estimate {
  double value = 0, lower = 0, upper = 0;
  bool operator==(const Estimate&) const = default;
};

// What saving and failures leave of a run, where storage and failures of the cluster are stated.
struct PlanGoodput {
  double checkpoint_GB = 0;  // 1e9 bytes
  double save_s = 0;         // until a checkpoint is on storage
  double pause_s = 0;        // of training, per checkpoint
  double job_mtbf_s = 0;     // mean time between failures of the nodes it uses
  double interval_s = 0;     // of training between checkpoints, that maximises goodput
  int interval_steps = 0;
  double goodput = 0;       // share of wall-clock time that becomes lasting progress
  double tokens_per_s = 0;  // lasting
  bool operator==(const PlanGoodput&) const = default;
};

// Where the cluster's jitter is part of the step, which is the expected one then.
struct PlanJitter {
  RankBy rank_by = RankBy::expected;   // what the layout was chosen by
  double undisturbed_step_time_s = 0;  // without jitter
  double p90_step_time_s = 0;          // one step of ten takes as long or longer
  bool operator==(const PlanJitter&) const = default;
};

struct PlanPrediction {
  Estimate step_time_s;
  Estimate peak_memory_GiB;  // of the heaviest stage, as the framework's allocator reserves it
  double coverage = 0.8;
  double tokens_per_s_per_gpu = 0;
  double model_tflops_per_gpu = 0;
  double mfu = 0;                             // against the dense 16-bit peak
  std::map<std::string, double> breakdown_s;  // parts of the step by name; they sum to it. Empty: not known
  std::optional<PlanGoodput> goodput;
  std::optional<PlanJitter> jitter;
  bool operator==(const PlanPrediction&) const = default;
};

struct Provenance {
  std::string sextant;  // version and build that wrote the file
  std::string created;  // UTC, ISO 8601
  std::vector<std::string> command;
  bool operator==(const Provenance&) const = default;
};

struct PlanFile {
  std::string schema = kPlanSchema;
  ModelSpec model;
  TrainingSpec training;
  ClusterSpec cluster;
  StackSpec stack;
  ParallelPlan plan;
  PlanPrediction prediction;
  Provenance provenance;
  std::string former;  // of a file that was read: what is written as version 0.1 wrote it
  bool operator==(const PlanFile&) const = default;
};

// What the parts contradict each other in: a plan that does not divide, more ranks than GPUs, a stack that is
// not the training's, a stack that refuses the plan, an interval that does not hold its value, parts that do not sum
// to the step.
std::vector<Problem> validate(const PlanFile&);

void to_json(nlohmann::json&, const PlanGoodput&);
void from_json(const nlohmann::json&, PlanGoodput&);
void to_json(nlohmann::json&, const PlanJitter&);
void from_json(const nlohmann::json&, PlanJitter&);
void to_json(nlohmann::json&, const PlanPrediction&);
void from_json(const nlohmann::json&, PlanPrediction&);
void to_json(nlohmann::json&, const PlanFile&);
void from_json(const nlohmann::json&, PlanFile&);  // throws ConfigError

PlanFile load_plan_file(const std::filesystem::path&);
void save_plan_file(const std::filesystem::path&, const PlanFile&);  // refuses what could not be read again

}  // namespace sextant

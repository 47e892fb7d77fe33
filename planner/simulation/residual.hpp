// What of a user's measured steps no constant explains, and what that says of other layouts: layouts that are alike are off
// alike. The logarithm of measured over predicted time, beyond what constants take, is a Gaussian process over the layout,
//
//   cov(a, b) = sigma^2 exp(-d^2 / 2),   d^2 = sum over the fields of (difference / length)^2,
//
// whose fields are doublings: of TP, PP and DP degree, of the tokens of a micro-batch, of the model's parameters, and stages
// of ZeRO. Zero between generations of devices. Far from all runs it says nothing. Source: kriging (Rasmussen and Williams,
// Gaussian Processes for Machine Learning, 2.2); sigma and length are in presets/calibration/step_time.json.
//
// Ignores what else layouts differ in: recomputation, schedule, context parallelism, offload.
#pragma once

#include <string>
#include <vector>

#include "core/model/model_spec.hpp"
#include "core/model/training_spec.hpp"
#include "core/plan/parallel_plan.hpp"

namespace sextant {

// A layout of a model on a device, as far as likeness goes.
struct LayoutPoint {
  std::string generation;
  int tp = 1, pp = 1, dp = 1;
  double micro_batch_tokens = 1, parameters = 1;
  int zero_stage = 0;  // 0 where nothing is sharded
  bool operator==(const LayoutPoint&) const = default;
};
LayoutPoint layout_point(const ModelSpec&, const TrainingSpec&, const ParallelPlan&,
                         const std::string& generation);

struct LikenessRule {
  double sigma = 0;   // of the logarithm of time; 0: nothing is learned beyond constants
  double length = 1;  // doublings
};
// cov(a, b) / sigma^2, [0, 1].
double likeness(const LayoutPoint&, const LayoutPoint&, double length);

struct Residual {
  LikenessRule rule;
  struct Run {
    LayoutPoint point;
    double weight = 0;
    bool operator==(const Run&) const = default;
  };
  std::vector<Run> runs;

  bool empty() const { return runs.empty(); }
  // Of the step's time beyond what the constants say: sum over runs of weight * cov(run, point).
  double log_factor(const LayoutPoint&) const;
  // No layout of this model on this generation has a smaller one.
  double least_log_factor(const std::string& generation, double parameters) const;
};

}  // namespace sextant

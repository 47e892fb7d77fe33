#include "planner/simulation/residual.hpp"

#include <cmath>

namespace sextant {

namespace {

// Squared distance of two values of a field, in lengths.
double squared(double difference, double length) { return difference * difference / (length * length); }
double ratio_doublings(double a, double b) { return std::log2(a / b); }

}  // namespace

LayoutPoint layout_point(const ModelSpec& model, const TrainingSpec& training, const ParallelPlan& p,
                         const std::string& generation) {
  return {generation,
          p.tp,
          p.pp,
          p.dp,
          static_cast<double>(p.micro_batch) * training.seq_len,
          static_cast<double>(parameter_counts(model).total),
          p.shards() > 1 || p.zero_stage > 1 ? p.zero_stage : 0};
}

double likeness(const LayoutPoint& a, const LayoutPoint& b, double length) {
  if (a.generation != b.generation) return 0;
  double d = squared(a.zero_stage - b.zero_stage, length);
  d += squared(ratio_doublings(a.tp, b.tp), length) + squared(ratio_doublings(a.pp, b.pp), length) +
       squared(ratio_doublings(a.dp, b.dp), length);
  d += squared(ratio_doublings(a.micro_batch_tokens, b.micro_batch_tokens), length) +
       squared(ratio_doublings(a.parameters, b.parameters), length);
  return std::exp(-0.5 * d);
}

double Residual::log_factor(const LayoutPoint& point) const {
  double sum = 0;
  for (const Run& run : runs) sum += run.weight * likeness(run.point, point, rule.length);
  return rule.sigma * rule.sigma * sum;
}

double Residual::least_log_factor(const std::string& generation, double parameters) const {
  double sum = 0;
  for (const Run& run : runs) {
    if (run.weight >= 0 || run.point.generation != generation) continue;
    sum +=
        run.weight * std::exp(-0.5 * squared(ratio_doublings(run.point.parameters, parameters), rule.length));
  }
  return rule.sigma * rule.sigma * sum;
}

}  // namespace sextant

// What would the recommendation have cost on groups of measured layouts? A group: four or more layouts of one model, batch and
// cluster, all measured. Its regret: how much slower than the best measured the recommended one was.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "planner/answers/decision_rule.hpp"
#include "planner/validation/validate.hpp"

namespace sextant {

struct DecisionGroup {
  std::string source, id;
  std::vector<Judged> layouts;   // step: predicted seconds per sequence
  std::vector<double> measured;  // seconds per sequence, of the same layouts
};
std::vector<DecisionGroup> decision_groups(std::span<const RunRow>, std::span<const RunPrediction>,
                                           bool with_quality_c = false);

// Percent; of the recommended one, and of the best measured of it and the two fastest others that are predicted to fit.
double regret_of_recommended(const DecisionGroup&, const DecisionRule&);
double regret_of_three(const DecisionGroup&, const DecisionRule&);

struct DecisionScore {
  int groups = 0;
  double mean = 0, worst = 0, mean_of_three = 0;  // percent
  std::string worst_group;
};
DecisionScore score_decision(std::span<const DecisionGroup>, const DecisionRule&);

// optimism and told_apart on a grid, for the least mean regret; of equal ones the most careful: nothing measured speaks against
// it. `held_out`: each source's groups under the constants that the other sources' groups give. pairwise_error: median over
// pairs of layouts of one group of |ln(predicted ratio / measured ratio)|, groups weighted alike: what feature_pays stands for.
struct DecisionFit {
  DecisionRule rule;
  DecisionScore in_sample, held_out;
  double pairwise_error = 0;
};
DecisionFit fit_decision(std::span<const DecisionGroup>, const DecisionRule& from);

}  // namespace sextant

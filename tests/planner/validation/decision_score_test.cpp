// Regret of the recommendation on hand-made groups, and the fit of the rule's constants.
#include "planner/validation/decision_score.hpp"

#include <gtest/gtest.h>

namespace sextant {
namespace {

DecisionRule careful_rule() {
  return {.most_oom_chance = 0.05, .extrapolation = 1, .feature_pays = 0.04, .most_given_up = 0.05};
}
DecisionGroup decision_group(const std::string& source, std::vector<Judged> layouts,
                             std::vector<double> measured) {
  return {source, source + "|g", std::move(layouts), std::move(measured)};
}

// Predicted best 10 s took 11 s, the best took 10: 10 % regret; the best of three holds the best.
TEST(DecisionScore, Regret) {
  const DecisionGroup g =
      decision_group("s", {{.step = 10}, {.step = 10.2}, {.step = 11}, {.step = 12}}, {11, 10, 12, 13});
  EXPECT_NEAR(regret_of_recommended(g, careful_rule()), 10, 1e-9);
  EXPECT_NEAR(regret_of_three(g, careful_rule()), 0, 1e-9);
  DecisionGroup risky = g;
  risky.layouts[0].oom_chance = 0.3;
  EXPECT_NEAR(regret_of_recommended(risky, careful_rule()), 0, 1e-9);
}

// The wide one is the worse one in every group: optimism pays. Negative control: where it is the better one, it does not.
TEST(DecisionScore, FitsOptimism) {
  std::vector<DecisionGroup> groups;
  for (const char* source : {"a", "b", "c"})
    groups.push_back(decision_group(
        source,
        {{.step = 10, .half_width = 0.3}, {.step = 10.2, .half_width = 0.05}, {.step = 12}, {.step = 13}},
        {11, 10, 12, 13}));
  const DecisionFit fit = fit_decision(groups, careful_rule());
  EXPECT_GT(fit.rule.optimism, 0);
  EXPECT_NEAR(fit.held_out.mean, 0, 1e-9);
  EXPECT_EQ(fit.held_out.groups, 3);
  for (DecisionGroup& g : groups) std::swap(g.measured[0], g.measured[1]);
  EXPECT_EQ(fit_decision(groups, careful_rule()).rule.optimism, 0);
}

}  // namespace
}  // namespace sextant

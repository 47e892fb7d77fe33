// What is recommended where the search for the fastest ended early: it is compared with the fastest that was found by anybody.
#include "planner/answers/recommend.hpp"

#include <gtest/gtest.h>

#include "planner/simulation/predict.hpp"
#include "tests/planner/explain/small_job.hpp"
#include "tests/planner/search/search_support.hpp"

namespace sextant {
namespace {

constexpr const char* kPresets = SEXTANT_SOURCE_DIR "/tools/presets";

TEST(Recommend, TheFastestOnPaperIsTheFastestThatWasFound) {
  const OwnedJob owned = job_of(79);
  const Job job = owned.job();
  const DecisionBasis basis{load_decision_rule(kPresets), load_evidence(kPresets)};
  SearchOptions options;
  options.top = kJudged;
  const SearchSpace space = default_space(job.model, job.training, job.cluster.device, 8, {});
  const SearchReport proved = search(job, space, options);
  ASSERT_TRUE(proved.exact);
  SearchReport early = proved;
  early.exact = false;
  RankedPlan slow;  // and unusual, as if it were all that there was time for
  slow.plan = parse_plan_key("tp4.pp2.dp1.mbs1.oo100");
  slow.prediction = predict(job, slow.plan);
  slow.simulated = slow.prediction.step;
  early.ranked = {slow};

  const Recommendation hurried = recommend(job, {}, early, basis, options),
                       calm = recommend(job, {}, proved, basis, options);
  for (const Recommendation* r : {&hurried, &calm}) {
    EXPECT_GE(r->plan.slower, 0) << "than the fastest on paper";
    for (const OtherLayout& a : r->alternatives)
      EXPECT_LE(r->plan.prediction.step / (1 + r->plan.slower), a.plan.prediction.step * (1 + 1e-12));
  }
  // Control: taken as proved, the slow one is the fastest on paper, and others are faster.
  early.exact = true;
  const Recommendation wrong = recommend(job, {}, early, basis, options);
  EXPECT_LT(wrong.plan.slower, 0);
}

}  // namespace
}  // namespace sextant

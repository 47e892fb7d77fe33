// Holds the accuracy of predicted step times on published runs: mean absolute error per source, in percent. A change
// that worsens one raises its bound here and says why in its commit message.
#include <gtest/gtest.h>

#include "measured.hpp"

namespace sextant {
namespace {

struct Bound {
  const char* source;
  double mape;
};

class Accuracy : public testing::TestWithParam<Bound> {};

TEST_P(Accuracy, StepTime) {
  SEXTANT_NEEDS_MEASURED();
  const auto rows = read_runs(test::measured_dir() / "runs" / (std::string(GetParam().source) + ".csv"));
  std::vector<RunRow> timed;
  for (const auto& r : rows)
    if (r.step_time) timed.push_back(r);
  const auto predictions =
      predict_runs(timed, load_framework_map(test::preset_dir()), {test::preset_dir(), nullptr});
  const auto scores = score_runs(timed, predictions);
  ASSERT_EQ(scores.size(), 1u);
  EXPECT_EQ(scores[0].unpredicted, 0);
  EXPECT_LE(scores[0].mape, GetParam().mape);
}

INSTANTIATE_TEST_SUITE_P(Sources, Accuracy,
                         testing::Values(Bound{"aleph_alpha", 5.5}, Bound{"bigscience_bloom_a100", 4.5},
                                         Bound{"bigscience_v100", 6.5}, Bound{"flagperf", 4.0},
                                         Bound{"llm_foundry", 4.7}, Bound{"megatron_llama", 8.5},
                                         Bound{"megatron_lm", 5.0}, Bound{"modalities", 6.6},
                                         Bound{"nanotron", 10.0}, Bound{"nvidia_dgxc", 5.2}),
                         [](const auto& bound) { return std::string(bound.param.source); });

}  // namespace
}  // namespace sextant

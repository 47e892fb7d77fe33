// A profile of a plan on this machine. Expectation: every work that an op of the plan needs is in it, the file says the
// same when read again, and a prediction with it has nothing left to another model.
#include "profiler/profile_plan.hpp"

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <span>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.hpp"
#include "cost_models/profiled.hpp"
#include "kernels/cpu/cpu_kernels.hpp"
#include "planner/simulation/simulate.hpp"
#include "tests/support/specs.hpp"

namespace sextant::testing {
namespace {

constexpr const char* kPresets = SEXTANT_SOURCE_DIR "/tools/presets";

class ProfilePlan : public ::testing::TestWithParam<const char*> {};

TEST_P(ProfilePlan, MeasuresEveryWorkThatAnOpNeeds) {
  const StackSpec stack = load_stack("sextant", kPresets);
  const ExecutionGraph graph = lower_tiny(GetParam(), 4, 8, stack);
  const TrainingRun run{
      .graph = graph,
      .stack = stack,
      .kernels = cpu_kernels(),
      .sequences = synthetic_sequences(graph.model.vocab_size, graph.training.global_batch, 1),
      .weights = random_weights(graph.model, 1)};
  WorkProfile profile;
  profile_plan(run, {.steps = 3, .repetitions = 3}, profile);

  std::set<WorkId> needed;
  for (const Op& op : graph.ops) needed.insert(op.work);
  const HashedCost otherwise;
  const ProfiledCostModel cost(profile, otherwise);
  for (const WorkId work : needed) {
    const OpCost one = cost.price(graph.works[work]);
    EXPECT_EQ(one.source, CostSource::measured) << work_key(graph.works[work]);
    EXPECT_GE(one.duration.v, 0);
  }
  EXPECT_GT(simulate(graph, price(graph, cost)).makespan().v, 0);

  const nlohmann::json stored = profile;
  EXPECT_EQ(stored.get<WorkProfile>(), profile);
  nlohmann::json broken = stored;
  broken["operations"]["no such work"] = {{"mean_us", 1}, {"median_us", 1}};
  EXPECT_THROW(broken.get<WorkProfile>(), ConfigError);
  // A work spelled otherwise would never be found.
  const auto block = std::ranges::find_if(
      profile.works, [](const auto& w) { return w.first.find(" b1 ") < w.first.size(); });
  ASSERT_NE(block, profile.works.end());
  std::string other = block->first;
  other.replace(other.find(" b1 "), 4, " b01 ");
  nlohmann::json respelled = profile;
  respelled["operations"][other] = respelled["operations"][block->first];
  try {
    respelled.get<WorkProfile>();
    FAIL() << other;
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find(block->first), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("one spelling"), std::string::npos) << e.what();
  }
}

// Steps that warm a machine up are made before those that count, and add no sample.
TEST_P(ProfilePlan, WhatWarmsUpIsDropped) {
  const StackSpec stack = load_stack("sextant", kPresets);
  const ExecutionGraph graph = lower_tiny(GetParam(), 4, 8, stack);
  const auto samples = [&](Seconds warm_up, std::int64_t& steps) {
    std::atomic<std::int64_t> last = 0;
    const TrainingRun run{
        .graph = graph,
        .stack = stack,
        .kernels = cpu_kernels(),
        .sequences =
            [&, of = synthetic_sequences(graph.model.vocab_size, graph.training.global_batch, 1)](
                std::int64_t step, int sequence, std::span<std::int32_t> out) {
              if (step > last) last = step;
              of(step, sequence, out);
            },
        .weights = random_weights(graph.model, 1)};
    WorkProfile profile;
    profile_plan(run, {.steps = 4, .warm_up = warm_up, .repetitions = 3}, profile);
    std::map<std::string, int> counts;
    for (const auto& [key, work] : profile.works) counts[key] = work.samples;
    steps = last + 1;
    return counts;
  };
  std::int64_t cold = 0, warm = 0;
  EXPECT_EQ(samples(Seconds(0), cold), samples(Seconds(0.2), warm));
  EXPECT_EQ(cold, 4);
  EXPECT_GT(warm, 4) << "control: as many steps";
}

INSTANTIATE_TEST_SUITE_P(Layouts, ProfilePlan,
                         ::testing::Values("mbs1", "dp2.z1.mbs1.b4K", "tp2.sp.pp2.mbs1", "pp2.mbs1.dp2.z3"),
                         [](const auto& param) {
                           std::string text = param.param;
                           for (char& c : text)
                             if (c == '.') c = '_';
                           return text;
                         });

}  // namespace
}  // namespace sextant::testing

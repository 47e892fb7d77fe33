// The plan file: reads back what was written, and refuses what contradicts itself.
#include "core/plan/plan_file.hpp"

#include <functional>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/file_io.hpp"
#include "tests/core/cluster/cluster_support.hpp"
#include "tests/support/specs.hpp"
#include "tests/support/temp_dir.hpp"

namespace sextant {
namespace {

PlanFile sample() {
  PlanFile file;
  file.model = testing::tiny_model();
  file.training = testing::tiny_training();
  file.cluster = test::small_cluster(2);
  file.stack = load_stack(file.training.stack, std::filesystem::path(SEXTANT_SOURCE_DIR) / "tools/presets");
  file.plan = parse_plan_key("tp2.pp2.dp4.z1.mbs1");
  file.prediction = {.step_time_s = {1.0 / 3.0, 0.3, 0.4},
                     .peak_memory_GiB = {10, 9.5, 11},
                     .coverage = 0.9,
                     .tokens_per_s_per_gpu = 1234.5,
                     .model_tflops_per_gpu = 150,
                     .mfu = 0.48,
                     .breakdown_s = {{"compute", 0.3}, {"bubble", 1.0 / 30.0}},
                     .goodput = {},
                     .jitter = PlanJitter{RankBy::p90, 0.32, 0.37}};
  file.provenance = {"sextant 0.1.0", "2026-01-02T03:04:05Z", {"sextant", "plan"}};
  return file;
}

std::string problem_of(const nlohmann::json& j) {
  try {
    PlanFile file;
    from_json(j, file);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(PlanFile, ReadsBackExactly) {
  const TempDir folder;
  const auto path = folder.path() / "plan.json";
  save_plan_file(path, sample());
  EXPECT_EQ(load_plan_file(path), sample());
  EXPECT_EQ(folder.files(), 1U);  // nothing temporary is left
  EXPECT_EQ(nlohmann::json::parse(read_text_file(path)).at("key"), plan_key(sample().plan));
}

TEST(PlanFile, RefusesOtherSchemas) {
  nlohmann::json j = sample();
  ASSERT_EQ(problem_of(j), "");
  j["schema"] = "sextant.plan_file/2";
  EXPECT_NE(problem_of(j).find("schema: found \"sextant.plan_file/2\", expected \"sextant.plan_file/1\""),
            std::string::npos)
      << problem_of(j);
  EXPECT_NE(problem_of(nlohmann::json::array()), "");
  EXPECT_NE(problem_of(nlohmann::json::object()).find("schema"), std::string::npos);
}

TEST(PlanFile, RefusesPartsThatContradictEachOther) {
  const std::vector<std::pair<std::function<void(nlohmann::json&)>, std::string>> cases = {
      {[](auto& j) { j["plan"]["dp"] = 16; }, "GPUs"},
      {[](auto& j) { j["plan"]["tp"] = 3; }, "plan"},
      {[](auto& j) { j["training"]["stack"] = "other"; }, "stack.name"},
      {[](auto& j) { j["prediction"]["step_time_s"]["lower"] = 9; }, "lower <= value <= upper"},
      {[](auto& j) { j["prediction"]["step_time_s"]["value"] = -1; }, "step_time_s.value"},
      {[](auto& j) { j["prediction"]["breakdown_s"]["bubble"] = 0.1; }, "parts of the step, which is 0.333"},
      {[](auto& j) { j["prediction"]["jitter"]["rank_by"] = "worst"; }, "prediction.jitter.rank_by"},
      {[](auto& j) { j["model"].erase("hidden"); }, "model.hidden"},
      {[](auto& j) { j["modle"] = 1; }, "did you mean model?"},
      {[](auto& j) { j["plan"]["zero_stage"] = 3; }, "plan"},
      {[](auto& j) { j["key"] = "tp1"; }, "key: found \"tp1\", expected"},
  };
  for (const auto& [change, expected] : cases) {
    nlohmann::json j = sample();
    change(j);
    EXPECT_NE(problem_of(j).find(expected), std::string::npos)
        << "wanted " << expected << ", got " << problem_of(j);
  }
}

TEST(PlanFile, EveryTruncationIsRefused) {
  const TempDir folder;
  const std::string text = nlohmann::json(sample()).dump();
  for (std::size_t length = 0; length < text.size(); length += 97)
    EXPECT_THROW(load_plan_file(folder.write("cut.json", text.substr(0, length))), ConfigError) << length;
}

TEST(PlanFile, DoesNotWriteWhatCouldNotBeRead) {
  const TempDir folder;
  PlanFile file = sample();
  file.plan.dp = 64;
  EXPECT_THROW(save_plan_file(folder.path() / "plan.json", file), ConfigError);
  EXPECT_EQ(folder.files(), 0U);
  EXPECT_ANY_THROW(save_plan_file("/nonexistent/plan.json", sample()));
}

}  // namespace
}  // namespace sextant

// Every number of every preset file says its unit, its meaning and its source, and `sextant presets show` prints them.
#include <algorithm>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/plan/stack_spec.hpp"
#include "planner/calibration/calibrate_memory.hpp"
#include "tests/support/measured.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/tools/verbs/call.hpp"
#include "tools/inputs/preset_values.hpp"

namespace sextant {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> preset_files(const fs::path& presets) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(presets))
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  return files;
}

// "stacks/x.json: kernels.gemm_bonus: source"
std::vector<std::string> silent_numbers(const fs::path& presets) {
  std::vector<std::string> silent;
  for (const fs::path& file : preset_files(presets))
    for (const PresetValue& v : preset_values(presets, file))
      if (const auto missing = unsaid(v); !missing.empty())
        silent.push_back(
            fmt::format("{}: {}: {}", fs::relative(file, presets).string(), v.key, fmt::join(missing, ", ")));
  return silent;
}

TEST(PresetValues, EveryNumberSaysUnitMeaningAndSource) {
  const auto presets = test::preset_dir();
  std::size_t numbers = 0;
  for (const fs::path& file : preset_files(presets))
    for (const PresetValue& v : preset_values(presets, file)) numbers += v.number ? 1 : 0;
  EXPECT_GT(numbers, 1000U);
  for (const std::string& line : silent_numbers(presets)) ADD_FAILURE() << line;
}

TEST(PresetValues, ANumberThatSaysNothingIsFound) {
  const TempDir dir;
  fs::copy(test::preset_dir(), dir.path(), fs::copy_options::recursive);
  ASSERT_TRUE(silent_numbers(dir.path()).empty());
  std::ofstream(dir.path() / "stacks/mine.json")
      << R"({"name": "mine", "source": "my code", "rules": {"vocab_multiple": 8}, "kernels": {"update_bytes": 28,
             "norm_bytes": {"value": 8, "origin": "F", "source": "my runs"}, "novel_us": {"value": 1, "origin": "G",
             "source": "a guess", "date": "2026-11"}}})";
  EXPECT_EQ(silent_numbers(dir.path()),
            (std::vector<std::string>{"stacks/mine.json: kernels.update_bytes: source",
                                      "stacks/mine.json: kernels.norm_bytes: date",
                                      "stacks/mine.json: kernels.novel_us: unit, meaning, unit us"}));
}

// A default in the code would be a constant without a source.
TEST(PresetValues, NoCoefficientOfAStackIsLeftToTheCode) {
  const auto presets = test::preset_dir();
  for (const std::string& name : stack_names(presets)) {
    const StackSpec stack = load_stack(name, presets);
    if (stack.memory.exact_tensors) continue;  // sextant's own: its tensors are known to the byte
    const auto values = preset_values(presets, presets / "stacks" / (name + ".json"));
    const nlohmann::json whole(stack);
    for (const char* part : {"kernels", "memory"})
      for (const auto& [key, value] : whole.at(part).items()) {
        const std::string path = fmt::format("{}.{}", part, key);
        EXPECT_TRUE(!value.is_number() ||
                    std::ranges::any_of(values, [&](const auto& v) { return v.key == path; }))
            << name << ": " << path;
      }
  }
}

TEST(PresetValues, ConstantsOfTheRefitSayTheirRows) {
  const auto presets = test::preset_dir();
  for (const MemoryPlan& plan : load_memory_plans(presets)) {
    const auto values = preset_values(presets, presets / "stacks" / (plan.stacks.front() + ".json"));
    for (const MemoryConstant& c : plan.constants) {
      const auto v = std::ranges::find(values, "memory." + c.key, &PresetValue::key);
      ASSERT_NE(v, values.end()) << c.key;
      EXPECT_EQ(v->origin, "fitted") << c.key;
      EXPECT_TRUE(v->source.starts_with("sextant calibrate --refit, memory; rows: ")) << v->source;
      EXPECT_TRUE(v->source.ends_with(plan.sources.back())) << v->source;
    }
  }
}

TEST(PresetValues, AreShown) {
  const std::string presets = test::preset_dir().string();
  const auto shown = [&](const std::string& name) {
    return call({"presets", "show", name, "--presets", presets}, 400).out;
  };
  const std::string nanotron = shown("nanotron");
  for (const char* part : {"us per layer", "processor time to launch the forward pass of one layer", "fitted",
                           "sextant calibrate --refit, step times; rows: 60 of nanotron", "megatron-core"})
    EXPECT_NE(nanotron.find(part), std::string::npos) << part << "\n" << nanotron;
  EXPECT_NE(shown("memory").find("as the coefficient of a stack"), std::string::npos);
  EXPECT_NE(shown("framework_map").find("chosen: nearly twice as wide"), std::string::npos);
  EXPECT_NE(shown("llama-2-7b").find("6738415616 (6.738 billion)"), std::string::npos);

  const auto json =
      nlohmann::json::parse(call({"presets", "show", "nanotron", "--json", "--presets", presets}).out);
  const auto& values = json.at("presets").at(0).at("values");
  const auto at =
      std::ranges::find_if(values, [](const auto& v) { return v.at("key") == "kernels.norm_bytes"; });
  ASSERT_NE(at, values.end());
  EXPECT_EQ(at->at("unit"), "bytes per local parameter");
  EXPECT_EQ(at->at("of"), "megatron-core");
  EXPECT_FALSE(at->at("source").get<std::string>().empty());
  const auto model =
      nlohmann::json::parse(call({"presets", "show", "llama-2-7b", "--json", "--presets", presets}).out);
  EXPECT_EQ(model.at("presets").at(0).at("parameters"), 6738415616);
}

}  // namespace
}  // namespace sextant

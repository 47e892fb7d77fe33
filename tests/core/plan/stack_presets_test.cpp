// Presets of stacks as files: every one loads and survives a round trip, a base is overlaid, and what is wrong is named.
#include <filesystem>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/cluster/cluster_spec.hpp"
#include "core/plan/stack_spec.hpp"
#include "tests/support/temp_dir.hpp"

namespace sextant {
namespace {

std::filesystem::path shipped() { return std::filesystem::path(SEXTANT_SOURCE_DIR) / "tools/presets"; }

std::string written(const std::string& name, const std::string& text) {
  static const TempDir dir;
  return dir.write(name, text).string();
}

std::string error_of(const std::string& path) {
  try {
    load_stack(path, shipped());
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

TEST(StackPresets, LoadAndRoundTrip) {
  const auto names = stack_names(shipped());
  EXPECT_GE(names.size(), 15u);
  for (const auto& name : names) {
    const StackSpec s = load_stack(name, shipped());
    EXPECT_EQ(s.name, name);
    EXPECT_FALSE(s.title.empty() || s.version.empty() || s.source.empty()) << name;
    EXPECT_EQ(nlohmann::json(s).get<StackSpec>(), s) << name;
  }
}

TEST(StackPresets, MissSuggests) {
  EXPECT_NE(error_of("megatron-cor").find("did you mean megatron-core?"), std::string::npos);
  EXPECT_NE(error_of("/nowhere/x.json").find("/nowhere/x.json"), std::string::npos);
}

TEST(StackPresets, BadFilesAreRefused) {
  EXPECT_NE(error_of(written("typo.json", R"({"name":"x","kernels":{"norm_fuse":true}})"))
                .find("did you mean norm_fused?"),
            std::string::npos);
  EXPECT_NE(
      error_of(written("type.json", R"({"name":"x","can":{"interleaved":"yes"}})")).find("true or false"),
      std::string::npos);
  EXPECT_NE(error_of(written("negative.json", R"({"name":"x","kernels":{"update_bytes":-1}})"))
                .find("kernels.update_bytes"),
            std::string::npos);
  EXPECT_NE(
      error_of(written("stage.json", R"({"name":"x","can":{"zero_stages":[4]}})")).find("can.zero_stages[0]"),
      std::string::npos);
  const std::string twice = error_of(written(
      "orders.json", R"({"name":"x","can":{"axis_orders":[["tp","cp","dp","pp"],["tp","tp","dp","pp"]]}})"));
  EXPECT_NE(twice.find("can.axis_orders[1]"), std::string::npos) << twice;
  EXPECT_NE(twice.find("once each"), std::string::npos) << twice;
  EXPECT_NE(error_of(written("base.json", R"({"name":"x","base":"megatron-cor"})")).find("megatron-core"),
            std::string::npos);
  EXPECT_NE(error_of(written("cut.json", R"({"name":"x","can":{)")).find("line 1"), std::string::npos);
}

TEST(StackPresets, BaseIsOverlaid) {
  const StackSpec base = load_stack("megatron-core", shipped());
  const StackSpec own = load_stack(
      written("own.json", R"({"base":"megatron-core","name":"own","can":{"interleaved":false}})"), shipped());
  EXPECT_FALSE(own.can.interleaved);
  EXPECT_TRUE(base.can.interleaved);
  EXPECT_EQ(own.kernels, base.kernels);
}

// Frameworks that give each tensor-parallel rank KV heads of its own, and the one that copies them.
TEST(StackPresets, DiffersOnGenerations) {
  const std::string own = written(
      "own_device.json",
      R"({"base":"nanotron","name":"own","on_generation":{"hopper":{"can":{"fp8":true},"rules":{"prefetch_blocks":3}}}})");
  EXPECT_EQ(load_stack(own, shipped()).can.fp8, load_stack("nanotron", shipped()).can.fp8);
  EXPECT_EQ(load_stack(own, shipped(), "ampere"), load_stack(own, shipped()));
  const StackSpec hopper = load_stack(own, shipped(), "hopper");
  EXPECT_TRUE(hopper.can.fp8);
  EXPECT_EQ(hopper.rules.prefetch_blocks, 3);
  for (const char* bad : {"5", R"({"hopper":true})", "[1]"})
    EXPECT_NE(error_of(written("bad_device.json", std::string(R"({"name":"x","on_generation":)") + bad + "}"))
                  .find("on_generation"),
              std::string::npos)
        << bad;
  for (const std::string& name : stack_names(shipped()))
    for (const std::string_view generation : kGenerations)
      EXPECT_EQ(load_stack(name, shipped(), generation).name, name);
}

// Rules by their names of version 0.1, over a base that has today's.
TEST(StackPresets, FormerNamesOfRulesAreRead) {
  const std::string rules = R"("rules":{"joined_products":false,"p2p_beside_compute_1f1b":false})";
  const std::string own =
      written("former.json", R"({"base":"sextant","name":"own",)" + rules +
                                 R"(,"on_generation":{"hopper":{"rules":{"gather_beside_forward":false}}}})");
  const StackRules base = load_stack("sextant", shipped()).rules;
  ASSERT_TRUE(base.fused_projections && base.p2p_overlaps_compute_1f1b && base.param_gather_overlaps_forward);
  std::vector<std::string> notes;
  const StackRules read = load_stack(own, shipped(), "hopper", &notes).rules;
  EXPECT_FALSE(read.fused_projections || read.p2p_overlaps_compute_1f1b ||
               read.param_gather_overlaps_forward);
  ASSERT_EQ(notes.size(), 1u);
  for (const char* part :
       {"former.json: ", "rules.joined_products is read as fused_projections",
        "rules.p2p_beside_compute_1f1b is read as p2p_overlaps_compute_1f1b",
        "on_generation.hopper.rules.gather_beside_forward is read as param_gather_overlaps_forward",
        "; the next version reads the latter alone"})
    EXPECT_NE(notes[0].find(part), std::string::npos) << notes[0];
  EXPECT_EQ(notes[0].find("interleaved"), std::string::npos) << notes[0];
  const std::string both = R"({"name":"x","rules":{"joined_products":false,"fused_projections":true}})";
  EXPECT_NE(error_of(written("both.json", both)).find("rules.joined_products"), std::string::npos);
}

}  // namespace
}  // namespace sextant

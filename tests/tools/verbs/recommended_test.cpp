// The first answer of `sextant plan`: one screen, a layout that surely fits, and its files.
#include <algorithm>
#include <array>
#include <set>
#include <sstream>

#include "core/plan/plan_file.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/tools/verbs/recommended_questions.hpp"

namespace sextant {
namespace {

constexpr OrdinaryQuestion kSmall = {"llama-2-7b", "1x8xa100-80gb", "4096", "128"};
constexpr OrdinaryQuestion kTight = {"llama-65b", "16x8xa100-80gb", "2048", "1024"};

TEST(Recommended, HoldsTheBars) {
  EXPECT_FALSE(holds_bars(kSmall, "megatron-core"));
  EXPECT_FALSE(holds_bars({"llama-3.2-1b", "1x4xh100", "4096", "256"}, "torchtitan"));
  EXPECT_FALSE(holds_bars(kTight, "megatron-core"));
}

// Negative control: the fastest on paper is what the recommendation is not.
TEST(Recommended, DaringIsTheFastestOnPaper) {
  const auto& daring = answered(kTight, "megatron-core", {"--daring"});
  const auto& careful = answered(kTight, "megatron-core");
  EXPECT_EQ(daring.at("recommended").at("key"), daring.at("ranked")[0].at("key"));
  EXPECT_GT(daring.at("recommended").at("chance_of_overflow"), 0.05);
  EXPECT_FALSE(daring.at("risk").at("safe"));
  EXPECT_NE(careful.at("recommended").at("key"), careful.at("ranked")[0].at("key"));
  EXPECT_EQ(careful.at("ranked")[0].at("key"), daring.at("ranked")[0].at("key")) << "the search is the same";
  EXPECT_GE(careful.at("alternatives").size(), 3U);
  EXPECT_LE(careful.at("alternatives").size(), 5U);
}

// The own runtime's memory is known to the byte: it fills what another stack would leave free, and recomputes nothing.
TEST(Recommended, TheOwnRuntimeFillsTheMemory) {
  const OrdinaryQuestion one_gpu = {"llama-2-7b", "1x1xh200", "2048", "64"};
  const auto j = nlohmann::json::parse(call(asked(one_gpu, "sextant", {"--json"})).out);
  EXPECT_EQ(j.at("recommended").at("plan").at("recompute"), "none") << j.at("recommended");
  EXPECT_LT(j.at("recommended").at("chance_of_overflow"), 0.01);
  for (const auto& a : j.at("alternatives")) EXPECT_EQ(a.at("plan").at("zero_stage"), 0) << a.at("key");
}

// Of a node's host memory a fifth stays free where that costs less than a tenth of the step; else the answer warns.
TEST(Recommended, LeavesRoomOnTheHostWhereThatCostsLittle) {
  struct Case {
    const char* host_GiB;
    double free;  // share of it, at least
    const char* says;
  };
  for (const Case& c : {Case{"800", 0.2, "less, but 721.3 GiB of each host's memory"},
                        Case{"560", 0.0, "of 560 GiB: nearly full"}}) {
    const Words host = {"--set", std::string("node.host_memory_GiB=") + c.host_GiB};
    const OrdinaryQuestion q = {"llama-33b", "1x8xa100-40gb", "2048", "128"};
    const auto text = call(asked(q, "deepspeed-zero", host), kUnlimitedColumns);
    EXPECT_TRUE(says(text, c.says)) << text.out;
    const auto j = nlohmann::json::parse(call(asked(q, "deepspeed-zero", host + Words{"--json"})).out);
    const double used = j.at("recommended").at("host_memory_per_node_GiB");
    EXPECT_LE(used, (1 - c.free) * std::stod(c.host_GiB));
  }
}

// How many layouts are shown, and which verb is asked, changes nothing about the one that is recommended.
TEST(Recommended, IsTheSameHoweverItIsAsked) {
  const OrdinaryQuestion q = {"llama-33b", "8x8xa100-80gb", "2048", "1024"};
  const auto key = [&](const Words& more) {
    return nlohmann::json::parse(call(asked(q, "megatron-core", more)).out).at("recommended").at("key");
  };
  const auto usual = key({"--json"});
  for (const char* top : {"1", "12"}) EXPECT_EQ(key({"--json", "--top", top}), usual) << top;
  const auto curve =
      nlohmann::json::parse(call(asked(q, "megatron-core", {"--json", "--scale", "64"})).out).at("scale");
  EXPECT_EQ(curve.at(0).at("best").at("key"), usual);
  Words explain = asked(q, "megatron-core", {"--json", "--quick", "--top", "1"});
  explain.front() = "explain";
  EXPECT_EQ(nlohmann::json::parse(call(explain).out).at("chosen").at("key"), usual);
  // Negative control: what is fastest on paper is another one, in the curve too.
  const auto daring =
      nlohmann::json::parse(call(asked(q, "megatron-core", {"--json", "--scale", "64", "--daring"})).out);
  EXPECT_NE(daring.at("scale").at(0).at("best").at("key"), usual);
}

// Sizes are chosen by layouts that surely fit.
TEST(Recommended, SizesAreOfLayoutsThatFit) {
  const OrdinaryQuestion q = {"llama-33b", "8x8xa100-80gb", "2048", "1024"};
  const auto answer = [&](const Words& more) {
    return nlohmann::json::parse(
        call(asked(q, "megatron-core", Words{"--json", "--set", "device.memory_GiB=76"} + more)).out);
  };
  const Words sizes = {"--scale", "32,64"};
  const auto safe = answer(sizes), daring = answer(sizes + Words{"--daring"});
  for (const auto& point : safe.at("scale")) EXPECT_LT(point.at("best").at("chance_of_overflow"), 0.05);
  for (const auto& point : daring.at("scale")) EXPECT_GT(point.at("best").at("chance_of_overflow"), 0.05);
  const Words fewest = {"--objective", "fewest-gpus"};
  const auto least = answer(fewest);
  EXPECT_LT(least.at("ranked").at(0).at("chance_of_overflow"), 0.05);
  EXPECT_GE(least.at("fewest_gpus"), answer(fewest + Words{"--daring"}).at("fewest_gpus"));
}

TEST(Recommended, IsOneScreen) {
  for (const OrdinaryQuestion& q : {kSmall, kTight})
    for (const int columns : {80, 120}) {
      const auto answer = call(asked(q, "megatron-core", {}), columns);
      ASSERT_EQ(answer.code, ExitCode::ok) << answer.err;
      std::istringstream in(answer.out);
      int lines = 0;
      for (std::string line; std::getline(in, line); ++lines) {
        std::size_t letters = 0;
        for (const char c : line) letters += (static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0;
        EXPECT_LE(letters, static_cast<std::size_t>(columns)) << line;
      }
      EXPECT_LE(lines, 24) << answer.out;
      for (const char* part :
           {"run: ", "OOM risk", "why: ", "evidence: ", "found: ", "next: sextant explain"})
        EXPECT_NE(answer.out.find(part), std::string::npos) << part << "\n" << answer.out;
    }
}

// The next command asks the same presets.
TEST(Recommended, NextKeepsTheFolderOfPresets) {
  const std::string folder = std::string(SEXTANT_SOURCE_DIR) + "/tools/presets";
  const auto answer = call(asked(kSmall, "megatron-core", {"--presets", folder}), 2000);
  EXPECT_NE(answer.out.find(" --presets " + folder + " --plan "), std::string::npos) << answer.out;
  EXPECT_EQ(call(asked(kSmall, "megatron-core", {}), 2000).out.find("--presets"), std::string::npos);
}

TEST(Recommended, IsWhatTheFileHolds) {
  const TempDir dir;
  const std::string file = (dir.path() / "plan.json").string();
  const auto j = nlohmann::json::parse(call(asked(kTight, "megatron-core", {"--json", "-o", file})).out);
  EXPECT_EQ(plan_key(load_plan_file(file).plan), j.at("recommended").at("key"));
}

// 126 layers: an even cut is a hair faster than one that counts embedding and head as a layer each, and is uneven. 128 chunks, more
// than the layers (Llama 3.1 405B as Meta trained it), are faster still, and are told beside it.
TEST(Recommended, StagesAreEqualWithEmbeddingAndHead) {
  const auto j = nlohmann::json::parse(
      call(asked({"llama-3.1-405b", "64x8xh200", "8192", "512"}, "megatron-core", {"--json"})).out);
  EXPECT_TRUE(j.at("recommended").at("unusual_features").empty()) << j.at("recommended").at("key");
  EXPECT_GT(j.at("recommended").at("plan").at("pp"), 1);
  EXPECT_TRUE(std::ranges::any_of(j.at("alternatives"), [&](const nlohmann::json& a) {
    const auto& plan = a.at("plan");
    return plan.at("pp").get<int>() * plan.at("vp").get<int>() == 128 && a.at("slower_share") < 0;
  })) << j.at("alternatives");
}

// A framework's own rule cuts unequally: that is no reason to leave the layout.
TEST(Recommended, TakesTheCutThatTheFrameworkMakes) {
  const auto& j = answered({"llama-2-13b", "4x8xa100-40gb", "4096", "512"}, "nanotron");
  const auto& mine = j.at("recommended");
  EXPECT_GT(mine.at("plan").at("pp"), 1);
  EXPECT_EQ(mine.at("plan").at("chunk_layers"), nlohmann::json({21, 19}));
  EXPECT_TRUE(mine.at("unusual_features").empty()) << mine.at("unusual_features");
}

// Where nothing fits without something on the host, that is all that is unusual, and each layout is in words of its own.
TEST(Recommended, TakesOneUnusualFeatureWhereItMust) {
  for (const OrdinaryQuestion& q : {OrdinaryQuestion{"llama-3.1-70b", "1x8xh100", "8192", "64"},
                                    OrdinaryQuestion{"llama-3.1-8b", "1x2xa100-80gb", "4096", "32"}}) {
    const auto& j = answered(q, "megatron-core");
    const auto& mine = j.at("recommended");
    EXPECT_EQ(mine.at("unusual_features"), nlohmann::json({"optimizer offload"})) << mine.at("key");
    EXPECT_TRUE(j.at("risk").at("safe"));
    EXPECT_LT(mine.at("step_time_s"), 1.15 * j.at("ranked")[0].at("step_time_s").get<double>());
    std::istringstream text(call(asked(q, "megatron-core", {}), kUnlimitedColumns).out);
    std::set<std::string> layouts;
    std::size_t rows = 0;
    for (std::string line; std::getline(text, line);)
      if (line.ends_with(" %") && line.find(" MBS") < line.size()) {
        ++rows;
        layouts.insert(line.substr(19, line.find("  ", 19) - 19));
      }
    EXPECT_GE(rows, 2u) << text.str();
    EXPECT_EQ(layouts.size(), rows) << text.str();
  }
}

// What the user pins is kept, though it is unusual.
TEST(Recommended, KeepsWhatIsAskedFor) {
  const auto j = nlohmann::json::parse(
      call(asked(kSmall, "megatron-core", {"--json", "--fix", "oo=100,z=1,pp=1,cp=1"})).out);
  EXPECT_EQ(j.at("recommended").at("plan").at("optimizer_offload"), 1.0);
  EXPECT_EQ(j.at("recommended").at("unusual_features")[0], "optimizer offload");
}

// What stands beside the recommendation has something that it has not; another kind shares the work in another way and fits.
TEST(Recommended, AlternativesDifferInKind) {
  using Approach = std::array<bool, 4>;
  const auto approach = [](const nlohmann::json& p) {
    return Approach{p.at("tp") > 1, p.at("pp") > 1, p.at("cp") > 1, p.at("zero_stage") == 3};
  };
  int others = 0;
  for (const OrdinaryQuestion& q : {kSmall, kTight})
    for (const char* stack : {"megatron-core", "torchtitan"}) {
      const auto& j = answered(q, stack);
      const auto& mine = j.at("recommended");
      std::set<Approach> seen = {approach(mine.at("plan"))};
      EXPECT_LE(j.at("alternatives").size(), 5u);
      EXPECT_GE(j.at("alternatives").size(), 3u) << q.model << ' ' << stack;
      const auto near = std::ranges::count_if(
          j.at("alternatives"), [](const nlohmann::json& a) { return a.at("slower_share") < 0.15; });
      for (const auto& a : j.at("alternatives")) {
        const std::string kind = a.at("kind");
        const std::string text = std::string(q.model) + ": " + kind + " " + a.at("key").get<std::string>();
        const double slower = a.at("slower_share");
        if (kind.starts_with("fast")) {
          EXPECT_LT(slower, -0.001) << text;
        } else if (kind == "less memory") {
          EXPECT_LT(a.at("peak_memory_GiB").get<double>(), 0.9 * mine.at("peak_memory_GiB").get<double>())
              << text;
        }
        EXPECT_LT(slower, near >= 3 ? 0.15 : 0.5) << text;
        if (kind != "fastest on paper" && kind != "less memory") {
          EXPECT_LT(a.at("chance_of_overflow").get<double>(), 0.05) << text;
        }
        if (kind == "other parallelism") {
          ++others;
          EXPECT_TRUE(seen.insert(approach(a.at("plan"))).second) << text;
        }
      }
    }
  EXPECT_GT(others, 2);
}

}  // namespace
}  // namespace sextant

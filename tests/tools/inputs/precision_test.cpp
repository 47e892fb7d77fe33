// Number formats by name: what each sets, what wins over what, and that the answer names them.
#include "tools/inputs/precision.hpp"

#include <algorithm>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/tools/import/imported.hpp"
#include "tests/tools/verbs/bad_input.hpp"

namespace sextant {
namespace {

using bad_input::Words;
const Words k70B = {"simulate", "--model",        "llama-2-70b", "--cluster",   "2x8xa100-80gb",
                    "--plan",   "z3.mbs1.full",   "--stack",     "fsdp1-eager", "--seq-len",
                    "4096",     "--global-batch", "16",          "--json"};

nlohmann::json answer(const Words& more) {
  Words words = k70B;
  words.insert(words.end(), more.begin(), more.end());
  return nlohmann::json::parse(call(words).out);
}
double memory(const nlohmann::json& j, const char* what) {
  return j.at("stages").at(0).at("memory_GiB").at(what);
}

// 69e9 parameters over 16 ranks: bytes of each kind are exact multiples.
TEST(Precision, OfSeventyBillionUnderFsdp) {
  const auto mixed = answer({}), named = answer({"--precision", "bf16-mixed"}),
             pure = answer({"--precision", "bf16-pure"});
  EXPECT_EQ(mixed.at("precision"), "bf16-mixed");
  EXPECT_EQ(mixed.at("prediction"), named.at("prediction"));
  EXPECT_EQ(pure.at("precision"), "bf16-pure");
  EXPECT_NEAR(memory(pure, "gradients"), memory(mixed, "gradients") / 2, 0.01);
  // Beside the 2 bytes of a parameter: the rest of its fp32 shard, and two moments of 4 or 2 bytes.
  EXPECT_NEAR(memory(pure, "optimizer_state"), memory(mixed, "optimizer_state") * 6 / 10, 0.01);
  EXPECT_LT(memory(pure, "needed") + 25, memory(mixed, "needed"));
  EXPECT_NE(pure.at("notes").dump().find("code that keeps none needs 2 bytes less"), std::string::npos);
}

TEST(Precision, SettingsAndStacks) {
  EXPECT_EQ(answer({"--precision", "bf16-pure", "--set", "training.optimizer_state=fp32"}).at("precision"),
            "other");
  Words deepspeed = k70B;
  *std::find(deepspeed.begin(), deepspeed.end(), "fsdp1-eager") = "deepspeed-zero";
  const auto own = nlohmann::json::parse(call(deepspeed).out);
  EXPECT_EQ(own.at("precision"), "bf16-mixed");  // whose own gradients are bf16
  EXPECT_NEAR(memory(own, "gradients"), memory(own, "parameters"), 0.1);
  const Called text = call({"simulate", "--model", "llama-2-7b", "--cluster", "1x8xh100", "--plan",
                            "dp8.z1.mbs1", "--precision", "fp8", "--global-batch", "64"},
                           kUnlimitedColumns);
  EXPECT_NE(text.out.find("megatron-core in fp8;"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("precision: fp8: parameters bf16 with an fp32 master copy, gradients fp32"),
            std::string::npos)
      << text.out;
  // FSDP keeps no 16-bit shard.
  const Called fsdp = call({"simulate", "--model", "llama-2-7b", "--cluster", "1x8xh100", "--plan",
                            "dp8.z3.mbs1", "--stack", "torchtitan", "--global-batch", "64"},
                           kUnlimitedColumns);
  EXPECT_NE(fsdp.out.find("parameters bf16 gathered from fp32 shards"), std::string::npos) << fsdp.out;
}

class PrecisionBadInput : public bad_input::BadInput {};
TEST_F(PrecisionBadInput, NamesAndDevices) {
  usage(bad_input::with({"--precision", "bf15"}), {"--precision", "bf15", "bf16-mixed"});
  usage(bad_input::simulate({"--model", "llama-2-7b", "--cluster", "1x8xa100-80gb", "--plan", "dp8.z1.mbs1",
                             "--precision", "fp8"}),
        {"--precision", "fp8"});
}

TEST(Precision, WinsOverTheFile) {
  QuestionOptions options;
  options.from = importing::golden("megatron_llama3_8b_fp8.sh").string();
  options.cluster = "1x8xh100";
  options.precision = "bf16-mixed";
  const Question q = read_question(options, importing::kPresets);
  EXPECT_EQ(q.training.compute, Dtype::bf16);
  EXPECT_EQ(q.training.gradient, Dtype::fp32);
}

}  // namespace
}  // namespace sextant

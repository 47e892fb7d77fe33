// Every kind of file given to every option that takes another: the answer says what the file is and which option takes it.
#include "tools/inputs/file_kind.hpp"

#include <gtest/gtest.h>

#include "tests/tools/verbs/bad_input.hpp"

namespace sextant {
namespace {

using bad_input::BadInput;
using bad_input::Words;
using nlohmann::json;

class FileKinds : public BadInput {
 protected:
  FileKinds() {
    write("train.log",
          std::string(" iteration 1/ 100 | elapsed time per iteration (ms): 5000.0 | lm loss: 9 |\n"));
    write("nccl.txt",
          std::string(
              "# Rank  0 Group  0 Pid  4 on  a device  0\n# size count type redop root time algbw busbw\n"));
    write("nccl.json", json{{"results", json::array()}, {"average_bus_bandwidth", {{"bandwidth", 1}}}});
    write("cut.json", json{{"results", {{{"size", 1}, {"out_of_place", nullptr}}}}});
    write("shortlist.json", json{{"schema", "sextant.shortlist/1"}});
    write("calibration.json", json{{"schema", "sextant.calibration/1"}});
    write("profile.json", json{{"schema", "sextant.profile/1"}});
    write("config.json", json{{"model_type", "gemma"}, {"hidden_size", 64}});
    write("ds.json", json{{"zero_optimization", {{"stage", 3}}}});
    write("train.toml", std::string("[model]\nflavor = \"8B\"\n[training]\n[parallelism]\n"));
    write("run.sh", std::string("pretrain_gpt.py --num-layers 2 --hidden-size 8\n"));
  }
};

// Every file that might be JSON is looked at before anyone knows what it is.
TEST_F(FileKinds, OneThatIsNestedWithoutEndIsNone) {
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "{\"a\":";
  deep += "1" + std::string(100'000, '}');
  write("deep.json", deep);
  EXPECT_FALSE(kind_of_file("deep.json"));
  for (const Words& words : {Words{"validate", "deep.json"}, Words{"calibrate", "--log", "deep.json"},
                             Words{"calibrate", "--nccl", "deep.json", "--cluster", "2x8xa100-80gb"},
                             Words{"simulate", "--from", "deep.json", "--cluster", "8x8xa100-80gb"}})
    bad_file(words, {"deep.json"});
}

// What is too long for a configuration is not parsed, by any of the languages of configurations.
TEST_F(FileKinds, LongTextsAreNoConfigurations) {
  const auto of_length = [](const std::string& text, std::size_t bytes) {
    return text + "#" + std::string(bytes - text.size() - 2, 'x') + "\n";
  };
  const std::string axolotl = "base_model: x\nsequence_len: 4096\nmicro_batch_size: 1\n",
                    titan = "[model]\nflavor = \"8B\"\n[training]\n[parallelism]\n";
  for (const auto& [text, longest] : {std::pair{axolotl, 1 << 20}, {titan, 4 << 20}}) {
    write("short.txt", of_length(text, longest));
    EXPECT_TRUE(kind_of_file("short.txt")) << text;
    write("long.txt", of_length(text, longest + 1));
    EXPECT_FALSE(kind_of_file("long.txt")) << text;
  }
}

TEST_F(FileKinds, AreToldByContent) {
  const std::pair<const char*, FileUse> files[] = {{"plan.json", FileUse::plan},
                                                   {"model.json", FileUse::model},
                                                   {"cluster.json", FileUse::cluster},
                                                   {"stack.json", FileUse::stack},
                                                   {"runs.csv", FileUse::runs},
                                                   {"train.log", FileUse::log},
                                                   {"nccl.txt", FileUse::nccl},
                                                   {"nccl.json", FileUse::nccl},
                                                   {"cut.json", FileUse::nccl},
                                                   {"shortlist.json", FileUse::tried},
                                                   {"calibration.json", FileUse::calibration},
                                                   {"profile.json", FileUse::profile},
                                                   {"config.json", FileUse::model},
                                                   {"ds.json", FileUse::from},
                                                   {"train.toml", FileUse::from},
                                                   {"run.sh", FileUse::from}};
  for (const auto& [file, use] : files) {
    const auto kind = kind_of_file(file);
    ASSERT_TRUE(kind) << file;
    EXPECT_EQ(static_cast<int>(kind->use), static_cast<int>(use)) << file << ": " << kind->what;
  }
  write("note.txt", std::string("a note\n"));
  write("prose.csv", std::string("One, two, three.\nA line without any.\n"));
  write("empty", std::string());
  for (const char* none : {"note.txt", "prose.csv", "empty", "folder", "missing"})
    EXPECT_FALSE(kind_of_file(none)) << none;
}

TEST_F(FileKinds, GivenToTheWrongOption) {
  const Words calibrate = {"calibrate",     "--model", "llama-2-7b", "--cluster",
                           "1x8xa100-80gb", "-o",      "out.json"};
  const auto to = [&](const char* option, const char* file, const Words& told) {
    Words words = calibrate;
    words.insert(words.end(), {option, file});
    bad_file(words, told);
  };
  to("--runs", "train.log", {"train.log", "a training log of Megatron-LM", "--log takes it"});
  to("--runs", "nccl.txt", {"nccl.txt", "nccl-tests", "--nccl takes it"});
  to("--runs", "plan.json", {"plan.json", "a plan file of sextant", "--plan takes it"});
  to("--log", "runs.csv", {"runs.csv", "a table of measured runs", "--runs"});
  write("other.csv", std::string("# of one machine\nmodel,micro_batch,step_s\nllama-2-7b,1,0.5\n"));
  to("--log", "other.csv", {"other.csv", "a table (CSV)", "--runs and sextant validate"});
  to("--nccl", "other.csv", {"other.csv", "a table (CSV)", "--runs and sextant validate"});
  to("--log", "run.sh", {"run.sh", "a Megatron-LM command line", "--from"});
  to("--nccl", "train.log", {"train.log", "a training log", "--log takes it"});
  to("--tried", "calibration.json", {"calibration.json", "a calibration", "--calibration takes it"});
  to("--profile", "cluster.json", {"cluster.json", "a cluster", "--cluster takes it"});
  bad_file({"validate", "train.log"}, {"train.log", "a training log", "calibrate --log takes it"});
  bad_file(bad_input::with_cluster("plan.json"), {"plan.json", "a plan file of sextant", "--plan takes it"});
  bad_file(bad_input::with_cluster("model.json"), {"model.json", "a model", "--model takes it"});
  bad_file(bad_input::with_model("cluster.json"), {"cluster.json", "a cluster", "--cluster takes it"});
  bad_file(bad_input::with_model("plan.json"), {"plan.json", "a plan file", "--plan takes it"});
  bad_file(bad_input::with_stack("model.json"), {"model.json", "a model", "--model takes it"});
  bad_file(bad_input::with_plan("cluster.json"), {"cluster.json", "a cluster", "--cluster takes it"});
  bad_file(bad_input::with_plan("train.toml"), {"train.toml", "a torchtitan configuration", "--from"});
  bad_file(bad_input::with_plan("shortlist.json"), {"shortlist.json", "a shortlist", "--tried takes it"});
  bad_file(bad_input::with({"--calibration", "profile.json"}),
           {"profile.json", "a profile", "--profile takes it"});
  bad_file(bad_input::with({"--profile", "calibration.json"}),
           {"calibration.json", "--calibration takes it"});
  const Words from = {"simulate", "--cluster", "1x8xa100-80gb", "--from"};
  for (const auto& [file, option] : {std::pair{"plan.json", "--plan takes it"},
                                     {"model.json", "--model takes it"},
                                     {"train.log", "--log takes it"},
                                     {"runs.csv", "--runs"}}) {
    Words words = from;
    words.emplace_back(file);
    bad_file(words, {file, option});
  }
  bad_file({"run", "cluster.json"}, {"cluster.json", "a cluster", "--cluster takes it"});
  // Of what stands in the place of a run, before what keeps the plan from being run.
  for (const auto& [file, words] : {std::pair{"nccl.txt", Words{"nccl-tests", "--nccl takes it"}},
                                    {"train.log", {"a training log of Megatron-LM", "--log takes it"}},
                                    {"runs.csv", {"a table of measured runs", "--runs"}}}) {
    Words told = {file, "a run: a folder of sextant run -o"};
    told.insert(told.end(), words.begin(), words.end());
    bad_file({"compare", "plan.json", file}, told);
  }
  bad_file({"export", "ds.json", "--to", "megatron-lm", "-o", "job"},
           {"ds.json", "a DeepSpeed configuration", "--from"});
}

// A file of the right kind with something wrong in it keeps the message that says what.
TEST_F(FileKinds, OfTheRightKindKeepTheirMessage) {
  json broken = whole_;
  broken["plan"]["tp"] = 3;
  write("three.json", broken);
  bad_file(bad_input::simulate({"--plan", "three.json"}), {"three.json", "tp"});
  json model = whole_["model"];
  model["n_layers"] = -1;
  write("bad_model.json", model);
  bad_file(bad_input::with_model("bad_model.json"), {"bad_model.json", "n_layers", "-1"});
}

}  // namespace
}  // namespace sextant

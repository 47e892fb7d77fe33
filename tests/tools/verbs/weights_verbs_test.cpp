// `sextant weights`, `sample` and `run --init` as a user calls them, over sound folders and damaged ones: each refusal names
// file and tensor, has the documented exit code and leaves nothing behind.
#include "tests/tools/verbs/bad_input.hpp"

// After gtest's own use of the name: it has a namespace `testing` inside ours.
#include "runtime/weights/hugging_face_export.hpp"
#include "tests/support/specs.hpp"

namespace sextant {
namespace {

using namespace bad_input;

class WeightsVerbs : public BadInput {
 protected:
  WeightsVerbs() {
    // Large enough a vocabulary for plain bytes.
    ModelSpec model = testing::tiny_model(2);
    model.vocab_size = 300;
    export_hugging_face(model, random_weights(model, 1), "tiny", {.max_shard_bytes = 100'000});
    call({"simulate", "--model", "./tiny", "--cluster", "laptop", "--stack", "sextant", "--seq-len", "32",
          "--global-batch", "4", "--plan", "dp2.z1.mbs2", "-o", "tiny.json"});
    EXPECT_TRUE(fs::exists("tiny.json"));
  }
  static std::string a_shard() {
    for (const auto& entry : fs::directory_iterator("tiny"))
      if (entry.path().filename().string().starts_with("model-00002")) return entry.path().string();
    return "";
  }
  static json answer(const Words& arguments) {
    const Called o = call(arguments + Words{"--json"});
    EXPECT_EQ(o.code, ExitCode::ok) << o.err;
    return json::parse(o.out);
  }
};

TEST_F(WeightsVerbs, ShowAndExport) {
  const json shown = answer({"weights", "show", "tiny"});
  EXPECT_EQ(shown.at("schema"), "sextant.weights.show/1");
  EXPECT_EQ(shown.at("dtype"), "F32");
  EXPECT_EQ(call({"weights", "show", "tiny"}).out.find(": 0.000 B"), std::string::npos)
      << "small models have some too";
  EXPECT_GT(shown.at("shards"), 1);
  const json made =
      answer({"weights", "export", "tiny", "--out", "half", "--dtype", "bf16", "--max-shard-size", "1"});
  EXPECT_EQ(made.at("bytes"), shown.at("parameters").get<int>() * 2);
  EXPECT_EQ(answer({"weights", "show", "half"}).at("dtype"), "BF16");
  EXPECT_TRUE(fs::exists("half/model.safetensors"));
  EXPECT_FALSE(fs::exists("half/model.safetensors.index.json"));
}

TEST_F(WeightsVerbs, WrongCommandLines) {
  usage({"weights"}, {"show HF_DIR, or export"});
  usage({"weights", "shwo", "tiny"}, {"did you mean show"});
  usage({"weights", "show"}, {"needs the name of one folder"});
  usage({"weights", "export", "tiny"}, {"--out"});
  usage({"weights", "export", "tiny", "--out", "folder/x", "--dtype", "int8"}, {"--dtype"});
  usage({"weights", "export", "tiny", "--out", "tiny"}, {"--out", "absent or empty"});
  usage({"sample"}, {"the weights are missing"});
  usage({"sample", "tiny", "--prompt", "a"}, {"no tokenizer beside the weights", "--tokenizer bytes"});
  usage({"sample", "tiny", "--prompt", std::string(3000, 'a'), "--tokenizer", "bytes"},
        {"--prompt", "3001 tokens"});
}

TEST_F(WeightsVerbs, FoldersThatAreNotWhatTheySay) {
  for (const Words& verb :
       {Words{"weights", "show", "tiny"}, Words{"weights", "export", "tiny", "--out", "out"},
        Words{"sample", "tiny", "--tokenizer", "bytes"},
        Words{"run", "tiny.json", "--init", "tiny", "-o", "out"}}) {
    const std::string shard = a_shard(), whole = text_of(shard);
    write(shard, whole.substr(0, whole.size() - 4));
    bad_file(verb, {shard, "where the file ends"});
    fs::remove(shard);
    bad_file(verb, {shard, "no such file"});
    write(shard, whole);
    EXPECT_FALSE(fs::exists("out"));
  }
  bad_file({"weights", "show", "folder"}, {"folder", "no config.json"});
  EXPECT_EQ(call({"run", "tiny.json", "--steps", "1", "--no-save", "-o", "unsaved"}).code, ExitCode::ok);
  EXPECT_EQ(call({"run", "tiny.json", "--steps", "1", "-o", "saved"}).code, ExitCode::ok);
  for (const Words& verb : {Words{"weights", "export"}, Words{"sample"}}) {
    const Words more = verb.size() == 1 ? Words{} : Words{"--out", "out"};
    bad_file(verb + Words{"unsaved"} + more,
             {"unsaved", "found a run without a complete checkpoint, expected one in unsaved/checkpoints",
              "sextant run -o unsaved --resume"});
    bad_file(verb + Words{"saved/checkpoints/step-00000001"} + more,
             {"found a checkpoint of a run, expected the folder of the run", "--step"});
  }
  bad_file({"run", "tiny.json", "--init", "absent"}, {"absent", "a Hugging Face checkpoint folder"});
  fs::create_directory("meta");
  write("meta/consolidated.00.pth", std::string("PK"));
  bad_file({"run", "tiny.json", "--init", "meta"}, {"consolidated", "convert_llama_weights_to_hf"});
}

TEST_F(WeightsVerbs, OfADamagedCheckpointTheOneBeforeIsOffered) {
  const Called ran =
      call({"run", "tiny.json", "--steps", "6", "--save-every", "2", "--keep-last", "9", "-o", "run"});
  ASSERT_EQ(ran.code, ExitCode::ok) << ran.err;
  const std::string newest = "run/checkpoints/step-00000006/manifest.json", whole = text_of(newest);
  write(newest, whole.substr(0, whole.size() - 3));
  for (const Words& verb :
       {Words{"weights", "export", "run", "--out", "out"}, Words{"sample", "run", "--tokenizer", "bytes"}}) {
    const Called o = call(verb);
    EXPECT_EQ(o.code, ExitCode::bad_input);
    EXPECT_EQ(o.err.find("--resume"), std::string::npos) << o.err;
    const std::size_t at = o.err.find("--step ");
    ASSERT_NE(at, std::string::npos) << o.err;
    EXPECT_EQ(call(verb + Words{"--step", std::to_string(std::stoi(o.err.substr(at + 7)))}).code,
              ExitCode::ok);
  }
}

TEST_F(WeightsVerbs, WeightsOfAnotherModel) {
  ModelSpec other = testing::tiny_model(3);
  export_hugging_face(other, random_weights(other, 1), "other", {});
  bad_file({"run", "tiny.json", "--init", "other", "-o", "out"},
           {"other/config.json", "num_hidden_layers", "found 3, expected 2", "vocab_size", "--model other"});
}

TEST_F(WeightsVerbs, ARunStartsFromThem) {
  const json random = answer({"run", "tiny.json", "--steps", "1"});
  const json from = answer({"run", "tiny.json", "--steps", "1", "--init", "tiny"});
  EXPECT_EQ(from.at("steps")[0].at("loss"), random.at("steps")[0].at("loss"))
      << "the folder holds the random weights of the same seed";
  ModelSpec model = testing::tiny_model(2);
  model.vocab_size = 300;
  export_hugging_face(model, random_weights(model, 2), "second", {});
  EXPECT_NE(answer({"run", "tiny.json", "--steps", "1", "--init", "second"}).at("steps")[0].at("loss"),
            random.at("steps")[0].at("loss"));
}

TEST_F(WeightsVerbs, ARunIsExportedInTheFormatItStartedFrom) {
  ASSERT_EQ(answer({"weights", "export", "tiny", "--out", "half", "--dtype", "fp16"}).at("dtype"), "F16");
  for (const auto& [from, type] : {std::pair{"tiny", "F32"}, {"half", "F16"}}) {
    const std::string run = std::string("run-") + from, out = std::string("out-") + from;
    answer({"run", "tiny.json", "--steps", "1", "--lr", "0", "--init", from, "-o", run});
    EXPECT_EQ(answer({"weights", "export", run, "--out", out}).at("dtype"), type);
    EXPECT_EQ(text_of(out + "/model.safetensors"), [&] {
      answer({"weights", "export", from, "--out", std::string("one-") + from});
      return text_of(std::string("one-") + from + "/model.safetensors");
    }()) << "the way back rounds nothing";
  }
  answer({"run", "tiny.json", "--steps", "1", "-o", "random"});
  const Called said = call({"weights", "export", "random", "--out", "out-random"});
  EXPECT_NE(said.out.find("as the run's parameters"), std::string::npos) << said.out;
}

// Without --init: what the data knows of its tokenizer goes along.
TEST_F(WeightsVerbs, ARunFromScratchIsExportedWithTheTokenizerOfItsData) {
  ModelSpec model = testing::tiny_model(1);
  model.vocab_size = 702;
  export_hugging_face(model, random_weights(model, 1), "larger", {});
  call({"simulate", "--model", "./larger", "--cluster", "laptop", "--stack", "sextant", "--seq-len", "32",
        "--global-batch", "4", "--plan", "dp2.z1.mbs2", "-o", "larger.json"});
  write("text.txt", std::string(20000, 'a'));
  const std::string tokenizer = SEXTANT_SOURCE_DIR "/tests/golden/tokenizers/tokenizer.json";
  answer({"data", "text.txt", "--tokenizer", tokenizer, "--validation", "0", "--out", "tokens"});
  answer({"run", "larger.json", "--steps", "1", "--data", "tokens", "-o", "run"});
  std::ofstream("tokens/tokenizer.json", std::ios::app) << ' ';
  bad_file({"data", "--check", "tokens"}, {"tokens/tokenizer.json", "as the index states"});
  fs::remove_all("tokens");
  answer({"weights", "export", "run", "--out", "out"});
  for (const char* file : {"out/config.json", "out/generation_config.json"}) {
    const json ids = json::parse(text_of(file));
    EXPECT_EQ(ids.at("bos_token_id"), 700) << file;
    EXPECT_EQ(ids.at("eos_token_id"), 701) << file;
  }
  EXPECT_EQ(text_of("out/tokenizer.json"), text_of(tokenizer));
  EXPECT_EQ(json::parse(text_of("out/tokenizer_config.json")).at("eos_token"), "<|end_of_text|>");
  EXPECT_EQ(answer({"sample", "out", "--prompt", "a", "--max-tokens", "2"}).at("prompt_tokens")[0], 700);

  answer({"data", "text.txt", "--tokenizer", "bytes", "--validation", "0", "--out", "bytes"});
  answer({"run", "larger.json", "--steps", "1", "--data", "bytes", "-o", "of-bytes"});
  const Called said = call({"weights", "export", "of-bytes", "--out", "out-bytes"}, kUnlimitedColumns);
  EXPECT_NE(said.out.find("sextant sample out-bytes --tokenizer bytes"), std::string::npos) << said.out;
  EXPECT_EQ(json::parse(text_of("out-bytes/generation_config.json")).at("eos_token_id"), 257);
}

TEST_F(WeightsVerbs, SamplesAreRepeatable) {
  const Words ask = {"sample", "tiny", "--tokenizer", "bytes", "--prompt", "abc", "--max-tokens", "8"};
  const json once = answer(ask + Words{"--seed", "3"}), twice = answer(ask + Words{"--seed", "3"});
  EXPECT_EQ(once.at("tokens"), twice.at("tokens"));
  EXPECT_EQ(once.at("prompt_tokens"), json({256, 'a', 'b', 'c'}));
  EXPECT_NE(answer(ask + Words{"--seed", "4"}).at("tokens"), once.at("tokens"));
  const json likeliest = answer(ask + Words{"--temperature", "0"});
  EXPECT_EQ(answer(ask + Words{"--temperature", "0", "--seed", "9"}).at("tokens"), likeliest.at("tokens"));
  const Called text = call(ask + Words{"--temperature", "0"});
  EXPECT_EQ(text.code, ExitCode::ok);
  EXPECT_TRUE(text.out.starts_with("abc")) << text.out;
}

TEST_F(WeightsVerbs, ATokenizerOfAnotherVocabulary) {
  const ModelSpec small = [] {
    ModelSpec m = testing::tiny_model(1);
    m.vocab_size = 67;
    return m;
  }();
  export_hugging_face(small, random_weights(small, 1), "small", {});
  bad_file({"sample", "small", "--tokenizer", "bytes", "--prompt", "a"},
           {"bytes", "258 tokens", "at most the 67", "another model"});
}

}  // namespace
}  // namespace sextant

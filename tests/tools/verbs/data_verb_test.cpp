// `sextant data`, and `sextant run --data`: texts to tokens to a run that learns them; and inputs that do not go together.
#include "tests/tools/verbs/bad_input.hpp"

namespace sextant {
namespace {

using namespace bad_input;

class DataVerb : public BadInput {
 protected:
  DataVerb() {
    std::string text;
    for (int i = 0; i < 400; ++i)
      text += "the ship sails north by night, and we keep the log of day " + std::to_string(i % 50) + "\n";
    write("text.txt", text);
    call({"simulate", "--model", "stories-260k", "--cluster", "laptop", "--stack", "sextant", "--seq-len",
          "32", "--global-batch", "8", "--plan", "dp2.z1.mbs4", "-o", "plan.json"});
  }
  static Words data(const Words& more) {
    return Words{"data", "text.txt", "--tokenizer", "bytes", "--document", "line"} + more;
  }
  static void make(const std::string& out) {
    const auto made = call(data({"--validation", "0.2", "--out", out}));
    ASSERT_EQ(made.code, ExitCode::ok) << made.err;
  }
};

TEST_F(DataVerb, ARunLearnsTheText) {
  make("tokens");
  const auto ran = call({"run", "plan.json", "--data", "tokens", "--steps", "12", "--lr", "1e-2",
                         "--eval-every", "4", "-o", "run", "--json"});
  ASSERT_EQ(ran.code, ExitCode::ok) << ran.err;
  const json answer = json::parse(ran.out);
  EXPECT_LT(answer["steps"][11]["loss"], 0.8 * answer["steps"][0]["loss"].get<double>());
  ASSERT_EQ(answer["evaluations"].size(), 3U);
  EXPECT_EQ(answer["evaluations"][2]["step"], 11);
  EXPECT_LT(answer["evaluations"][2]["validation_loss"],
            0.9 * answer["evaluations"][0]["validation_loss"].get<double>());
  EXPECT_EQ(answer["data"]["sets"][0]["folder"], "tokens");
  // The same lines in the log, and the same training without looks.
  std::istringstream lines(text_of("run/steps.jsonl"));
  int steps = 0, looks = 0;
  for (std::string line; std::getline(lines, line);)
    (json::parse(line).contains("validation_loss") ? looks : steps) += 1;
  EXPECT_EQ(steps, 12);
  EXPECT_EQ(looks, 3);
  const json plain = json::parse(
      call({"run", "plan.json", "--data", "tokens", "--steps", "12", "--lr", "1e-2", "--json"}).out);
  const json other = json::parse(
      call({"run", "plan.json", "--data", "tokens", "--steps", "12", "--lr", "1e-2", "--seed", "2", "--json"})
          .out);
  EXPECT_EQ(plain["steps"][11]["loss"], answer["steps"][11]["loss"]);
  EXPECT_NE(other["steps"][11]["loss"], answer["steps"][11]["loss"]) << "control: another order";
}

TEST_F(DataVerb, ASetThatWasExchangedIsNotGoneOnWithUnasked) {
  make("tokens");
  ASSERT_EQ(call({"run", "plan.json", "--data", "tokens", "--steps", "2", "-o", "run"}).code, ExitCode::ok);
  ASSERT_EQ(call({"run", "-o", "run", "--resume", "--steps", "3"}).code, ExitCode::ok) << "control";
  fs::remove_all("tokens");
  ASSERT_EQ(call(data({"--validation", "0.3", "--out", "tokens"})).code, ExitCode::ok);
  bad_file({"run", "-o", "run", "--resume", "--steps", "4"},
           {"tokens/index.json", "digest", "another set is in its place", "--data tokens"});
  const auto asked = call({"run", "-o", "run", "--resume", "--steps", "4", "--data", "tokens"});
  EXPECT_EQ(asked.code, ExitCode::ok) << asked.err;
  EXPECT_NE(asked.out.find("the tokens are others"), std::string::npos) << asked.out;
}

TEST_F(DataVerb, ARunDoesNotGoOnWithTokensOfAnotherTokenizer) {
  make("tokens");
  ASSERT_EQ(call({"run", "plan.json", "--data", "tokens", "--steps", "2", "-o", "run"}).code, ExitCode::ok);
  ASSERT_EQ(call(data({"--validation", "0.3", "--out", "again"})).code, ExitCode::ok);
  const auto same = call({"run", "-o", "run", "--resume", "--steps", "3", "--data", "again"});
  EXPECT_EQ(same.code, ExitCode::ok) << "control: " << same.err;
  const std::string unigram = SEXTANT_SOURCE_DIR "/tests/golden/tokenizers/unigram.model";
  ASSERT_EQ(call({"data", "text.txt", "--tokenizer", unigram, "--document", "line", "--out", "pieces"}).code,
            ExitCode::ok);
  bad_file({"run", "-o", "run", "--resume", "--steps", "4", "--data", "pieces"},
           {"pieces/index.json", "tokenizer.digest", "the run's tokenizer", "--init"});
}

TEST_F(DataVerb, SetsAreMixedAndPacked) {
  make("a");
  make("b");
  const auto ran = call({"run", "plan.json", "--data", "a:0.7", "--data", "b:0.3", "--packing", "within",
                         "--steps", "2", "--eval-every", "2"});
  ASSERT_EQ(ran.code, ExitCode::ok) << ran.err;
  for (const char* words : {"tokens of a (70 %)", "tokens of b", "fill", "validation loss", "a ", "b "})
    EXPECT_NE(ran.out.find(words), std::string::npos) << words << " in " << ran.out;
}

TEST_F(DataVerb, DocumentsAreKeptApart) {
  make("tokens");
  const auto losses = [](const Words& more) {
    const auto ran = call(Words{"run", "plan.json", "--data", "tokens", "--steps", "4", "--json"} + more);
    EXPECT_EQ(ran.code, ExitCode::ok) << ran.err;
    const json answer = json::parse(ran.out);
    std::vector<double> all;
    for (const json& step : answer["steps"]) all.push_back(step["loss"]);
    return all;
  };
  const auto apart = losses({"--packing", "apart", "-o", "run"});
  EXPECT_NE(apart, losses({})) << "they share sequences, but not their context";
  EXPECT_NE(apart, losses({"--packing", "within"}));
  // Goes on in the same way, under another layout too.
  call({"simulate", "--model", "stories-260k", "--cluster", "laptop", "--stack", "sextant", "--seq-len", "32",
        "--global-batch", "8", "--plan", "cp2.dp1.mbs4", "-o", "cp.json"});
  const auto more = call({"run", "cp.json", "-o", "run", "--resume", "--steps", "6", "--json"});
  ASSERT_EQ(more.code, ExitCode::ok) << more.err;
  EXPECT_EQ(json::parse(more.out)["data"]["packing"], "apart");
  usage({"run", "plan.json", "--packing", "apart"},
        {"--packing: found apart, expected --data with it", "synthetic tokens have no documents"});
  usage({"run", "plan.json", "--data", "tokens", "--packing", "together"},
        {"--packing", "together", "across, apart, within"});
}

TEST_F(DataVerb, AnswersAndChecks) {
  const auto made = call(data({"--out", "tokens/", "--json"}));
  ASSERT_EQ(made.code, ExitCode::ok) << made.err;
  const json answer = json::parse(made.out);
  EXPECT_EQ(answer["schema"], "sextant.data/1");
  EXPECT_EQ(answer["splits"]["train"]["documents"].get<int>() +
                answer["splits"]["validation"]["documents"].get<int>(),
            400);
  EXPECT_EQ(json::parse(call({"data", "--check", "tokens", "--json"}).out)["whole"], true);
  std::ofstream("tokens/train-00000.tokens", std::ios::in | std::ios::out) << "xx";
  bad_file({"data", "--check", "tokens"}, {"tokens/train-00000.tokens", "digest"});
  refused(data({"--out", "tokens"}), ExitCode::usage, {"--out", "not there yet", "nothing is overwritten"});
}

TEST_F(DataVerb, WhatDoesNotGoTogether) {
  make("tokens");
  usage({"data"}, {"TEXT is missing"});
  usage({"data", "text.txt"}, {"--tokenizer is missing"});
  usage({"data", "text.txt", "--tokenizer", "bytes"}, {"--out is missing"});
  usage({"data", "text.txt", "--check", "tokens"}, {"--check"});
  usage({"data", "text.txt", "--tokenizer", "bytes", "--out", "x", "--document", "page"},
        {"--document", "file, paragraph, line"});
  bad_file({"data", "absent.txt", "--tokenizer", "bytes", "--out", "x"},
           {"absent.txt", "found no such file"});
  // Storage that fails while it is read: the kernel's own file of that kind, and an archive that was cut.
  bad_file({"data", "/proc/self/mem", "--tokenizer", "bytes", "--out", "x"}, {"mem", "Input/output error"});
  std::filesystem::create_symlink("loop.txt", "loop.txt");
  bad_file({"data", "loop.txt", "--tokenizer", "bytes", "--out", "x"}, {"loop.txt", "symbolic links"});
  bad_file({"data", "good.txt", "--tokenizer", "loop.txt", "--out", "x"}, {"loop.txt", "symbolic links"});
  write("cut.txt.gz", std::string("\x1f\x8b\x08\0\0\0\0\0\0\3\xcb", 11));
  bad_file({"data", "cut.txt.gz", "--tokenizer", "bytes", "--out", "x"},
           {"cut.txt.gz", "unexpected end", "to its end"});
  write("empty.txt", std::string());
  bad_file({"data", "empty.txt", "--tokenizer", "bytes", "--out", "x"}, {"empty.txt", "no text"});
  write("blank.txt", std::string(" \n\t\n\r\n\n  "));
  for (const char* document : {"file", "line", "paragraph"})
    bad_file({"data", "blank.txt", "--tokenizer", "bytes", "--document", document, "--out", "x"},
             {"blank.txt", "no text"});
  write("binary.txt", std::string("\x7f"
                                  "ELF\0\1",
                                  6));
  bad_file({"data", "binary.txt", "--tokenizer", "bytes", "--out", "x"},
           {"binary.txt:1", "a NUL byte", "binary file"});
  EXPECT_FALSE(fs::exists("x") || fs::exists("x.partial")) << "nothing is left of what was refused";
  bad_file({"data", "text.txt", "--tokenizer", "plan.json", "--out", "x"}, {"plan.json", "model.vocab"});
  write("bad.txt", std::string("fine\nnot \xff fine\n"));
  bad_file({"data", "bad.txt", "--tokenizer", "bytes", "--out", "x"}, {"bad.txt:2", "0xff", "UTF-8"});
  bad_file({"run", "plan.json", "--data", "nowhere"}, {"nowhere", "no such folder"});
  bad_file({"run", "plan.json", "--data", "folder"}, {"folder", "no index.json"});
  usage({"run", "plan.json", "--data", "tokens:-1"}, {"--data", "tokens:-1", "WEIGHT"});
  usage({"run", "plan.json", "--eval-every", "3"}, {"--eval-every", "--data"});
  json index;
  std::ifstream("tokens/index.json") >> index;
  index["tokenizer"]["vocab_size"] = 5000;
  write("tokens/index.json", index);
  bad_file({"run", "plan.json", "--data", "tokens"}, {"tokens/index.json", "index_digest", "damaged"});
  index["schema"] = "sextant.data/1";
  index.erase("index_digest");  // from before there was a digest
  write("tokens/index.json", index);
  bad_file({"run", "plan.json", "--data", "tokens"},
           {"tokens/index.json", "tokenizer.vocab_size", "5000", "512"});
  EXPECT_EQ(call(data({"--validation", "0", "--out", "all"})).code, ExitCode::ok);
  bad_file({"run", "plan.json", "--data", "all", "--eval-every", "1"},
           {"all", "no held-out text", "--validation"});
  write("short.txt", std::string("a few words"));
  EXPECT_EQ(call({"data", "short.txt", "--tokenizer", "bytes", "--validation", "0", "--out", "short"}).code,
            ExitCode::ok);
  bad_file({"run", "plan.json", "--data", "short"}, {"short", "13 tokens", "32 tokens"});
}

}  // namespace
}  // namespace sextant

// `sextant run`, `compare` and `profile` over inputs that are not theirs: each refusal says what to do instead. A run that
// is done right stands beside them.
#include "runtime/devices/make_device.hpp"
#include "tests/tools/verbs/bad_input.hpp"

namespace sextant {
namespace {

using namespace bad_input;

class RunVerbs : public BadInput {
 protected:
  RunVerbs() { make("two.json", "dp2.z1.mbs2", "sextant"); }
  static void make(const std::string& file, const std::string& key, const std::string& stack) {
    call({"simulate", "--model", "stories-260k", "--cluster", "laptop", "--stack", stack, "--seq-len", "32",
          "--global-batch", "4", "--plan", key, "-o", file});
    ASSERT_TRUE(fs::exists(file));
  }
  static void run_it() {
    const auto made = call({"run", "two.json", "--steps", "2", "-o", "done"});
    ASSERT_EQ(made.code, ExitCode::ok) << made.err;
  }
};

TEST_F(RunVerbs, ARunLeavesItsFiles) {
  run_it();
  for (const char* file : {"done/steps.jsonl", "done/plan.json", "done/timeline.json"})
    EXPECT_TRUE(fs::exists(file)) << file;
  std::istringstream lines(text_of("done/steps.jsonl"));
  int n = 0;
  for (std::string line; std::getline(lines, line); ++n) {
    const json step = json::parse(line);
    EXPECT_EQ(step.at("step"), n);
    EXPECT_FALSE(step.at("skipped").get<bool>());
    EXPECT_GT(step.at("loss").get<double>(), 0);
  }
  EXPECT_EQ(n, 2);
}

TEST_F(RunVerbs, PlanFilesThatCannotBeRun) {
  usage({"run"}, {"the plan file is missing", "for example: sextant plan"});
  bad_file({"run", "absent.json"}, {"absent.json", "no such file"});
  make("other.json", "dp2.z1.mbs2", "megatron-core");
  bad_file({"run", "other.json"}, {"other.json", "found megatron-core", "--stack sextant"});
  json edited;
  std::ifstream("two.json") >> edited;
  edited["model"]["vocab_size"] = "many";
  write("edited.json", edited);
  bad_file({"run", "edited.json"}, {"edited.json", "vocab_size"});
  for (const auto& verb : {Words{"run"}, Words{"profile", "--for"}, Words{"compare"}}) {
    write("cut.json", text_of("two.json").substr(0, 200));
    bad_file(verb + Words{"cut.json"} + (verb[0] == "compare" ? Words{"folder"} : Words{}), {"cut.json"});
  }
}

TEST_F(RunVerbs, PlanFilesEditedByHand) {
  const json whole = json::parse(text_of("two.json"));
  const std::vector<std::pair<const char*, json>> edits = {
      {"/model/norm_eps", 0.25}, {"/model/n_layers", 3},
      {"/training/seq_len", 64}, {"/cluster/device/memory_GiB", 1000},
      {"/prediction/mfu", 0.99}, {"/digest", std::string(32, '0')}};
  for (const auto& [pointer, value] : edits) {
    json edited = whole;
    edited[json::json_pointer(pointer)] = value;
    write("edited.json", edited);
    for (const auto& verb : {Words{"run"}, Words{"profile", "--for"}})
      bad_file(verb + Words{"edited.json"},
               {"edited.json", "digest", "edited by hand?", "sextant simulate --plan"});
  }
  json none = whole;
  none.erase("digest");
  write("edited.json", none);
  bad_file({"run", "edited.json"}, {"digest: found none"});
  write("same.json", whole.dump(7));  // another look is no other plan
  EXPECT_EQ(call({"run", "same.json", "--steps", "1"}).code, ExitCode::ok);
}

TEST_F(RunVerbs, PlansThatDoNotFitTheDeviceTheyWerePlannedFor) {
  const Words with_memory = {"simulate", "--model", "stories-260k", "--cluster", "laptop",
                             "--stack",  "sextant", "--seq-len",    "32",        "--global-batch",
                             "4",        "--plan",  "dp2.z1.mbs2",  "-o",        "small.json",
                             "--set"};
  call(with_memory + Words{"device.memory_GiB=0.002"});
  bad_file({"run", "small.json"}, {"small.json", "0.004 GiB for a rank of stage 0",
                                   "at most the 0.002 GiB of the cpu", "smaller model"});
  call(with_memory + Words{"device.memory_GiB=0.006"});
  const Called runs = call({"run", "small.json", "--steps", "1"});
  EXPECT_EQ(runs.code, ExitCode::ok) << "what ranks allocate counts, no reserve";
  EXPECT_NE(runs.out.find("note: the plan does not fit its cluster: needs 1.5 GiB, has 0.0 GiB"),
            std::string::npos)
      << runs.out;
}

// Planning says so already, and a search offers nothing else.
TEST_F(RunVerbs, MoreTensorParallelRanksThanKeyValueHeads) {
  const Words job = {"--model", "llama-3.2-1b", "--cluster", "laptop",
                     "--set",   "node.gpus=16", "--stack",   "sextant"};
  const Called o = call(Words{"simulate", "--plan", "tp16.sp.mbs1", "-o", "wide.json"} + job);
  EXPECT_NE(o.code, ExitCode::ok);
  EXPECT_NE((o.out + o.err).find("cannot cut 8 KV heads into tp=16"), std::string::npos) << o.out << o.err;
  EXPECT_FALSE(fs::exists("wide.json"));
  const Called narrow = call(Words{"simulate", "--plan", "tp8.sp.dp2.mbs1"} + job);
  EXPECT_NE(narrow.out.find("does not fit"), std::string::npos) << "control: lawful, but too large for it";
}

// As many as are needed: sums in fp64 are the same whatever the threads.
TEST_F(RunVerbs, ExactGemmsDoNotDependOnThreads) {
  const auto losses = [](const Words& how) {
    const Called o = call(Words{"run", "two.json", "--steps", "2", "--json"} + how);
    EXPECT_EQ(o.code, ExitCode::ok) << o.err;
    std::vector<double> all;
    const json answer = json::parse(o.out);
    for (const auto& step : answer.at("steps")) all.push_back(step.at("loss"));
    return all;
  };
  const auto exact = losses({"--gemms", "exact", "--threads", "1"});
  EXPECT_EQ(exact, losses({"--gemms", "exact", "--threads", "3"}));
  EXPECT_NE(exact, losses({"--threads", "1"})) << "control";
  usage({"run", "two.json", "--gemms", "exakt"}, {"one of fast, proposed, exact"});
}

TEST_F(RunVerbs, FoldersThatCannotBeWritten) {
  run_it();
  const std::string before = text_of("done/steps.jsonl");
  refused({"run", "two.json", "-o", "done"}, ExitCode::usage, {"-o", "done", "without a run in it"});
  EXPECT_EQ(text_of("done/steps.jsonl"), before);
  refused({"run", "two.json", "-o", "two.json"}, ExitCode::usage, {"-o", "two.json", "can be made"});
  EXPECT_EQ(call({"run", "two.json", "--steps", "1", "-o", "folder"}).code, ExitCode::ok) << "empty: welcome";
}

TEST_F(RunVerbs, OutputsAreCheckedBeforeTheWork) {
  run_it();
  const std::string nowhere = "absent/x.json";
  bad_file({"run", "two.json", "--trace", nowhere}, {nowhere, "cannot be written"});
  bad_file({"compare", "two.json", "done", "--trace", nowhere}, {nowhere, "cannot be written"});
  bad_file({"profile", "--for", "two.json", "-o", nowhere}, {nowhere, "cannot be written"});
  refused({"profile", "--for", "two.json", "-o", "two.json"}, ExitCode::usage, {"a file of its own"});
}

// One MPI world serves one measurement; kernels are traced where there are any.
TEST_F(RunVerbs, ProfilesThatCannotBeTaken) {
  usage({"profile", "--comm", "mpi", "--for", "two.json", "--machine"}, {"one thing in a job"});
  usage({"profile", "--ranks", "99"}, {"--ranks"});
  std::string why;
  if (!cuda_gpus(why).empty()) return;
  for (const Words& how :
       {Words{"profile", "--device", "cuda"}, Words{"profile", "--for", "two.json", "--device", "cuda"},
        Words{"run", "two.json", "--device", "cuda", "--record"}})
    usage(how, {"--device: found cuda", "cpu, or cuda with a usable GPU", why});
  // CPU ranks are timed anyway, and told that these do nothing.
  const char* told = "not used by CPU ranks, which have neither CUPTI nor CUDA graphs:";
  const auto shown = call({"run", "two.json", "--steps", "1", "--record", "--cuda-graphs", "on"}, 200);
  EXPECT_EQ(shown.code, ExitCode::ok);
  EXPECT_NE(shown.out.find(told), std::string::npos) << shown.out;
  const auto json = call({"run", "two.json", "--steps", "1", "--cuda-graphs", "on", "--json"});
  EXPECT_EQ(json::parse(json.out).at("unused_fields"), std::string(told) + " --cuda-graphs");
  const auto without = call({"run", "two.json", "--steps", "1", "-o", "begun", "--json"});
  EXPECT_FALSE(json::parse(without.out).contains("unused_fields"));
  EXPECT_NE(call({"run", "-o", "begun", "--resume", "--steps", "2", "--record"}, 200).out.find(told),
            std::string::npos)
      << "options of one start count on a resumed run too";
}

TEST_F(RunVerbs, RunsOfAnotherPlan) {
  run_it();
  make("tp.json", "tp2.sp.dp1.mbs2", "sextant");
  bad_file({"compare", "tp.json", "done"}, {"done/timeline.json", "belongs to another plan"});
  bad_file({"compare", "two.json", "folder"}, {"without timeline.json", "sextant run -o"});
  bad_file({"compare", "two.json", "absent"}, {"absent"});
  usage({"compare", "two.json"}, {"a plan file and a run are needed"});
  json edited;
  std::ifstream("done/timeline.json") >> edited;
  edited["end_s"].erase(0);
  write("done/timeline.json", edited);
  bad_file({"compare", "two.json", "done"}, {"done/timeline.json", "end_s", "operations"});
}

TEST_F(RunVerbs, ToleranceIsAnExitCode) {
  run_it();
  EXPECT_EQ(call({"compare", "two.json", "done", "--max-error", "1000000"}).code, ExitCode::ok);
  const auto outside = call({"compare", "two.json", "done", "--max-error", "0.0000001"});
  EXPECT_EQ(outside.code, ExitCode::outside_tolerance);
  EXPECT_NE(outside.err.find("step off by"), std::string::npos) << outside.err;
  EXPECT_NE(outside.out, "") << "with the table that says where";
}

TEST_F(RunVerbs, ScalingCurveOfRuns) {
  run_it();
  const auto curve = call({"compare", "--scale", "done", "done"});
  ASSERT_EQ(curve.code, ExitCode::ok) << curve.err;
  std::istringstream lines(curve.out);
  std::string head, rule, first, second;
  for (std::string* line : {&head, &rule, &first, &second}) std::getline(lines, *line);
  EXPECT_TRUE(head.ends_with("speed-up")) << curve.out;
  for (const std::string& row : {first, second}) EXPECT_TRUE(row.ends_with("1.00")) << curve.out;

  // By ranks, whatever the order of the arguments; one model, and runs only.
  const auto other = [&](const char* name, const Words& more) {
    Words plan{"simulate", "--model", "stories-260k", "--cluster", "laptop",
               "--stack",  "sextant", "--seq-len",    "32",        "--global-batch",
               "4",        "--plan",  "dp1.z1.mbs2",  "-o",        "other.json"};
    plan.insert(plan.end(), more.begin(), more.end());
    ASSERT_EQ(call(plan).code, ExitCode::ok);
    ASSERT_EQ(call({"run", "other.json", "--steps", "2", "-o", name}).code, ExitCode::ok);
  };
  other("one", {});
  const auto ranks = json::parse(call({"compare", "--scale", "done", "one", "--json"}).out).at("runs");
  EXPECT_EQ(ranks.at(0).at("run"), "one");
  EXPECT_EQ(ranks.at(1).at("run"), "done");
  double difference = 0;
  for (const auto& [cause, s] : ranks.at(0).at("difference_s").items()) difference += s.get<double>();
  EXPECT_NEAR(
      difference,
      ranks.at(0).at("measured_step_s").get<double>() - ranks.at(0).at("predicted_step_s").get<double>(),
      1e-9);
  other("deeper", {"--set", "model.n_layers=7"});
  bad_file({"compare", "--scale", "done", "deeper"}, {"deeper", "model", "the same in all runs"});
  bad_file({"compare", "--scale", "two.json", "done"}, {"two.json", "every argument is a run"});
}

TEST_F(RunVerbs, ProfilesThatAreNone) {
  ASSERT_EQ(call({"profile", "--for", "two.json", "--steps", "2", "-o", "good.json"}).code, ExitCode::ok);
  EXPECT_EQ(json::parse(text_of("good.json")).at("timed_by"), "events");
  EXPECT_EQ(call({"run", "two.json", "--steps", "1", "--profile", "good.json"}).code, ExitCode::ok);
  json good;
  std::ifstream("good.json") >> good;
  const auto spoilt = [&](const std::function<void(json&)>& spoil, const Words& told) {
    json bad = good;
    spoil(bad);
    write("bad.json", bad);
    bad_file({"run", "two.json", "--profile", "bad.json"}, Words{"bad.json"} + told);
  };
  spoilt([](json& j) { j["schema"] = "sextant.plan/1"; }, {"schema"});
  spoilt([](json& j) { j["operations"]["no such work"] = j["operations"].front(); }, {"no such work"});
  spoilt([](json& j) { j["operations"].front()["median_us"] = -1; }, {"median_us"});
  spoilt([](json& j) { j["operations"] = 3; }, {"operations"});
  write("bad.json", text_of("good.json").substr(0, 100));
  bad_file({"run", "two.json", "--profile", "bad.json"}, {"bad.json"});
  bad_file({"run", "two.json", "--profile", "absent.json"}, {"absent.json", "no such file"});
  bad_file({"run", "two.json", "--profile", "two.json"}, {"two.json", "schema", "sextant profile --for"});
  EXPECT_EQ(call({"run", "two.json", "--profile", "two.json"}).err.find("unknown field"), std::string::npos);
  json other = good;
  other["operations"] = json::object();
  write("other.json", other);
  const auto run = call({"run", "two.json", "--steps", "1", "--profile", "other.json"});
  EXPECT_NE(run.out.find("a profile of other plans"), std::string::npos) << run.out;
}

}  // namespace
}  // namespace sextant

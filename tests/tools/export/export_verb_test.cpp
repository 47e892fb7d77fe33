// The command itself: what it is given, where it writes, how ranks are started.
#include <array>
#include <csignal>
#include <cstdio>
#include <functional>
#include <map>

#include <sys/resource.h>

#include "tests/tools/export/export_case.hpp"
#include "tests/tools/verbs/bad_input.hpp"
#include "tools/export/launch.hpp"

namespace sextant::exporting {
namespace {

namespace fs = std::filesystem;
using bad_input::BadInput;

class ExportBadInput : public BadInput {};

TEST_F(ExportBadInput, CommandLines) {
  const Words plain = {"export", "plan.json"};
  usage({"export"}, {"the plan is missing", "--model llama-3.1-8b --cluster 4x8xh100"});
  usage({"export", "plan.json", "--to", "megatron-lm", "-o", "job", "--seq-len", "2048"},
        {"plan.json has its own model", "name a plan file, or a model and a cluster"});
  usage({"export", "--model", "llama-3.2-1b", "--to", "torchtitan", "-o", "job"}, {"--cluster is missing"});
  usage(plain, {"--to is missing", "--to megatron-lm"});
  usage({"export", "plan.json", "--to", "megatron-lm"}, {"--output is missing"});
  usage({"export", "plan.json", "--to", "megatron", "-o", "job"},
        {"--to", "megatron", "did you mean megatron-lm?"});
  usage({"export", "plan.json", "--to", "megatron-lm@0.3", "-o", "job"}, {"megatron-lm@0.3", "0.19 or head"});
  usage({"export", "plan.json", "--to", "megatron-lm", "-o", "job", "--launch", "ssh"},
        {"--launch", "ssh", "slurm"});
  usage({"export", "plan.json", "--to", "megatron-lm", "-o", "job", "--launch", "mpirun", "--container", "x"},
        {"--container goes with"});
  usage({"export", "plan.json", "--to", "megatron-lm", "-o", "plan.json"}, {"--output", "a folder"});
  usage({"export", "plan.json", "--to", "megatron-lm", "-o", "."}, {"--output", "no export wrote"});
  usage({"export", "plan.json", "--to", "megatron-lm", "-o", "runs.csv/job"}, {"--output"});
  usage({"export", "tp2.pp2.dp2.z1.mbs4", "--to", "megatron-lm", "-o", "job"}, {"sextant simulate --plan"});
}

TEST_F(ExportBadInput, Files) {
  bad_file({"export", "none.json", "--to", "megatron-lm", "-o", "job"}, {"none.json"});
  bad_file({"export", "model.json", "--to", "megatron-lm", "-o", "job"}, {"model.json"});
  write("broken.json", std::string("{\"schema\": "));
  bad_file({"export", "broken.json", "--to", "megatron-lm", "-o", "job"}, {"broken.json"});
  bad_input::json other = whole_;
  other["plan"]["tp"] = 3;
  write("three.json", other);
  bad_file({"export", "three.json", "--to", "megatron-lm", "-o", "job"}, {"three.json"});
}

// An export is written over an earlier one, of another target as well, and leaves none of its files.
TEST(ExportFolder, IsWrittenAnew) {
  const TempDir dir;
  const fs::path job = dir.path() / "job";
  const std::string plan = plan_file(dir, on("2x8xh100", "torchtitan"), "dp16.z3.mbs1");
  ASSERT_EQ(export_to("torchtitan", plan, job, {"--launch", "slurm"}).code, ExitCode::ok);
  EXPECT_TRUE(fs::exists(job / "job.sbatch"));
  ASSERT_EQ(export_to("megatron-lm", plan, job).code, ExitCode::ok);
  EXPECT_TRUE(fs::exists(job / "arguments.sh"));
  EXPECT_FALSE(fs::exists(job / "job.sbatch"));
  EXPECT_FALSE(fs::exists(job / "sextant_plan.py"));
  std::ofstream(job / "mine.txt") << "notes";
  const Called refused = export_to("megatron-lm", plan, job);
  EXPECT_EQ(refused.code, ExitCode::usage);
  EXPECT_NE(refused.err.find("mine.txt"), std::string::npos) << refused.err;
}

// Without a plan file: the same job as in two commands, and what it was planned for is said.
TEST(ExportQuestion, IsThePlanThatPlanRecommends) {
  const TempDir dir;
  const Words question = {"--model", "llama-3.2-1b",   "--cluster", "1x4xh100", "--seq-len",
                          "4096",    "--global-batch", "32",        "--fix",    "cp=1"};
  const auto with = [&](Words words, const Words& more) {
    words.insert(words.end(), question.begin(), question.end());
    words.insert(words.end(), more.begin(), more.end());
    return call(words);
  };
  const std::string plan = (dir.path() / "plan.json").string();
  const fs::path two = dir.path() / "two", one = dir.path() / "one", none = dir.path() / "none";
  ASSERT_EQ(with({"plan"}, {"--stack", "torchtitan", "-o", plan}).code, ExitCode::ok);
  ASSERT_EQ(export_to("torchtitan", plan, two).code, ExitCode::ok);
  const Called exported = with({"export"}, {"--to", "torchtitan", "-o", one.string()});
  ASSERT_EQ(exported.code, ExitCode::ok) << exported.err;
  EXPECT_EQ(text_of(one / "sextant_plan.py"), text_of(two / "sextant_plan.py"));
  const auto file = nlohmann::json::parse(text_of(one / "plan.json"));
  EXPECT_EQ(file.at("stack").at("name"), "torchtitan");
  const std::string key =
      nlohmann::json::parse(with({"export"}, {"--to", "torchtitan", "-o", one.string(), "--json"}).out)
          .at("asked");
  EXPECT_NE(exported.out.find("on 4 x H100-SXM5-80GB"), std::string::npos) << exported.out;
  EXPECT_NE(exported.out.find("plan: " + key), std::string::npos) << exported.out;
  // Another target, another stack, unless one is stated.
  ASSERT_EQ(with({"export"}, {"--to", "megatron-lm", "-o", one.string()}).code, ExitCode::ok);
  EXPECT_EQ(nlohmann::json::parse(text_of(one / "plan.json")).at("stack").at("name"), "megatron-core");
  const Called refused = with({"export"}, {"--to", "torchtitan", "-o", none.string(), "--stack",
                                           "megatron-core", "--fix", "pp=2,ax=tp-cp-pp-dp"});
  EXPECT_EQ(refused.code, ExitCode::export_cannot_express) << refused.out << refused.err;
  EXPECT_FALSE(fs::exists(none));
}

// Where nothing fits the answer is that of `sextant plan`, and nothing is written.
TEST(ExportQuestion, SaysWhyNothingFits) {
  const TempDir dir;
  const fs::path job = dir.path() / "job";
  const Called nothing =
      call({"export", "--model", "llama-3.1-70b", "--cluster", "1x1xa100-40gb", "--global-batch", "8",
            "--fix", "oo=0,po=0", "--to", "megatron-lm", "-o", job.string()});
  EXPECT_EQ(nothing.code, ExitCode::no_feasible_plan) << nothing.out << nothing.err;
  EXPECT_NE(nothing.err.find("no layout is possible: llama-3.1-70b"), std::string::npos) << nothing.err;
  EXPECT_FALSE(fs::exists(job));
}

// Files that may have so many bytes, as on a disk that is nearly full; then as before.
Called with_small_files(rlim_t bytes, const std::function<Called()>& work) {
  std::signal(SIGXFSZ, SIG_IGN);  // as the command does
  rlimit before{};
  EXPECT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{bytes, before.rlim_max};
  EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  Called called = work();
  EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  return called;
}

// Every file of a folder with its text.
std::map<std::string, std::string> texts_in(const fs::path& folder) {
  std::map<std::string, std::string> texts;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    texts[entry.path().lexically_relative(folder).string()] =
        entry.is_regular_file() ? text_of(entry.path()) : "";
  return texts;
}

// A disk that becomes full: the earlier export stands as it was, or nothing does.
TEST(ExportFolder, IsWrittenWholeOrNotAtAll) {
  const TempDir dir;
  const fs::path job = dir.path() / "job";
  const std::string plan = plan_file(dir, on("2x8xh100", "torchtitan"), "dp16.z3.mbs1");
  const auto exported = [&](const std::string& target, rlim_t bytes) {
    return with_small_files(bytes, [&] { return export_to(target, plan, job); });
  };
  const Called first = exported("torchtitan", 4096);  // plan.json is larger
  EXPECT_EQ(first.code, ExitCode::run_failed);
  EXPECT_NE(first.err.find("File too large"), std::string::npos) << first.err;
  EXPECT_FALSE(fs::exists(job));
  ASSERT_EQ(exported("torchtitan", 1 << 20).code, ExitCode::ok) << "control: with room it is written";
  const auto before = texts_in(job);
  EXPECT_EQ(exported("megatron-lm", 4096).code, ExitCode::run_failed);
  EXPECT_EQ(texts_in(job), before);
  ASSERT_EQ(export_to("megatron-lm", plan, job).code, ExitCode::ok);
  EXPECT_NE(texts_in(job), before);
}

// What a kill left of the draft is in nobody's way.
TEST(ExportFolder, TakesNoNoteOfAnUnfinishedDraft) {
  const TempDir dir;
  const fs::path job = dir.path() / "job", draft = job / ".sextant_export.partial";
  const std::string plan = plan_file(dir, on("2x8xh100", "torchtitan"), "dp16.z3.mbs1");
  fs::create_directories(draft);
  std::ofstream(draft / "launch.sh") << "half of";
  ASSERT_EQ(export_to("megatron-lm", plan, job).code, ExitCode::ok);
  EXPECT_FALSE(fs::exists(draft));
  EXPECT_EQ(text_of(job / "launch.sh").find("half of"), std::string::npos);
}

// The plan that is written is the plan that was exported: sextant reads it again.
TEST(ExportFolder, HoldsThePlan) {
  const TempDir dir;
  const std::string plan = plan_file(dir, on("2x8xh100", "torchtitan"), "dp16.z3.mbs1");
  ASSERT_EQ(export_to("torchtitan", plan, dir.path() / "job").code, ExitCode::ok);
  EXPECT_EQ(nlohmann::json::parse(text_of(plan)),
            nlohmann::json::parse(text_of(dir.path() / "job" / "plan.json")));
  EXPECT_EQ(call({"simulate", (dir.path() / "job" / "plan.json").string()}).code, ExitCode::ok);
}

std::string said_by(const std::string& command) {
  std::string out;
  FILE* pipe = popen(command.c_str(), "r");
  std::array<char, 4096> buffer{};
  while (pipe && fgets(buffer.data(), buffer.size(), pipe)) out += buffer.data();
  if (pipe) pclose(pipe);
  return out;
}

// launch.sh run by bash with a torchrun that prints its arguments: the ranks of every node, the last with what is left.
TEST(ExportLaunch, TorchrunStartsTheRanksOfThePlan) {
  const TempDir dir;
  const Words twelve = {"--model", "llama-3.1-8b", "--seq-len", "4096", "--global-batch", "48"};
  const std::string part = plan_file(dir, on("2x8xh100", "torchtitan", twelve), "dp12.z3.mbs1", "part.json");
  ASSERT_EQ(export_to("torchtitan", part, dir.path() / "job").code, ExitCode::ok);
  const fs::path tool = dir.write("bin/torchrun", "#!/bin/sh\necho \"$@\"\n");
  fs::permissions(tool, fs::perms::owner_all);
  const auto node = [&](int rank) {
    return said_by("PATH=" + tool.parent_path().string() + ":$PATH NODE_RANK=" + std::to_string(rank) +
                   " MASTER_ADDR=first bash " + (dir.path() / "job" / "launch.sh").string() + " --more 2>&1");
  };
  EXPECT_EQ(node(0),
            "--nnodes 2 --node-rank 0 --nproc-per-node 8 --master-addr first --master-port 29500 -m "
            "torchtitan.train --module "
            "sextant_plan --config plan --more\n");
  EXPECT_NE(node(1).find("--node-rank 1 --nproc-per-node 4 "), std::string::npos) << node(1);
}

// Every script is bash; rank.sh gives torch.distributed the variables of Open MPI.
TEST(ExportLaunch, ScriptsAreBash) {
  for (const std::string launcher : {"torchrun", "slurm", "mpirun"}) {
    const TempDir dir;
    const std::string plan = plan_file(dir, on("2x8xh100", "megatron-core"), "tp2.pp2.dp4.z1.mbs1");
    Words more = {"--launch", launcher};
    if (launcher != "mpirun") more.insert(more.end(), {"--container", "registry/it's an image:1"});
    ASSERT_EQ(export_to("megatron-lm", plan, dir.path() / "job", more).code, ExitCode::ok);
    for (const auto& entry : fs::directory_iterator(dir.path() / "job")) {
      const std::string name = entry.path().filename().string();
      if (!name.ends_with(".sh") && !name.ends_with(".sbatch")) continue;
      EXPECT_EQ(said_by("bash -n " + entry.path().string() + " 2>&1; echo $?"), "0\n")
          << launcher << " " << name;
    }
    if (launcher != "mpirun") continue;
    const std::string job = (dir.path() / "job").string();
    const fs::path tool = dir.write(
        "bin/python", "#!/bin/sh\necho $RANK $WORLD_SIZE $LOCAL_RANK $CUDA_DEVICE_MAX_CONNECTIONS $2\n");
    fs::permissions(tool, fs::perms::owner_all);
    EXPECT_EQ(said_by("PATH=" + tool.parent_path().string() +
                      ":$PATH MEGATRON_LM=/m OMPI_COMM_WORLD_RANK=9 OMPI_COMM_WORLD_SIZE=16 "
                      "OMPI_COMM_WORLD_LOCAL_RANK=1 "
                      "OMPI_COMM_WORLD_LOCAL_SIZE=8 bash " +
                      job + "/rank.sh 2>&1"),
              "9 16 1 1 /m/pretrain_gpt.py\n");
  }
}

// accelerate has a launcher of its own, which says to every node who it is; mpirun would start ranks without what it sets.
TEST(ExportLaunch, AccelerateStartsItsOwnRanks) {
  const TempDir dir;
  const std::string plan = plan_file(dir, on("2x8xh100", "torchtitan-eager"), "dp16.z3.mbs1");
  ASSERT_EQ(export_to("accelerate", plan, dir.path() / "job").code, ExitCode::ok);
  const fs::path tool = dir.write("bin/accelerate", "#!/bin/sh\necho \"$@\"\n");
  fs::permissions(tool, fs::perms::owner_all);
  EXPECT_EQ(said_by("PATH=" + tool.parent_path().string() + ":$PATH NODE_RANK=1 MASTER_ADDR=first bash " +
                    (dir.path() / "job" / "launch.sh").string() + " --steps 3 2>&1"),
            "launch --config_file accelerate.yaml --machine_rank 1 --main_process_ip first "
            "--main_process_port 29500 "
            "train.py --steps 3\n");
  const Called refused = export_to("accelerate", plan, dir.path() / "mpi", {"--launch", "mpirun"});
  EXPECT_EQ(refused.code, ExitCode::usage) << refused.err;
  EXPECT_NE(refused.err.find("torchrun or slurm"), std::string::npos) << refused.err;
}

// sextant's ranks are no python: torchrun and mpirun start the program itself.
TEST(ExportLaunch, TheRuntimeIsStartedByMpirun) {
  const TempDir dir;
  const std::string plan = plan_file(dir, on("1x8xh100", "sextant"), "dp8.z3.mbs1");
  ASSERT_EQ(export_to("sextant", plan, dir.path() / "job", {"--launch", "mpirun"}).code, ExitCode::ok);
  const fs::path tool = dir.write("sextant", "#!/bin/sh\necho \"$@\" $RANK\n");
  fs::permissions(tool, fs::perms::owner_all);
  EXPECT_EQ(said_by("SEXTANT=" + tool.string() +
                    " OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=3 "
                    "OMPI_COMM_WORLD_LOCAL_SIZE=8 bash " +
                    (dir.path() / "job" / "rank.sh").string() + " --steps 3 2>&1"),
            "run plan.json --device cuda --comm mpi --steps 3 3\n");
}

// --check runs check.py: its three outcomes, with a parser of the test's own.
TEST(ExportCheck, SaysWhatTheParserSaid) {
  const TempDir dir;
  const std::string plan = plan_file(dir, on("2x8xh100", "torchtitan"), "dp16.z3.mbs1");
  const auto with_python = [&](const std::string& body) {
    const fs::path python = dir.write("python", "#!/bin/sh\n" + body + "\n");
    fs::permissions(python, fs::perms::owner_all);
    ::setenv("SEXTANT_PYTHON", python.c_str(), 1);
    const Called called = export_to("torchtitan", plan, dir.path() / "job", {"--check"});
    ::unsetenv("SEXTANT_PYTHON");
    return called;
  };
  Called called = with_python("test \"$1\" = check.py && echo 30 values");
  EXPECT_EQ(called.code, ExitCode::ok);
  EXPECT_NE(called.out.find("own parser accepts it: 30 values"), std::string::npos) << called.out;
  called = with_python("echo no such module; exit 77");
  EXPECT_EQ(called.code, ExitCode::ok);
  EXPECT_NE(called.out.find("not installed here"), std::string::npos) << called.out;
  called = with_python("echo 'ValueError: no'; exit 1");
  EXPECT_EQ(called.code, ExitCode::run_failed);
  EXPECT_NE(called.err.find("ValueError: no"), std::string::npos) << called.err;
}

// torch.compile is on where the plan was priced with compiled blocks, and off for its eager twin.
TEST(Exports, TorchtitanCompilesWhatThePlanCompiles) {
  const TempDir dir;
  for (const auto& [stack, compiles] : {std::pair{"torchtitan", "enable=True"},
                                        {"torchtitan-eager", "enable=False"},
                                        {"fsdp1-eager", "enable=True"}}) {
    const std::string plan =
        plan_file(dir, on("2x8xh100", stack), "dp16.z3.mbs1", std::string(stack) + ".json");
    ASSERT_EQ(export_to("torchtitan", plan, dir.path() / stack).code, ExitCode::ok) << stack;
    const std::string module = text_of(dir.path() / stack / "sextant_plan.py");
    EXPECT_NE(module.find(std::string("CompileConfig(") + compiles), std::string::npos) << stack << module;
  }
}

}  // namespace
}  // namespace sextant::exporting

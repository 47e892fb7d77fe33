// `sextant run --resume` where it cannot resume: what is damaged, away or changed is named, and nothing of it is lost.
#include <string>

#include <sys/stat.h>

#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/checkpoint/run_folder.hpp"
#include "tests/tools/inputs/run_checkpoints.hpp"

namespace sextant {
namespace {

using namespace bad_input;

TEST_F(RunCheckpoints, OptionsThatWereChangedInItsFolderAreToldAndNotTaken) {
  good({"two.json", "--steps", "2", "--lr", "0.003", "--keep-last", "5", "-o", "run"});
  const std::string before = text_of("run/options.json");
  const auto goes_on = [&](const std::string& options, const Words& told) {
    const auto steps_done = std::to_string(losses("run").size() + 1);
    write("run/options.json", options);
    const Called o = run({"-o", "run", "--resume", "--steps", steps_done});
    EXPECT_EQ(o.code, ExitCode::ok) << o.err;
    for (const std::string& words : told)
      EXPECT_NE(o.out.find(words), std::string::npos) << words << "\n" << o.out;
    EXPECT_EQ(o.out.find("not kept in the folder"), std::string::npos) << o.out;
    EXPECT_DOUBLE_EQ(steps("run").back().at("lr"), 0.003);
    EXPECT_EQ(json::parse(text_of("run/options.json")).at("keep_last"), 5);
  };
  json changed = json::parse(before);
  changed["lr"] = 0.5;
  changed["keep_last"] = 1;
  goes_on(changed.dump(), {"run/options.json was changed", "--lr 0.5 where --lr 0.003 was written",
                           "--keep-last 1 where --keep-last 5", "those of the checkpoint of step 2"});
  changed.erase("digest");
  goes_on(changed.dump(), {"--lr 0.5 where --lr 0.003 was written", "of the checkpoint of step 3"});
  goes_on("{", {"run/options.json", "line 1", "of the checkpoint of step 4"});
  goes_on(text_of("run/options.json"), {"--keep-last 5"});
  // Without a checkpoint nobody knows what was there.
  good({"two.json", "--steps", "2", "--no-save", "-o", "unsaved"});
  write("unsaved/options.json", changed.dump());
  good({"-o", "unsaved", "--resume", "--no-save"});  // as from before there was a digest
  changed["digest"] = "0";
  write("unsaved/options.json", changed.dump());
  bad_file({"run", "-o", "unsaved", "--resume"}, {"unsaved/options.json", "digest", "changed by hand"});
}

TEST_F(RunCheckpoints, StorageThatIsAwayIsNoFreshStart) {
  good({"two.json", "--steps", "4", "--save-every", "2", "-o", "away"});
  const std::string before = text_of("away/steps.jsonl");
  std::filesystem::rename("away/checkpoints", "storage");
  std::filesystem::create_directory_symlink(std::filesystem::absolute("unmounted"), "away/checkpoints");
  // Whose link it is has to be said: in a folder of somebody else's it leads to any checkpoints of this user's.
  bad_file({"run", "-o", "away", "--resume", "--steps", "6"},
           {"away/checkpoints", "a link to", "--follow-links"});
  const Called o = run({"-o", "away", "--resume", "--steps", "6", "--follow-links"});
  EXPECT_EQ(o.code, ExitCode::bad_input);
  EXPECT_NE(o.err.find("is its storage mounted"), std::string::npos) << o.err;
  EXPECT_EQ(text_of("away/steps.jsonl"), before);
  std::filesystem::rename("storage", "unmounted");
  bad_file({"run", "-o", "away", "--resume", "--steps", "6"}, {"away/checkpoints", "--follow-links"});
  write("unmounted/.notes", std::string("of the user"));
  good({"-o", "away", "--resume", "--steps", "6", "--follow-links"});
  EXPECT_EQ(losses("away").size(), 6U);
  EXPECT_EQ(text_of("unmounted/.notes"), "of the user") << "no leftover of a run";
}

TEST_F(RunCheckpoints, ADamagedOneIsNamedAndTheOneBeforeItOffered) {
  good({"two.json", "--steps", "9", "--save-every", "4", "--keep-last", "9", "-o", "run"});
  const auto steps_saved = saved("run");
  ASSERT_GE(steps_saved.size(), 2U);
  const std::int64_t newest = steps_saved.back(), before = steps_saved[steps_saved.size() - 2];
  const std::string file = (checkpoint_path("run", newest) / "rank-00000.safetensors").string();
  std::string bytes = text_of(file);
  bytes[bytes.size() / 2] ^= 1;
  write(file, bytes);
  const Called o = run({"-o", "run", "--resume", "--steps", "12"});
  EXPECT_EQ(o.code, ExitCode::bad_input);
  // The command as it is printed does what it promises.
  const std::string start = "sextant run ";
  const std::size_t at = o.err.find(start + "-o run --resume --resume-step " + std::to_string(before));
  ASSERT_NE(at, std::string::npos) << o.err;
  Words command;
  std::istringstream words(o.err.substr(at + start.size(), o.err.find('\n', at) - at - start.size()));
  for (std::string word; words >> word;) command.push_back(word);
  good(command + Words{"--steps", "12"});
  EXPECT_EQ(saved("run").back(), 12);
  EXPECT_EQ(losses("run").size(), 12U);
}

// A pipe would be waited for, a device swallow what is written.
TEST_F(RunCheckpoints, FilesOfTheRunAreRegularFiles) {
  good({"two.json", "--steps", "2", "-o", "run"});
  ::alarm(60);
  for (const char* name : {"plan.json", "options.json", "steps.jsonl", "timeline.json"}) {
    const std::string fresh = std::string("new/") + name, kept = std::string("run/") + name;
    fs::create_directory("new");
    ASSERT_EQ(::mkfifo(fresh.c_str(), 0600), 0);
    bad_file({"run", "two.json", "--steps", "1", "-o", "new"}, {fresh, "no regular file"});
    fs::remove_all("new");
    fs::rename(kept, "kept");
    fs::create_symlink("/dev/null", kept);
    bad_file({"run", "-o", "run", "--resume", "--steps", "3"}, {kept, "no regular file"});
    fs::remove(kept);
    fs::create_symlink("../two.json",
                       kept);  // in a folder that somebody else made: what is written would land there
    bad_file({"run", "-o", "run", "--resume", "--steps", "3"}, {kept, "no regular file"});
    fs::rename("kept", kept);
  }
  ::alarm(0);
  good({"-o", "run", "--resume", "--steps", "3"});
}

TEST_F(RunCheckpoints, NothingIsMadeForWhatIsRefused) {
  for (const Words& more : {Words{"--init", "nowhere"}, Words{"--data", "nowhere"}, Words{"--packing", "x"},
                            Words{"--data", "folder", "--packing", "apart"}, Words{"--trace", "two.json"}}) {
    EXPECT_NE(run(Words{"two.json", "--steps", "2", "-o", "made/deep/run"} + more).code, ExitCode::ok);
    EXPECT_FALSE(fs::exists("made")) << more[0];
  }
  write("taken", std::string("a file"));
  usage({"run", "two.json", "--steps", "1", "-o", "taken"}, {"-o", "taken", "a folder"});
  good({"two.json", "--steps", "2", "-o", "made/deep/run"});
}

TEST_F(RunCheckpoints, WhatIsRefused) {
  good({"two.json", "--steps", "2", "-o", "run"});
  usage({"run", "two.json", "--resume"}, {"add -o DIR"});
  usage({"run", "-o", "nowhere", "--resume"}, {"nowhere", "the folder of a run to resume"});
  usage({"run", "-o", "folder", "--resume"}, {"folder", "no run to resume"});
  usage({"run", "two.json", "--save-every", "3"}, {"add -o DIR"});
  usage({"run", "two.json", "-o", "other", "--resume-step", "3"}, {"goes with --resume"});
  usage({"run", "two.json", "-o", "run"}, {"-o", "without a run in it", "--resume continues it"});
  usage({"run", "two.json", "-o", "folder", "--stop-file", "two.json"}, {"--stop-file", "remove it"});
  usage({"run", "two.json", "--stop-file", "nodir/stop"},
        {"--stop-file", "nodir/stop", "in a folder that is there"});
  good({"two.json", "--steps", "1", "-o", "made/", "--stop-file", "made/stop"});
  make("large.json", "dp2.z1.mbs2", "stories-15m");
  bad_file({"run", "large.json", "-o", "run", "--resume"},
           {"large.json", "model.hidden", "found 288, expected 64", "checkpoint of another model"});
  {
    const RunLock held("run");
    usage({"run", "-o", "run", "--resume", "--steps", "3"},
          {"-o", "no other run writes into", "process " + std::to_string(::getpid())});
  }
  const std::string file = "run/checkpoints/step-00000002/rank-00001.safetensors";
  std::string bytes = text_of(file);
  bytes[bytes.size() - 9] ^= 4;
  write(file, bytes);
  const std::string log = text_of("run/steps.jsonl"), plan = text_of("run/plan.json");
  bad_file({"run", "tp.json", "-o", "run", "--resume", "--steps", "3"},
           {file, "model.", "expected digest", "there is no complete one before it"});
  EXPECT_EQ(text_of("run/steps.jsonl"), log);
  EXPECT_EQ(text_of("run/plan.json"), plan) << "nothing is overwritten";
}

}  // namespace
}  // namespace sextant

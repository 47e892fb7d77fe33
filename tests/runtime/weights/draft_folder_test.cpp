// Drafts beside OUT: kept, dropped, and left by processes that were killed.
#include "runtime/weights/draft_folder.hpp"

#include <csignal>
#include <fstream>
#include <set>
#include <string>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/error.hpp"
#include "tests/support/temp_dir.hpp"

namespace sextant::testing {
namespace {

namespace fs = std::filesystem;

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

// A process that makes a draft of `out` and then waits to be killed.
pid_t start_draft(const fs::path& out) {
  int ready[2];
  EXPECT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const DraftFolder draft(out);
    (void)!::write(ready[1], "!", 1);
    for (;;) ::pause();
  }
  char made = 0;
  EXPECT_EQ(::read(ready[0], &made, 1), 1);
  ::close(ready[0]);
  ::close(ready[1]);
  return child;
}

TEST(DraftFolder, BecomesItsFolderOrIsGone) {
  const TempDir dir;
  for (const fs::path& out : {dir.path() / "out", fs::path((dir.path() / "with-slash").string() + "/")}) {
    {
      const DraftFolder dropped(out);
      EXPECT_TRUE(fs::is_directory(dropped.path()));
      EXPECT_EQ(dropped.path().parent_path(), dir.path());
    }
    DraftFolder draft(out);
    std::ofstream(draft.path() / "file") << "whole";
    draft.become(out);
    EXPECT_TRUE(fs::exists(out / "file"));
  }
  EXPECT_EQ(names_in(dir.path()), (std::set<std::string>{"out", "with-slash"}));
  EXPECT_THROW(DraftFolder("/dev/null/out"), ConfigError);
}

TEST(DraftFolder, WhatAKilledProcessLeftIsRemovedByTheNext) {
  const TempDir dir;
  const fs::path out = dir.path() / "out";
  const pid_t killed = start_draft(out), alive = start_draft(out);
  ::kill(killed, SIGKILL);
  ::waitpid(killed, nullptr, 0);
  const auto draft_of = [](pid_t pid) { return "out.partial-" + std::to_string(pid); };
  ASSERT_TRUE(fs::exists(dir.path() / draft_of(killed))) << "or nothing is tried here";
  fs::create_directory(dir.path() / "out.partial-mine");  // not of this program
  fs::create_directory_symlink("out.partial-mine", dir.path() / "out.partial-7");
  { const DraftFolder next(out); }
  EXPECT_EQ(names_in(dir.path()),
            (std::set<std::string>{draft_of(alive), "out.partial-mine", "out.partial-7"}));
  ::kill(alive, SIGKILL);
  ::waitpid(alive, nullptr, 0);
}

}  // namespace
}  // namespace sextant::testing

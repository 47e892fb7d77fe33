// Every example of every --help is executed by a shell, in the order of the verbs, in one empty folder: what
// a new user copies must work, and a file that one example writes serves the next.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "tests/support/temp_dir.hpp"
#include "tools/verbs/verbs.hpp"

namespace sextant {
namespace {

namespace fs = std::filesystem;

struct Ran {
  int status;
  std::string output;
};

Ran run_in(const fs::path& folder, const std::string& command) {
  const fs::path log = folder / ".log";
  const std::string line = "cd '" + folder.string() + "' && PATH='" +
                           fs::path(SEXTANT_BINARY).parent_path().string() + "':$PATH COLUMNS=80 bash -c '" +
                           [&] {
                             std::string quoted;
                             for (const char c : command)
                               quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
                             return quoted;
                           }() +
                           "' > '" + log.string() + "' 2>&1";
  const int status = std::system(line.c_str());
  std::ostringstream text;
  text << std::ifstream(log).rdbuf();
  return {WEXITSTATUS(status), text.str()};
}

TEST(HelpExamples, AllRun) {
  const TempDir dir;
  const fs::path& folder = dir.path();
  int examples = 0;
  for (const auto& verb : verbs())
    for (const auto& example : verb.examples) {
      ++examples;
      const Ran ran = run_in(folder, example.command);
      EXPECT_EQ(ran.status, 0) << example.command << "\n" << ran.output;
    }
  EXPECT_GE(examples, static_cast<int>(verbs().size()));
  EXPECT_NE(run_in(folder, "sextant doctor --no-such-option").status, 0);  // negative control
}

}  // namespace
}  // namespace sextant

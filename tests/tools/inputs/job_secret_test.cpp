// Where the secret of a job is from. System: environments and folders of the test. Expectation: a variable comes before a
// file, a file is made where there is none, and one that others can read or that is no file is refused by name.
#include "tools/inputs/job_secret.hpp"

#include <fstream>
#include <future>
#include <map>
#include <set>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/error.hpp"
#include "tests/support/temp_dir.hpp"

namespace sextant {
namespace {

namespace fs = std::filesystem;

Environment surroundings(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const char* name) {
    const auto it = variables.find(name);
    return it == variables.end() ? std::string() : it->second;
  };
}

std::string secret_refused(const Environment& environment) {
  try {
    job_secret(environment);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "none";
}

void write_secret(const fs::path& path, const std::string& text, mode_t mode) {
  std::ofstream(path) << text;
  fs::permissions(path, static_cast<fs::perms>(mode));
}

TEST(JobSecret, VariableBeforeFileBeforeHome) {
  const TempDir folder;
  write_secret(folder.path() / "file", "that of the file itself\n", 0600);
  std::map<std::string, std::string> v = {{"HOME", folder.path().string()}};
  EXPECT_EQ(job_secret(surroundings(v)).text.size(), 64u);
  v["SEXTANT_SECRET_FILE"] = (folder.path() / "file").string();
  EXPECT_EQ(job_secret(surroundings(v)).text, "that of the file itself") << "without the end of its line";
  v["SEXTANT_SECRET"] = "that of the variable";
  EXPECT_EQ(job_secret(surroundings(v)).text, "that of the variable");
  EXPECT_EQ(job_secret(surroundings(v)).source, "SEXTANT_SECRET");
}

TEST(JobSecret, IsMadeOnceByWhoeverIsFirst) {
  const TempDir folder;
  const Environment environment = surroundings({{"XDG_CONFIG_HOME", folder.path().string()}});
  std::vector<std::future<std::string>> all;
  for (int n = 0; n < 16; ++n)
    all.push_back(std::async(std::launch::async, [&] { return job_secret(environment).text; }));
  std::set<std::string> found;
  for (auto& one : all) found.insert(one.get());
  EXPECT_EQ(found.size(), 1u);
  const fs::path path = folder.path() / "sextant" / "secret";
  EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(std::distance(fs::directory_iterator(path.parent_path()), {}), 1) << "nothing else is left there";
  const TempDir other;
  EXPECT_FALSE(found.contains(job_secret(surroundings({{"HOME", other.path().string()}})).text))
      << "control: random";
}

TEST(JobSecret, WhatIsWrongIsNamed) {
  const TempDir folder;
  const fs::path path = folder.path() / "secret";
  const auto said = [&] { return secret_refused(surroundings({{"SEXTANT_SECRET_FILE", path.string()}})); };
  EXPECT_NE(said().find("No such file"), std::string::npos) << said();
  write_secret(path, "that of the file itself", 0640);
  EXPECT_NE(said().find("mode 640"), std::string::npos) << said();
  EXPECT_EQ(said().find("that of the file"), std::string::npos) << "it is not printed";
  fs::permissions(path, fs::perms::owner_read);
  EXPECT_EQ(said(), "none") << "control";
  fs::permissions(path, fs::perms::owner_all);
  write_secret(path, "short", 0600);
  EXPECT_NE(said().find("5 characters"), std::string::npos) << said();
  write_secret(path, std::string(10'000'000, 'x'), 0600);
  EXPECT_NE(said().find("16 to 4096"), std::string::npos) << said();
  fs::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_NE(said().find("no regular file"), std::string::npos) << said();
  fs::remove(path);
  fs::create_directory(path);
  EXPECT_NE(said().find("no regular file"), std::string::npos) << said();
  EXPECT_NE(secret_refused(surroundings({})).find("SEXTANT_SECRET"), std::string::npos);
  EXPECT_NE(secret_refused(surroundings({{"SEXTANT_SECRET", "short"}})).find("5 characters"),
            std::string::npos);
  EXPECT_NE(secret_refused(surroundings({{"HOME", "/proc/self"}})).find("cannot be made"), std::string::npos);
}

}  // namespace
}  // namespace sextant

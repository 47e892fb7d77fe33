// `sextant doctor`, of the frameworks of the exports: which are installed, which version, by whose word. The python that it asks is
// a script of this test, or the real one with packages that only the test has.
#include <cstdlib>
#include <optional>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/temp_dir.hpp"
#include "tests/tools/verbs/call.hpp"
#include "tools/export/export_target.hpp"
#include "tools/inputs/machine.hpp"

namespace sextant {
namespace {

// A variable of the environment for as long as the test runs.
class Variable {
 public:
  Variable(std::string name, const std::string& value) : name_(std::move(name)) {
    if (const char* before = std::getenv(name_.c_str())) before_ = before;
    ::setenv(name_.c_str(), value.c_str(), 1);
  }
  ~Variable() {
    if (before_)
      ::setenv(name_.c_str(), before_->c_str(), 1);
    else
      ::unsetenv(name_.c_str());
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  std::string name_;
  std::optional<std::string> before_;
};

class DoctorTargets : public ::testing::Test {
 protected:
  // A program called `name` that answers as a python does which has these packages: "torchtitan\\t0.3.0\\n".
  std::string python(const std::string& name, const std::string& packages) const {
    const auto file = dir.write(
        name, "#!/bin/sh\n[ \"$1\" = -c ] || exit 9\nprintf '/fake/python\\t3.99.0\\n" + packages + "'\n");
    std::filesystem::permissions(file, std::filesystem::perms::owner_all);
    return file.string();
  }
  static nlohmann::json exports() {
    const Called answer = call({"doctor", "--json"});
    return nlohmann::json::parse(answer.out).at("export");
  }
  // "0.1.0" of `sextant --version`.
  static std::string own_version() {
    const std::string text = call({"--version"}).out;
    const std::size_t from = text.find(' ') + 1;
    return text.substr(from, text.find(' ', from) - from);
  }
  static std::string installed(const nlohmann::json& exports, const std::string& target) {
    for (const auto& entry : exports.at("targets"))
      if (entry.at("name") == target) return entry.at("installed");
    return "no such target";
  }
  TempDir dir;
};

TEST_F(DoctorTargets, NamesEachTargetWithItsInstalledVersion) {
  std::string packages;
  for (const ExportTarget& target : export_targets())
    if (!target.package.empty())
      packages += target.package + "\\t7." + std::to_string(target.package.size()) + "\\n";
  const Variable asked("SEXTANT_PYTHON", python("a python", packages));
  const auto found = exports();
  EXPECT_EQ(found.at("python"), "/fake/python");
  EXPECT_EQ(found.at("python_version"), "3.99.0");
  EXPECT_EQ(found.at("targets").size(), export_targets().size());
  for (const ExportTarget& target : export_targets())
    EXPECT_EQ(installed(found, target.name), target.name == "sextant" ? own_version()
                                             : target.package.empty()
                                                 ? ""
                                                 : "7." + std::to_string(target.package.size()))
        << target.name;
}

TEST_F(DoctorTargets, EveryTargetHasALine) {
  const Variable asked("SEXTANT_PYTHON", python("python", "torchtitan\\t0.3.1\\n"));
  const std::string text = call({"doctor", "--wide"}).out;
  const std::string table = text.substr(text.find("export target"));
  for (const ExportTarget& target : export_targets())
    EXPECT_NE(table.find("\n" + target.name + " "), std::string::npos) << target.name << '\n' << table;
  // Of what no python can be asked for: where it is.
  const auto line_of = [&](const std::string& name) {
    const std::size_t at = table.find("\n" + name + " ");
    return at == std::string::npos ? "" : table.substr(at + 1, table.find('\n', at + 1) - at - 1);
  };
  EXPECT_NE(line_of("sextant").find("this program"), std::string::npos) << table;
  EXPECT_NE(line_of("sextant").find(" " + own_version() + " "), std::string::npos) << table;
  EXPECT_NE(line_of("smp").find("AWS's containers"), std::string::npos) << table;
  EXPECT_EQ(line_of("smp").find(" no "), std::string::npos) << table;
}

TEST_F(DoctorTargets, SaysNoOfWhatIsNotThere) {
  const Variable asked("SEXTANT_PYTHON", python("python", "torchtitan\\t0.3.1\\n"));
  const auto found = exports();
  EXPECT_EQ(installed(found, "torchtitan"), "0.3.1");
  EXPECT_EQ(installed(found, "deepspeed"), "");
  const std::string text = call({"doctor", "--wide"}).out;
  EXPECT_NE(text.find("asked /fake/python (Python 3.99.0)"), std::string::npos) << text;
  EXPECT_NE(text.find("0.3.1"), std::string::npos) << text;
}

TEST_F(DoctorTargets, AsksThePythonOfPath) {
  python("python3", "deepspeed\\t0.19.3\\n");
  const Variable none("SEXTANT_PYTHON", "");
  const Variable path("PATH", dir.path().string() + ":/usr/bin:/bin");
  EXPECT_EQ(installed(exports(), "deepspeed"), "0.19.3");
}

TEST_F(DoctorTargets, WithoutPythonItSaysSoAndIsSoundAllTheSame) {
  const Variable asked("SEXTANT_PYTHON", (dir.path() / "absent").string());
  const auto found = exports();
  EXPECT_EQ(found.at("python"), "");
  for (const ExportTarget& target : export_targets())
    EXPECT_EQ(installed(found, target.name), target.name == "sextant" ? own_version() : "");
  const Called text = call({"doctor", "--wide"});
  EXPECT_EQ(text.code, ExitCode::ok) << text.err;
  EXPECT_NE(text.out.find("/absent to ask"), std::string::npos) << text.out;
}

TEST_F(DoctorTargets, ARealPythonAnswersFromItsPackages) {
  if (!find_program("python3")) GTEST_SKIP() << "python3 is not installed";
  dir.write("torchtitan-9.8.7.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: torchtitan\nVersion: 9.8.7\n");
  const Variable none("SEXTANT_PYTHON", "");
  EXPECT_NE(installed(exports(), "torchtitan"), "9.8.7");  // the control
  const Variable packages("PYTHONPATH", dir.path().string());
  EXPECT_EQ(installed(exports(), "torchtitan"), "9.8.7");
}

}  // namespace
}  // namespace sextant

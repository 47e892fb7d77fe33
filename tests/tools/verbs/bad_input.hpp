// A folder of well-formed inputs to spoil, and what every refusal has in common: whatever is wrong with a flag or
// a file, the command ends with the documented exit code, says where and what, prints no answer and leaves no
// file behind.
#pragma once

#include <fstream>
#include <set>
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/temp_dir.hpp"
#include "tests/tools/verbs/call.hpp"

namespace sextant::bad_input {

namespace fs = std::filesystem;
using nlohmann::json;
using sextant::Words;

inline const Words kModel = {"--model", "llama-2-7b"}, kCluster = {"--cluster", "1x8xa100-80gb"},
                   kPlan = {"--plan", "tp2.pp2.dp2.z1.mbs4"};
inline Words simulate(const Words& more) { return Words{"simulate"} + more; }
inline Words with_model(const std::string& m) { return simulate(kCluster + kPlan + Words{"--model", m}); }
inline Words with_cluster(const std::string& c) { return simulate(kModel + kPlan + Words{"--cluster", c}); }
inline Words with_stack(const std::string& s) {
  return simulate(kModel + kCluster + kPlan + Words{"--stack", s});
}
inline Words with_plan(const std::string& p) { return simulate(kModel + kCluster + Words{"--plan", p}); }
inline Words with(const Words& more) { return simulate(kModel + kCluster + kPlan + more); }
inline Words search(const Words& more) { return Words{"plan"} + kModel + kCluster + more; }

// A folder in which every input file is well formed: a plan file and its parts, and a table of runs.
class BadInput : public testing::Test {
 protected:
  BadInput() : back_(fs::current_path()) {
    fs::current_path(folder_.path());
    const auto made = call(with({"-o", "plan.json"}));
    EXPECT_EQ(made.code, ExitCode::ok) << made.err;
    std::ifstream("plan.json") >> whole_;
    for (const char* part : {"model", "cluster", "stack"}) write(std::string(part) + ".json", whole_[part]);
    std::ofstream("runs.csv") << call({"validate", "--example"}).out;
    fs::create_directory("folder");
  }
  ~BadInput() override { fs::current_path(back_); }

  static void write(const std::string& name, const std::string& text) {
    std::ofstream(name, std::ios::binary) << text;
  }
  static void write(const std::string& name, const json& value) { write(name, value.dump(1)); }
  static std::string text_of(const std::string& name) {
    std::ostringstream text;
    text << std::ifstream(name).rdbuf();
    return text.str();
  }

  static std::set<std::string> files() {
    std::set<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(".")) names.insert(entry.path().string());
    return names;
  }

  // What every refusal has in common, and the words of this one.
  static void refused(const Words& arguments, ExitCode code, const Words& told) {
    const auto before = files();
    const Called o = call(arguments);
    std::string line = "sextant";
    for (const auto& a : arguments) line += ' ' + a.substr(0, 80);
    EXPECT_EQ(o.code, code) << line << '\n' << o.err;
    EXPECT_EQ(o.out, "") << line;
    EXPECT_EQ(o.err.find("internal error"), std::string::npos) << line << '\n' << o.err;
    for (const auto& words : told)
      EXPECT_NE(o.err.find(words), std::string::npos) << line << "\nwanted: " << words << "\ngot: " << o.err;
    for (const char c : o.err) EXPECT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= 0x20) << line;
    EXPECT_LT(o.err.size(), 4000U) << line;
    EXPECT_EQ(files(), before) << line;
  }
  static void usage(const Words& arguments, const Words& told) { refused(arguments, ExitCode::usage, told); }
  static void bad_file(const Words& arguments, const Words& told) {
    refused(arguments, ExitCode::bad_input, told);
  }

  json whole_;

 private:
  TempDir folder_;
  fs::path back_;
};

}  // namespace sextant::bad_input

// Keys that were renamed keep working for one version: an answer and a plan file of version 0.1, as that version wrote them
// (tests/golden/version_0_1; its command stands in the plan file).
#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/json_digest.hpp"
#include "core/base/json_io.hpp"
#include "core/plan/plan_file.hpp"
#include "tests/tools/inputs/profiles.hpp"
#include "tests/tools/verbs/call.hpp"

namespace sextant {
namespace {

using Json = nlohmann::json;
const std::string kFolder = SEXTANT_SOURCE_DIR "/tests/golden/version_0_1/";

// "ranked[].prediction.step_time_s", of the first of each list.
void collect(const Json& j, const std::string& path, std::set<std::string>& into) {
  if (j.is_array() && !j.empty()) collect(j[0], path + "[]", into);
  if (!j.is_object()) return;
  for (const auto& [key, value] : j.items()) {
    into.insert(path + "." + key);
    collect(value, path + "." + key, into);
  }
}
std::set<std::string> keys_of(const Json& j) {
  std::set<std::string> keys;
  collect(j, "", keys);
  return keys;
}

std::set<std::string> missing(const std::set<std::string>& former, const std::set<std::string>& now) {
  std::set<std::string> out;
  std::set_difference(former.begin(), former.end(), now.begin(), now.end(), std::inserter(out, out.end()));
  return out;
}

// The command did what it was asked, and said on one line of stderr what of it was former.
void expect_one_line(const Called& told, const std::string& what) {
  EXPECT_EQ(told.code, ExitCode::ok) << what << told.err;
  EXPECT_TRUE(told.err.starts_with("warning: ")) << what << ": " << told.err;
  EXPECT_EQ(std::ranges::count(told.err, '\n'), 1) << what << ": " << told.err;
}

TEST(FormerKeys, OfAnswersStandBesideThePresentOnes) {
  const Json former = Json::parse(std::ifstream(kFolder + "answer.json"));
  const Called called = call({"plan", "--model", "llama-3.2-1b", "--cluster", "1x8xh100", "--seq-len", "4096",
                              "--global-batch", "64", "--json"});
  ASSERT_EQ(called.code, ExitCode::ok) << called.err;
  const Json now = Json::parse(called.out);
  EXPECT_EQ(missing(keys_of(former), keys_of(now)), std::set<std::string>{});
  EXPECT_EQ(now.at("fates").at("bounded_away"), now.at("outcomes").at("pruned_by_bound"));
  EXPECT_FALSE(now.at("outcomes").contains("bounded_away"));
  const auto says = [](const Json& answer, const char* key, const char* value) {
    return std::ranges::any_of(answer.at("examples"), [&](const Json& e) { return e.at(key) == value; });
  };
  EXPECT_TRUE(says(former, "fate", "contradiction") && says(now, "fate", "contradiction"));
  EXPECT_TRUE(says(now, "outcome", "inconsistent") && !says(now, "fate", "inconsistent"));
  // The comparison sees a key that went away.
  Json less = now;
  less.at("ranked").at(0).erase("step_time_s");
  EXPECT_EQ(missing(keys_of(former), keys_of(less)), std::set<std::string>{".ranked[].step_time_s"});
}

TEST(FormerKeys, OfPlanFilesAreRead) {
  const PlanFile file = load_plan_file(kFolder + "plan.json");
  EXPECT_EQ(file.model.name, "llama-3.2-1b");
  const Words stated = {"--plan", kFolder + "plan.json", "--json"};
  for (const char* verb : {"simulate", "explain"}) {
    Words words = {verb};
    words.insert(words.end(), stated.begin(), stated.end());
    if (words.front() == "explain") words.insert(words.end(), {"--quick", "--top", "1"});
    expect_one_line(call(words), verb);
  }
  // Its stack has rules by their former names.
  const Json rules = read_json_file(kFolder + "plan.json").at("stack").at("rules");
  EXPECT_EQ(rules.at("gather_beside_forward"), file.stack.rules.param_gather_overlaps_forward);
  EXPECT_EQ(rules.at("p2p_beside_compute_1f1b"), file.stack.rules.p2p_overlaps_compute_1f1b);
  EXPECT_EQ(rules.at("p2p_beside_compute_interleaved"), file.stack.rules.p2p_overlaps_compute_interleaved);
  EXPECT_FALSE(rules.contains("p2p_overlaps_compute_1f1b"));
  EXPECT_NE(file.former.find("rules.p2p_beside_compute_1f1b is read as"), std::string::npos) << file.former;
  // A plan file of today is read without a word.
  const TempDir dir;
  const std::string today = (dir.path() / "plan.json").string();
  save_plan_file(today, file);
  EXPECT_EQ(call({"simulate", "--plan", today}).err, "");
}

class FormerFiles : public bad_input::Profiles {};

TEST_F(FormerFiles, OfProfilesAreRead) {
  Json former = table("tiny.json", 2);
  write("today.json", former);
  former["works"] = former.at("operations");
  former.erase("operations");
  write("former.json", former);
  const Words simulate = {"simulate", "--plan", "tiny.json", "--json", "--profile"};
  const Called today = call(simulate + Words{"today.json"}), read = call(simulate + Words{"former.json"});
  EXPECT_EQ(today.err, "");
  expect_one_line(read, "simulate");
  const Json now = Json::parse(read.out);
  EXPECT_EQ(now.at("prediction"), Json::parse(today.out).at("prediction"));
  EXPECT_EQ(now.at("prediction").at("rests_on"), now.at("prediction").at("predicted_from"));
  EXPECT_EQ(now.at("profile").at("works"), now.at("profile").at("measured_operations"));
  expect_one_line(call({"run", "tiny.json", "--steps", "1", "--json", "--profile", "former.json"}), "run");
  expect_one_line(call({"calibrate", "--profile", "former.json", "--cluster", "laptop", "--stack", "sextant",
                        "-o", "calibration.json"}),
                  "calibrate");
}

TEST_F(FormerFiles, MeasurementsOfProfilesAreRead) {
  Json former = table("tiny.json", 2);
  former["facts"] = {{"device", "none"},
                     {"measurements",
                      {{{"what", "gemm bf16 512x512x512"}, {"median_us", 10.0}},
                       {{"what", "gemm bf16 512x512x512"},
                        {"concurrent_with", "copy host_to_device 1048576B"},
                        {"median_us", 12.0}}}}};
  write("today.json", former);
  Json& both = former.at("facts").at("measurements").at(1);
  both["beside"] = both.at("concurrent_with");
  write("twice.json", former);
  both.erase("concurrent_with");
  write("former.json", former);
  const auto measured = [](const char* name) { return load_profile(name, "").facts->measurements; };
  EXPECT_EQ(measured("former.json"), measured("today.json"));
  EXPECT_EQ(measured("former.json").at(1).concurrent_with, "copy host_to_device 1048576B");
  const Words simulate = {"simulate", "--plan", "tiny.json", "--profile"};
  EXPECT_EQ(call(simulate + Words{"today.json"}).err, "");
  const Called read = call(simulate + Words{"former.json"});
  expect_one_line(read, "simulate");
  EXPECT_NE(read.err.find("\"beside\" is read as \"concurrent_with\""), std::string::npos) << read.err;
  EXPECT_NE(call(simulate + Words{"twice.json"}).err.find("facts.measurements[1].beside"), std::string::npos);
}

TEST_F(FormerFiles, SettingsOfRulesAreRead) {
  const Words simulate = {"simulate", "--plan", "tiny.json", "--json", "--set"};
  const Called now = call(simulate + Words{"stack.rules.fused_projections=false"}),
               former = call(simulate + Words{"stack.rules.joined_products=false"});
  EXPECT_EQ(now.err, "");
  expect_one_line(former, "--set");
  EXPECT_EQ(Json::parse(former.out).at("prediction"), Json::parse(now.out).at("prediction"));
}

TEST_F(FormerFiles, OptionsOfRunsAreRead) {
  const Words exact = {"run", "tiny.json", "--steps", "2", "-o", "run"};
  expect_one_line(call(exact + Words{"--products=exact"}), "--products=exact");
  expect_one_line(call({"run", "tiny.json", "--steps", "1", "--products", "exact"}), "--products exact");
  EXPECT_EQ(call({"run", "tiny.json", "--steps", "1", "--gemms", "exact"}).err, "");
  Json options = read_json_file("run/options.json");
  EXPECT_EQ(options.at("gemms"), "exact");
  options["products"] = options.at("gemms");
  options.erase("gemms");
  options["digest"] = digest_without(options, {"digest"});
  write("run/options.json", options);
  const Called resumed = call({"run", "-o", "run", "--resume", "--steps", "3"});
  expect_one_line(resumed, "--resume");
  EXPECT_NE(resumed.out.find("as in the run so far: --gemms exact"), std::string::npos) << resumed.out;
  EXPECT_EQ(read_json_file("run/options.json").at("gemms"), "exact");
}

}  // namespace
}  // namespace sextant

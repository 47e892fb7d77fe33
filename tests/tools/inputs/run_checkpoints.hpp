// A folder with plans of a small model that `sextant run` trains at once, and what it has saved of them.
#pragma once

#include <cstdint>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/checkpoint/run_folder.hpp"
#include "tests/tools/verbs/bad_input.hpp"

namespace sextant::bad_input {

class RunCheckpoints : public BadInput {
 protected:
  RunCheckpoints() {
    make("two.json", "dp2.z1.mbs2");
    make("tp.json", "tp2.sp.dp1.mbs2");
  }
  static void make(const std::string& file, const std::string& key,
                   const std::string& model = "stories-260k") {
    call({"simulate", "--model", model, "--cluster", "laptop", "--stack", "sextant", "--seq-len", "32",
          "--global-batch", "4", "--plan", key, "-o", file});
    ASSERT_TRUE(fs::exists(file));
  }
  // A rate that does not depend on how many steps are asked for.
  static Called run(const Words& more) {
    return call(Words{"run", "--lr-final-ratio", "1"} + more, kUnlimitedColumns);
  }
  static void good(const Words& more) {
    const Called o = run(more);
    EXPECT_EQ(o.code, ExitCode::ok) << o.err;
  }
  static std::vector<json> steps(const std::string& folder) {
    std::vector<json> all;
    std::istringstream lines(text_of(folder + "/steps.jsonl"));
    for (std::string line; std::getline(lines, line);) all.push_back(json::parse(line));
    return all;
  }
  static std::vector<double> losses(const std::string& folder) {
    std::vector<double> all;
    for (const json& step : steps(folder)) {
      EXPECT_EQ(step.at("step"), all.size()) << "each step once, in order";
      all.push_back(step.at("loss"));
    }
    return all;
  }
  static std::string manifest_of(const std::string& folder, std::int64_t step) {
    return (checkpoint_path(folder, step) / kManifestName).string();
  }
  static void edit_manifest(const std::string& file, const std::function<void(json&)>& change) {
    json manifest = json::parse(text_of(file));
    manifest.erase("digest");
    change(manifest);
    write(file, with_digest(manifest.dump().substr(1) + "\n"));
  }
  static std::vector<std::int64_t> saved(const std::string& folder) {
    std::vector<std::int64_t> all;
    for (const auto& c : committed_checkpoints(folder)) all.push_back(c.step);
    return all;
  }
};

}  // namespace sextant::bad_input

// A question to `sextant plan` and `sextant simulate` that is answered at once, and its answer in forms that tests read.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/tools/verbs/call.hpp"

namespace sextant::plan_question {

// As one line: where text wraps does not matter.
inline std::string unwrapped(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  return text;
}

// One 7B model on two nodes, most fields pinned: a space that is searched at once.
inline std::vector<std::string> small_question(const std::string& verb, std::vector<std::string> more = {}) {
  std::vector<std::string> all = {
      verb, "--model", "llama-2-7b", "--cluster", "2x8xa100-80gb", "--global-batch", "256"};
  if (verb == "plan")
    all.insert(all.end(), {"--fix", "tp=2,cp=1,oo=0,po=off,ao=0,tpo=off", "--limit", "mbs<=2,pp<=4"});
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

inline nlohmann::json json_of(std::vector<std::string> more) {
  more.push_back("--json");
  const auto outcome = call_in_full(small_question("plan", std::move(more)));
  EXPECT_EQ(outcome.code, ExitCode::ok) << outcome.err;
  return nlohmann::json::parse(outcome.out);
}
inline double number(const nlohmann::json& j, const char* key) { return j.at(key).get<double>(); }

}  // namespace sextant::plan_question

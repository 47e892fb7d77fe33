// Ordinary questions, and what every recommendation must hold.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/tools/verbs/call.hpp"

namespace sextant {

struct OrdinaryQuestion {
  const char *model, *cluster, *seq_len, *global_batch;
};

inline std::vector<std::string> asked(const OrdinaryQuestion& q, const std::string& stack,
                                      const std::vector<std::string>& more) {
  std::vector<std::string> out = {"plan",         "--model",   q.model,   "--cluster",
                                  q.cluster,      "--seq-len", q.seq_len, "--global-batch",
                                  q.global_batch, "--stack",   stack};
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

// What `plan --json` answers, asked once for each question.
inline const nlohmann::json& answered(const OrdinaryQuestion& q, const std::string& stack,
                                      std::vector<std::string> more = {}) {
  static std::map<std::vector<std::string>, nlohmann::json> answers;
  more.push_back("--json");
  const std::vector<std::string> question = asked(q, stack, more);
  const auto known = answers.find(question);
  if (known != answers.end()) return known->second;
  return answers[question] = nlohmann::json::parse(call(question).out);
}

// The step of the fastest safe layout of those that somebody measured or that the framework advises, seconds.
inline double fastest_known(const OrdinaryQuestion& q, const std::string& stack) {
  // Megatron-Core: FSDP beside data parallelism and stages alone; torchtitan: no more stages than four times what was measured.
  const std::vector<std::string> kinds = stack == "megatron-core"
                                             ? std::vector<std::string>{"zero<=1", "tp=1,cp=1"}
                                             : std::vector<std::string>{"pp<=4,vp<=4"};
  double least = INFINITY;
  for (const std::string& kind : kinds) {
    const auto found = call(asked(q, stack,
                                  {"--json", "--top", "1", "--max-oom-chance", "0.05", "--daring", "--limit",
                                   kind + ",oo=0,ao=0,po=0"}));
    if (found.code != ExitCode::ok) continue;  // none of this kind fits
    least = std::min(
        least, nlohmann::json::parse(found.out).at("ranked")[0].at("step_time_s").template get<double>());
  }
  return least;
}

// Of a recommendation: whether it has offload or uneven stages.
inline bool holds_bars(const OrdinaryQuestion& q, const std::string& stack) {
  const std::string what = std::string(q.model) + " on " + q.cluster + ", " + stack;
  const auto& j = answered(q, stack);
  const auto& r = j.at("recommended");
  EXPECT_LT(r.at("chance_of_overflow"), 0.05) << what;
  EXPECT_TRUE(j.at("risk").at("safe")) << what;
  const double step = r.at("step_time_s");
  EXPECT_LE(step, 1.05 * fastest_known(q, stack)) << what;
  EXPECT_TRUE(j.contains("evidence")) << what;
  for (const auto& layers : r.at("plan").at("chunk_layers")) EXPECT_GT(layers, 0) << what;
  bool unusual = false;
  for (const auto& feature : r.at("unusual_features"))
    unusual = unusual || feature == "uneven stages" ||
              feature.get<std::string>().find("offload") != std::string::npos;
  if (unusual && !r.at("gained_by_features_share").is_null()) {
    EXPECT_GE(r.at("gained_by_features_share"), 0.03) << what;
  }
  return unusual;
}

}  // namespace sextant

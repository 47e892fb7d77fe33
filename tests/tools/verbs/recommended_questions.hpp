// Ordinary questions, and what every recommendation must hold.
#pragma once

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

// Of a recommendation: whether it has offload or uneven stages.
inline bool holds_bars(const OrdinaryQuestion& q, const std::string& stack) {
  const std::string what = std::string(q.model) + " on " + q.cluster + ", " + stack;
  const auto j = nlohmann::json::parse(call(asked(q, stack, {"--json"})).out);
  const auto safe = nlohmann::json::parse(
      call(asked(q, stack, {"--json", "--top", "1", "--max-oom-chance", "0.05", "--daring"})).out);
  const auto& r = j.at("recommended");
  EXPECT_LT(r.at("chance_of_overflow"), 0.05) << what;
  EXPECT_TRUE(j.at("risk").at("safe")) << what;
  const double fastest_safe = safe.at("ranked")[0].at("step_time_s"), step = r.at("step_time_s");
  EXPECT_LE(step, 1.05 * fastest_safe) << what;
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

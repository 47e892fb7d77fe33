// What `sextant plan` is asked beyond the question itself: objective, sizes, deadline, price and jitter.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/base/units.hpp"
#include "core/plan/rank_by.hpp"
#include "tools/inputs/goodput_options.hpp"
#include "tools/inputs/inputs.hpp"

namespace sextant {

// How the machine varies, and which of a layout's steps decides.
struct JitterOptions {
  std::string ranked_by;
  double straggler_sigma = 0, network_sigma = 0;
  RankBy rank_by() const;
};
void add_jitter_options(CLI::App&, JitterOptions&);
// The spread becomes a setting of the cluster.
void settle(const JitterOptions&, QuestionOptions&);
// Throws UsageError where steps are to be ranked under jitter and none is stated.
void require_jitter(const JitterOptions&, const JitterSpec&);

struct PlanOptions {
  QuestionOptions question;
  JitterOptions jitter;
  GoodputOptions goodput;
  std::string objective = "throughput", scale, tokens, deadline, output;
  int top = 5, shortlist = 0;
  double budget_s = 0, price_usd = 0, max_oom_chance = 0;
  bool pareto = false;
  bool details = false;  // the ranking, the proof and the reasons, where a screen is the answer
  bool daring = false;   // the fastest on paper is recommended, whatever its risk
  // What is searched for the fastest ends then, unless budget_s states another time.
  double patience_s = 30;
};

void add_plan_options(CLI::App&, PlanOptions&);

// Refuses options that exclude each other; price and jitter become settings of the cluster. Throws UsageError.
void settle(PlanOptions&);

// "8,16,...,512" (doubling), "8,16,24,...,64" (equal steps), "8,24,64". Ascending. Throws ConfigError.
std::vector<int> parse_sizes(const std::string&);
// "30d", "12h", "36.5d". Throws ConfigError.
Seconds parse_duration(const std::string&, const std::string& flag);
// "2e12", "15T", "300B". Throws ConfigError.
double parse_tokens(const std::string&, const std::string& flag);

// The step that trains the tokens by the deadline; nothing without a deadline.
std::optional<Seconds> longest_step(const PlanOptions&, const TrainingSpec&);

}  // namespace sextant

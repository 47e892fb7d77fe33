// What `sextant explain` has found out, and its JSON.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "planner/answers/recommend.hpp"
#include "planner/answers/robust_plans.hpp"
#include "planner/explain/explain.hpp"
#include "tools/inputs/planning.hpp"

namespace sextant {

struct Asked {
  ParallelPlan plan;
  WhyNot answer;
  std::vector<std::string> notes;
  std::optional<CostShares> predicted_from = {};  // with --profile, of its step
};

// What `sextant plan` answers to the same question.
struct Recommended {
  Recommendation answer;
  std::string why;
  std::optional<Comparison> comparison;  // beside the chosen one; nothing where it is the same
};

// Another layout of the search, or of the recommendation.
struct RunnerUp {
  ParallelPlan plan;
  std::string kind;  // what it has that the chosen one has not: "fastest on paper"; empty: it is the next one
  double oom_chance = 0;
  Comparison comparison;
};

struct Explained {
  ParallelPlan chosen;
  Prediction prediction;
  bool calibrated = false;  // its interval is a calibration's
  WhyNot own;               // of the chosen layout against the best of the space
  RankBy by = RankBy::undisturbed;
  SteadyPlans found;
  std::optional<RankedAnew> anew;  // with --profile: what the search said
  TimeSplit time{};
  std::optional<Recommended> recommended;
  std::vector<RunnerUp> runners_up;
  std::vector<Asked> why;
  bool usual = false;  // alternatives and other machines: of layouts as safe, without unusual features
  std::vector<Alternative> alternatives;
  std::vector<Sensitivity> sensitivities;
  bool stopped = false;  // not every question was asked
};

nlohmann::ordered_json explained_json(const Question&, const Explained&);
nlohmann::ordered_json nothing_json(const Question&, const SearchReport&);  // where nothing fits

}  // namespace sextant

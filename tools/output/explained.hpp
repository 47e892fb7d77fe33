// What `sextant explain` has found out, and its JSON.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "planner/answers/robust_plans.hpp"
#include "planner/explain/explain.hpp"
#include "tools/inputs/planning.hpp"

namespace sextant {

struct Asked {
  ParallelPlan plan;
  WhyNot answer;
  std::vector<std::string> notes;
  std::optional<CostShares> rests_on = {};  // with --profile, of its step
};

// What `sextant plan` would answer, where a layout was given.
struct Recommended {
  ParallelPlan plan;
  std::optional<Comparison> comparison;  // beside the chosen one; nothing where it is the same
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
  std::vector<Comparison> runners_up;  // beside report.ranked from the second on
  std::vector<Asked> why;
  std::vector<Alternative> alternatives;
  std::vector<Sensitivity> sensitivities;
  bool stopped = false;  // not every question was asked
};

nlohmann::ordered_json explained_json(const Question&, const Explained&);
nlohmann::ordered_json nothing_json(const Question&, const SearchReport&);  // where nothing fits

}  // namespace sextant

// Which layout should be run tonight? Beside the fastest on paper, the best layouts without unusual features that leave room in
// memory are searched, and where these are slow or there are none, the fastest that leaves room; the rule of
// planner/answers/decision_rule.hpp chooses among all of them. With what else a reader may want instead, and its price.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/plan/plan_limits.hpp"
#include "core/runs/evidence.hpp"
#include "planner/answers/decision_rule.hpp"
#include "planner/answers/usual_layouts.hpp"
#include "planner/lowering/job.hpp"
#include "planner/search/search.hpp"

namespace sextant {

// What an alternative has that the recommendation has not.
enum class AlternativeKind : std::uint8_t {
  faster,
  faster_unusual,
  fastest_on_paper,
  less_memory,
  simpler,
  other
};
std::string_view name(AlternativeKind);  // "faster", "fastest on paper", ...

struct OtherLayout {
  AlternativeKind kind = AlternativeKind::other;
  RankedPlan plan;  // `slower` is against the recommended one, negative where it is faster
};

struct Recommendation {
  RankedPlan plan;                         // `slower` is against the fastest on paper
  bool safe = false;                       // its chance of running out of memory is below the rule's limit
  std::vector<std::string> features;       // what of it is unusual
  std::optional<RankedPlan> plain;         // the best safe layout without unusual features, where it has some
  std::optional<RankedPlan> fastest_safe;  // where another layout is
  std::optional<RankedPlan> fuller_host;   // faster, but it leaves too little of the host's memory
  bool on_paper = false;                   // it is the fastest on paper as well
  bool ended_early = false;                // its searches were: time was spent, or somebody stopped them
  std::vector<OtherLayout> alternatives;
};

struct DecisionBasis {
  DecisionRule rule;
  EvidenceTable evidence;
};

// Of an answer's time, what the search for the fastest on paper may take; the rest is for what is recommended instead.
SearchOptions for_fastest(SearchOptions);

// `fastest`: of the search for so many of the fastest layouts; must have found some. `search_more`: false takes these alone. Of more
// than kJudged the first are taken, so that an answer does not depend on how many are shown.
inline constexpr int kJudged = 5;
Recommendation recommend(const Job&, const PlanLimits&, const SearchReport& fastest, const DecisionBasis&,
                         const SearchOptions&, bool search_more = true);

}  // namespace sextant

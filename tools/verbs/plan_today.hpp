// Under --from: the layout that the file runs today, as a measure of what `sextant plan` recommends.
#pragma once

#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "planner/simulation/predict.hpp"
#include "tools/inputs/planning.hpp"

namespace sextant {

struct TodaysLayout {
  std::string file;
  std::optional<ParallelPlan> plan;
  std::optional<Prediction> prediction;
  std::string refused;  // why it cannot run; empty where it can
};

// Nothing without --from.
std::optional<TodaysLayout> todays_layout(const Planning&);

// "today (run.sh): tp4...: 5.312 s, 61.2 GiB; this one takes 0.88 times as long".
std::string today_text(const TodaysLayout&, Seconds recommended);
nlohmann::ordered_json today_json(const TodaysLayout&);

}  // namespace sextant

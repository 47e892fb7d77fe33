#include "tools/verbs/plan_today.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "planner/simulation/stage_memory.hpp"

namespace sextant {

using Json = nlohmann::ordered_json;

std::optional<TodaysLayout> todays_layout(const Planning& planning) {
  const Question& q = planning.question();
  if (!q.from) return std::nullopt;
  TodaysLayout today{q.from->file, q.from->layout, {}, q.from->problem};
  if (!today.plan) return today;
  const Job job = planning.predicted_job();
  if (const int world = today.plan->world(), gpus = q.cluster.gpus(); world > gpus) {
    today.refused = fmt::format("it needs {} GPUs, the cluster has {}", world, gpus);
    return today;
  }
  if (const auto rejection = unlawful(job, *today.plan)) {
    today.refused = rejection->text;
    return today;
  }
  today.prediction = predict(job, *today.plan);
  if (const auto rejection = too_large(job, today.prediction->memory)) today.refused = rejection->text;
  return today;
}

std::string today_text(const TodaysLayout& today, Seconds recommended) {
  std::string text =
      fmt::format("today ({}): {}", today.file, today.plan ? plan_key(*today.plan) : "no layout");
  if (today.prediction)
    text +=
        fmt::format(": {:.3f} s, {:.1f} GiB", today.prediction->step.v, gib(today.prediction->memory.peak));
  if (!today.refused.empty()) return text + "; it cannot run here: " + today.refused;
  return text +
         fmt::format("; this one takes {:.2f} times as long", recommended.v / today.prediction->step.v);
}

nlohmann::ordered_json today_json(const TodaysLayout& today) {
  Json out = {{"file", today.file},
              {"key", today.plan ? Json(plan_key(*today.plan)) : Json(nullptr)},
              {"step_time_s", nullptr},
              {"peak_memory_GiB", nullptr},
              {"refused", today.refused.empty() ? Json(nullptr) : Json(today.refused)}};
  if (today.prediction) {
    out["step_time_s"] = today.prediction->step.v;
    out["peak_memory_GiB"] = gib(today.prediction->memory.peak);
  }
  return out;
}

}  // namespace sextant

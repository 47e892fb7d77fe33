// What would be recommended where experts have tuned and measured? Each published tuned layout is a question (model, batch,
// cluster, stack): the best measured layout of it stands for the experts' answer.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/runs/framework_map.hpp"
#include "core/runs/run_row.hpp"
#include "planner/answers/recommend.hpp"

namespace sextant {

struct ExpertAnswer {
  std::string run_id, source, question;  // question: "llama3.1-70b, 64 x H100-SXM5-80GB, 8192/128, nemo-dgxc"
  ParallelPlan expert;
  double measured_s = 0, predicted_s = 0;  // of the experts' layout
  double expert_oom_chance = 0;
  std::optional<Recommendation> ours;
  std::string note;  // why there is none
  // Predicted step of the recommendation over that of the experts' layout: 0.9 claims to be 10 % faster.
  double predicted_ratio() const { return ours ? ours->plan.prediction.step.v / predicted_s : 0; }
};

// Rows that are the fastest measured of their question, in the order of the rows.
std::vector<std::size_t> expert_rows(std::span<const RunRow>);

// `seconds` for each question's searches. `tell` is told how many are done.
std::vector<ExpertAnswer> against_experts(std::span<const RunRow>, const FrameworkMap&,
                                          const std::filesystem::path& preset_dir, double seconds,
                                          const std::function<void(std::size_t)>& tell = {});

}  // namespace sextant

// The plan nearest to one that a target cannot express: what it has no option for becomes what it has, every combination of such
// changes is simulated, and the fastest that fits is taken.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/plan/plan_file.hpp"
#include "planner/simulation/predict.hpp"
#include "tools/export/export_target.hpp"
#include "tools/inputs/inputs.hpp"

namespace sextant {

// A plan file's question under a target's stack: the same model, training, cluster and plan. The file's own stack stays where
// it is the target's.
Question question_under(const Question& asked, const ChosenTarget&, const std::filesystem::path& presets);

struct NearestPlan {
  Question question;  // with its plan and number formats
  Prediction prediction;
  std::vector<std::string> changes;  // "zero_stage 1", beginning with what was refused
  bool fits() const { return prediction.fits; }
};

// The plan of the question as it is: predicted under its stack.
Prediction predict_question(const Question&, const std::filesystem::path& presets);

// `asked` is of question_under. Nothing where some field has no substitute (a kind of model). Where none fits, that of least memory.
std::optional<NearestPlan> nearest_plan(const Question& asked, const ChosenTarget&,
                                        const std::filesystem::path& presets);

}  // namespace sextant

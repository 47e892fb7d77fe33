// What a log says against what its user says with it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/base/error.hpp"
#include "core/plan/parallel_plan.hpp"
#include "planner/calibration/run_log.hpp"
#include "tests/planner/calibration/megatron_log.hpp"

namespace sextant {

struct Said {
  std::string problems;  // empty: none
  ModelSpec model;
  TrainingSpec training;
  ParallelPlan plan;
  std::vector<std::string> notes;
  bool names(const std::string& problem) const { return problems.find(problem) != std::string::npos; }
  bool notes_that(const std::string& words) const {
    for (const std::string& note : notes)
      if (note.find(words) != std::string::npos) return true;
    return false;
  }
};

inline Said with_log(const std::string& text, Said out, const LogContext& context) {
  try {
    out.notes = apply_log(parse_run_log(text, "x.log"), out.model, out.training, out.plan, context);
  } catch (const ConfigError& e) {
    out.problems = e.what();
  }
  return out;
}

// `key` with the parts that it states (nothing: all of a plan); what `context` does is stated too.
inline Said said(const std::string& text, const std::string& key, LogContext context = {},
                 const TrainingSpec& training = {},
                 std::optional<std::vector<std::string>> parts = std::nullopt) {
  context.plan = true;
  context.parts = std::move(parts);
  return with_log(text, {"", llama_13b(), training, parse_plan_key(key), {}}, context);
}

// Nothing is stated but the model.
inline Said filled(const std::string& text, const ModelSpec& model = llama_13b(), LogContext context = {}) {
  return with_log(text, {"", model, {}, {}, {}}, context);
}

// kMegatron with more arguments.
inline std::string with_arguments(const std::string& arguments) {
  std::string text = kMegatron;
  return text.insert(text.find("  lr ..."), arguments);
}

// "  swiglu .... True", as Megatron-LM prints an argument.
inline std::string argument(const std::string& name, const std::string& value) {
  return "  " + name + " " + std::string(name.size() < 48 ? 48 - name.size() : 0, '.') + " " + value + "\n";
}

}  // namespace sextant

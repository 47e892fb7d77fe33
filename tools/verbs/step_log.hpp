// What a run prints and keeps of its steps: one line each, on the terminal and in steps.jsonl.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "tools/inputs/run_checkpoints.hpp"
#include "tools/inputs/running.hpp"
#include "tools/inputs/verb.hpp"

namespace sextant {

class StepLog {
 public:
  StepLog(Session& session, RunFolder& folder, int print_every)
      : session_(session), folder_(folder), every_(print_every) {}

  // Steps from now on are of this plan. `peaks`: processors of its device that work, all ranks together.
  void use(const Runnable& runnable, int peaks) {
    runnable_ = &runnable;
    peaks_ = peaks;
  }
  void add(const StepReport&);
  void add_evaluation(const nlohmann::ordered_json& line, const std::string& text);
  void tell(const std::string& what);
  void print_curves() const;  // loss and throughput in a line each, where there are steps enough
  const nlohmann::ordered_json& steps() const { return steps_; }
  const nlohmann::ordered_json& evaluations() const { return evaluations_; }

 private:
  Session& session_;
  RunFolder& folder_;
  const int every_;
  const Runnable* runnable_ = nullptr;
  int peaks_ = 1;
  nlohmann::ordered_json steps_ = nlohmann::ordered_json::array(),
                         evaluations_ = nlohmann::ordered_json::array();
};

}  // namespace sextant

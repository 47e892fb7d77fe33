// What the verbs over the planner share: the inputs kept alive behind a Job, the plan file of an answer, and
// the lines that say what was asked.
#pragma once

#include <chrono>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/cluster/topology.hpp"
#include "core/plan/plan_file.hpp"
#include "core/timeline/breakdown.hpp"
#include "planner/answers/rerank.hpp"
#include "planner/calibration/calibration_uncertainty.hpp"
#include "planner/explain/explain.hpp"
#include "planner/lowering/job.hpp"
#include "planner/search/search.hpp"
#include "planner/simulation/predict.hpp"
#include "tools/inputs/inputs.hpp"
#include "tools/inputs/profile_use.hpp"
#include "tools/inputs/verb.hpp"
#include "tools/terminal/interrupt.hpp"
#include "tools/terminal/progress.hpp"

namespace sextant {

class Planning {
 public:
  Planning(Question question, const std::filesystem::path& presets)
      : question_(std::move(question)),
        topology_(question_.cluster),
        costs_(question_.cluster, question_.stack, question_.calibrated,
               question_.profile ? &*question_.profile : nullptr, presets, question_.stated),
        uncertainty_(load_uncertainty_rules(presets)) {}
  Planning(const Planning&) = delete;
  Planning& operator=(const Planning&) = delete;

  const Question& question() const { return question_; }
  const MachineCosts& costs() const { return costs_; }
  // What is searched: under the analytic model, whose properties bounds rest on.
  Job job() const { return job_with(costs_.analytic(), false); }
  // What is predicted: with --profile by its table.
  Job predicted_job() const { return job_with(costs_.best(), question_.profile.has_value()); }

 private:
  Job job_with(const CostModel& cost, bool profiled) const {
    return {question_.model, question_.training, question_.cluster, topology_, costs_.analytic().stack(),
            cost, question_.interval, &uncertainty_,
            // What a calibration learned of layouts is of the model's times, not of measured ones.
            profiled || question_.learned.empty() ? nullptr : &question_.learned, 0, profiled};
  }

  Question question_;
  Topology topology_;
  MachineCosts costs_;
  UncertaintyRules uncertainty_;
};

// "llama-2-13b (13,015,864,320 parameters) on 64 x A100-SXM4-80GB (8 nodes, hdr-8x200), megatron-core; 1024 sequences of 4096 tokens".
std::string question_text(const Question&);

// "note: ..." a line, of what reading the question took for granted.
void print_notes(Session&, const Question&);
// On stderr: what the next version will not read any more; nothing where that is empty.
void tell_former(const Session&, const std::string& former);
// Reads the question of a command (tools/inputs/inputs.hpp), and tells what of it is former.
Question read_question(const Session&, const QuestionOptions&);

// The options that ask the same question of another verb: " --model llama-2-13b --cluster 8x8xa100-80gb".
std::string question_arguments(const Session&, const QuestionOptions&);
// The same of the part of the cluster that `sub_cluster` gives for so many GPUs, or of a larger one.
std::string sized_arguments(const Session&, const QuestionOptions&, const ClusterSpec& whole, int gpus);
// " --limit 'tp<=8'": what pins and narrows layouts.
std::string limit_arguments(const Question&);

// `rank_by`: what the layout was chosen by, where the prediction is of the expected step.
PlanFile plan_file_of(const Session&, const Question&, const ParallelPlan&, const Prediction&,
                      const TimeSplit& mean, RankBy rank_by = RankBy::expected);

// "expected under the stated jitter (the mean of 64 sampled steps); ..."; empty without jitter in the prediction.
std::string jitter_text(const Prediction&);

// Under --calibration: the interval of what its runs leave open. Nothing without one.
std::optional<CalibratedUncertainty> use_covariance(const Session&, const QuestionOptions&, const Question&,
                                                    const ParallelPlan&, Prediction&);
void use_covariance(const Session&, const QuestionOptions&, const Question&, std::vector<RankedPlan>&);

// What a ranking by --profile says about what is proved.
std::string ranked_anew_text(const Planning&, const RankedAnew&);
nlohmann::ordered_json ranked_anew_json(const RankedAnew&);

// Seconds by category.
nlohmann::ordered_json time_split_json(const TimeSplit&);
nlohmann::ordered_json prediction_json(const ParallelPlan&, const Prediction&);

inline constexpr double kWorthPrinting = 0.01;  // of an OOM risk
// "4.9 %", "12 %", "below 1 %".
std::string oom_risk_text(double chance);
// "OOM risk 30 %"; empty where it is below 5 %.
std::string overflow_text(double chance);
// What a node's host memory holds, with a warning near its limit; empty where nothing is offloaded.
std::string host_memory_text(const PlanMemory&, const NodeSpec&);

// "model", "parameters", "cluster", "gpus", "stack", "seq_len", "global_batch", "notes": what was asked.
nlohmann::ordered_json question_json(const Question&);
// "space", "outcomes", "examples", "exact", "stopped", "best_bound_s", "search_time_s": what became of the layouts.
nlohmann::ordered_json report_json(const SearchReport&);

// The searches of one command: they share a line of progress, a budget and Ctrl-C.
class Searching {
 public:
  Searching(Terminal& terminal, double budget_s)
      : budget_s_(budget_s), progress_(terminal, "searching", 0, "layouts") {}
  // Of the next search, called `about` in the progress line. What is left of the budget is its budget.
  SearchOptions options(int top, std::string about = "");
  // Every search from now on finds only what needs no more.
  void limit_memory(Bytes limit) { memory_limit_ = limit; }
  std::optional<Bytes> memory_limit() const { return memory_limit_; }
  bool interrupted() const { return interrupt_.stopped().load(); }
  bool stopped() const { return interrupted() || (budget_s_ > 0 && spent_s() >= budget_s_); }
  void finish() { progress_.finish(); }

 private:
  double spent_s() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }
  double budget_s_;
  std::optional<Bytes> memory_limit_;
  InterruptGuard interrupt_;
  Progress progress_;
  std::string about_;
  std::uint64_t before_ = 0, now_ = 0;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// The search, unless the space cannot hold anything: then every member has the outcome that its stack refuses it.
SearchReport search_possible(const Job&, const SearchSpace&, const SearchOptions&);

// Lines of the terminal's width, at most 110; `indent` blanks before the first, two more before the others.
void print_wrapped(std::ostream&, const Terminal&, const std::string& text, int indent = 0);

std::string with_thousands(std::uint64_t);  // "13,015,864,320"
// "30.2e12", "1,234".
std::string count_text(std::uint64_t);
// "12.7e12 not divisible, 164 simulated".
std::string outcomes_text(const OutcomeCounts&);
// One example of every reason, the first that was met.
void print_reasons(std::ostream&, const Terminal&, const SearchReport&);

// Of a search that found nothing: what would fit. Nothing where it was stopped, or can never find anything.
std::optional<NothingFits> what_would_fit(const Planning&, const SearchSpace&, const SearchReport&,
                                          Searching&);

// Nothing was found: why, what comes closest, the numbers of GPUs that would do, and the next command. The exit code: interrupted after
// Ctrl-C, otherwise no feasible plan, with text and --json alike.
ExitCode print_nothing(Session&, const std::string& verb, const Planning&, const SearchSpace&,
                       const SearchReport&, Searching&, const QuestionOptions& asked);

// "4", "sel", "full", "full12".
std::string recompute_text(const Recompute&);

}  // namespace sextant

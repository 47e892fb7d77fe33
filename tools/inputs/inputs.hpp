// From options to what is asked: model, training, cluster, software stack and the limits of the search. All
// verbs that ask about a layout share these options, so that a command line can be changed from one to
// another by its verb alone.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "core/cluster/cluster_spec.hpp"
#include "core/model/model_spec.hpp"
#include "core/model/training_spec.hpp"
#include "core/plan/plan_file.hpp"
#include "core/plan/plan_limits.hpp"
#include "core/plan/stack_spec.hpp"
#include "planner/simulation/residual.hpp"
#include "planner/simulation/setting.hpp"
#include "tools/inputs/profile_use.hpp"
#include "tools/inputs/verb.hpp"

namespace sextant {

// A note where the cluster states jitter and the answer is of a step without.
inline constexpr const char* kJitterUnread =
    "the jitter that is stated acts on no step here: --rank-by expected or p90, of plan and explain, samples "
    "it";

struct QuestionOptions {
  std::string model, cluster, stack, plan, calibration, profile, from, precision;
  int seq_len = 0, global_batch = 0;  // 0: not given
  std::vector<std::string> set, fix, limit;
  bool searches = false;        // the layout is looked for: that of --from is what it is compared with
  bool samples_jitter = false;  // the answer is of steps under the cluster's jitter
};

// Which of them a verb has: a search takes limits, a single layout takes --plan.
struct QuestionKinds {
  bool plan = false;
  bool limits = false;
  bool profile = false;  // steps may be predicted with a table of measured works
  bool from = false;     // the question may be a file of another framework
};
void add_question_options(CLI::App&, QuestionOptions&, QuestionKinds);

// What the file of --from said.
struct ForeignRun {
  std::string file;
  std::optional<ParallelPlan> layout;  // that it runs; where a layout is asked for, also the question's own
  std::string problem;                 // why it has none on this cluster
  std::vector<std::string> notes;  // what was read, assumed, not understood; among the question's notes too
};

struct Question {
  ModelSpec model;
  TrainingSpec training;
  ClusterSpec cluster;
  StackSpec stack;
  std::vector<Setting> calibrated;   // of --calibration; those of stack and fabric are in their place already
  Residual learned;                  // of --calibration, beyond constants
  PlanLimits limits;                 // --fix and --limit together
  std::optional<ParallelPlan> plan;  // of --plan
  std::vector<std::string> key_parts;   // of a plan key: those that it states (FilledPlan::stated)
  std::optional<PlanFile> file;         // when --plan named a plan file: its predictions
  std::optional<GivenProfile> profile;  // of --profile: taken on such a device
  double interval = 1.0;                // intervals are that much wider: far from all that was measured
  std::vector<std::string> stated;      // keys of --set
  std::optional<ForeignRun> from;       // of --from
  std::vector<std::string> notes;       // what was taken for granted, and GPUs that the plan leaves idle
  std::vector<std::string> former;      // what of a file is written as version 0.1 wrote it
};

// A layout that is an argument of its own stands for --plan; not both.
void take_layout(const std::string& layout, QuestionOptions&);

// Files that reading the question opens.
std::vector<std::string> files_read(const QuestionOptions&);

// Before the work: throws ConfigError when the file of option `flag` cannot be written, or is one of `others`,
// which the command reads or writes too. An empty path is no output.
void check_output(const std::string& flag, const std::string& path, const std::vector<std::string>& others);

// Reads and checks everything. With a plan file, what the options do not state comes from the file; what a plan key leaves
// out comes from cluster and stack (core/plan/plan_key.hpp). Throws UsageError when something is missing, ConfigError when
// something is wrong.
Question read_question(const QuestionOptions&, const std::filesystem::path& presets);

}  // namespace sextant

// The folder of a run, `sextant run -o DIR`: who may write into it, what is there to go on from, its steps.jsonl, when the
// run is saved and when it is to end.
#pragma once

#include <chrono>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json_fwd.hpp>

#include "core/plan/plan_file.hpp"
#include "runtime/training/training_run.hpp"

namespace sextant {

struct CheckpointFlags {
  bool resume = false, no_save = false, follow_links = false;
  int resume_step = -1;  // -1: the newest
  int save_every = 0, keep_last = 2, keep_every = 0;
  bool keep_all = false;  // checkpoints of a run that has not said how many it wants
  double time_limit_s = 0;
  std::string stop_file;
};
void add_checkpoint_options(CLI::App&, CheckpointFlags&);

class RunFolder {
 public:
  // Throws when the folder cannot be used as the flags ask: ConfigError or UsageError. Nothing is made or written yet. An
  // empty name: a run that leaves nothing behind.
  RunFolder(const std::string& folder, const CheckpointFlags&);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  // Makes the folder, when everything else has been judged; nothing in it is written before the run begins.
  void make();
  // What the run goes on from; null when it starts.
  const Checkpoint* checkpoint() const { return checkpoint_ ? &*checkpoint_ : nullptr; }
  // Once it is known what the run was: these flags in place of those that were given, the text of options.json, and the steps
  // that it is to have.
  void adopt(const CheckpointFlags& flags, std::string options, std::int64_t steps) {
    flags_ = flags;
    options_ = std::move(options);
    steps_ = steps;
  }
  // The plan that the run had last: of plan.json or, when that is of no use, of the checkpoint.
  struct OwnPlan {
    std::string name;
    PlanFile plan;
    std::string note;  // why it is not plan.json's
  };
  std::optional<OwnPlan> own_plan() const;  // nothing when there is none; throws ConfigError

  using Tell = std::function<void(const std::string&)>;
  // Fills the run's hooks for saving, resuming and ending. Reports go to `tell` (one line each, on the first rank) and, when
  // something is wrong, to `warn`, which other threads call as well.
  void attach(TrainingRun&, const PlanFile&, std::int64_t seed, Tell tell, Tell warn);

  // The run goes on under another layout: the same hooks, but for those of its beginning.
  void go_on(TrainingRun&, const PlanFile&);
  // To the newest checkpoint: steps.jsonl ends there. Null when there is none.
  const Checkpoint* go_back();
  // Behind the loss of a process, on the one that is the first now, when no other writes into the folder: it is this one's from
  // now on, whosever it was, and steps.jsonl ends with the step before `step`. How many steps are in there: one is missing where
  // the first was lost, or met the loss, before it could write it.
  std::int64_t lead(std::int64_t step);
  // On the others: the checkpoint that the first goes back to.
  const Checkpoint* read(std::int64_t step);

  // Where the tokens behind `step` steps come from, as a JSON object that the checkpoint keeps; asked on the first rank. A
  // run that goes on finds it in checkpoint()->manifest().data.
  void keep_data(std::function<std::string(std::int64_t step)> data) { save_.data = std::move(data); }

  // A line of steps.jsonl, of a step that took so long; of MPI ranks only the first has any. What a full disk refuses is
  // kept for later; sync() throws when it cannot be written still.
  void add_step(const std::string& line, Seconds step = {});
  void sync();
  // Why the run was to end before its last step; empty when it was not these.
  std::string end_reason() const { return reason_; }
  bool saves() const { return !folder_.empty() && !flags_.no_save; }

 private:
  void begin();
  void open_steps(const std::string& lines);
  bool time_to_stop();
  bool write_steps();  // whether all lines are written; steps_mutex_ is held

  std::filesystem::path folder_;
  CheckpointFlags flags_;
  std::string options_;
  std::int64_t steps_ = 0;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::optional<Checkpoint> checkpoint_;
  std::optional<RunLock> lock_;
  bool made_ = false;  // the folder was not there before
  CheckpointOptions save_;
  std::string reason_;
  Tell warn_;
  Seconds step_;  // how long the last one took
  int steps_fd_ = -1;
  std::mutex steps_mutex_;  // saves write lines too, before they commit
  std::string unwritten_;   // lines of steps.jsonl
};

}  // namespace sextant

// When is a run saved, and when is that a checkpoint? Behind a step each rank makes the update that is due, and goes on: until
// the next update, one step later, its state stays as it is and is copied meanwhile, by a thread that stands by for it; what
// that has not begun by then, the rank copies itself. Another thread writes the copy to a file of an unfinished folder. The
// first rank's waits for all the files, checks that they make up the model, writes the manifest and gives the folder its name,
// in one rename. At the beginning of each step ranks tell each other how far they are; no training waits for a disk: a save
// that is due while another is under way is put off, and one that fails is reported and left to the next. Only the end of a
// run waits for its last one.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "runtime/checkpoint/background_thread.hpp"
#include "runtime/checkpoint/manifest.hpp"
#include "runtime/checkpoint/run_folder.hpp"
#include "runtime/checkpoint/state_snapshot.hpp"

namespace sextant {

// What a save has come to; of all ranks together.
struct SaveEvent {
  std::int64_t step = 0;
  std::int64_t bytes = 0;
  Seconds pause;    // of training, on this rank: to begin, and where the copy took longer than a step
  Seconds writing;  // from the beginning to the commit, beside training
  std::optional<Seconds>
      end_wait;  // behind the last step nothing is left to stand still: the run's end waited for it
  bool committed = false;
  std::string error;  // why not; or what went wrong behind the commit
};

// Places at which tests slow the disk down, let it fail, or end the process.
enum class SavePoint : std::uint8_t { copy, write_file, file_written, write_manifest, commit, committed };

struct CheckpointOptions {
  std::filesystem::path run;
  std::int64_t every = 0;  // steps; 0: only when the run ends
  Retention keep;
  PlanFile plan;
  std::int64_t seed = 0;
  // On the first rank's saving thread, when the state behind `step` steps is saved: a JSON object that says where the tokens
  // come from.
  std::function<std::string(std::int64_t step)> data = {};
  std::string options = "{}";                           // the manifest's
  std::function<void()> before_commit = {};             // there, on the writing thread
  std::function<void(const SaveEvent&)> on_event = {};  // there, on the training thread
  // A save that has failed while the run goes on: which file, why, and what comes next. On one rank, the first that has
  // met it, on its training thread.
  std::function<void(const std::string&)> on_problem = {};
  std::function<void(SavePoint, int rank)> at = {};  // on a saving thread; at `copy` it throws nothing
};

class CheckpointWriter {
 public:
  // `resumed`: the step of the checkpoint that the run goes on from.
  CheckpointWriter(const CheckpointOptions&, const OptimizerSpec&, RankTrainer&, int rank, int world,
                   std::optional<std::int64_t> resumed);
  ~CheckpointWriter();  // what is being written is not committed
  CheckpointWriter(const CheckpointWriter&) = delete;

  // To be summed over the ranks at the beginning of each step, and heard by each.
  static constexpr std::size_t kVotes = 2;
  std::array<double, kVotes> votes();
  void heard(std::span<const double> sums);

  // Behind a step, on every rank alike. Tells in its report how long training stood still since the last one, and counts the
  // update, which the next step will not have to make, to this one.
  void save_if_due(StepReport&);
  // The layout changes: what is being saved is committed, or has failed; nothing new is begun. On every rank.
  void settle();
  // The run ends: on return its state is committed, on every rank; throws BackendError when that failed.
  void finish();

 private:
  Seconds stage();       // how long the update took
  void wait_for_copy();  // before the state changes
  void save();           // what is staged: on the thread that stands by
  void write_file() const;
  void commit();                // on the first rank
  void wait_for_files() const;  // there; throws when they will not come
  Manifest collect() const;     // there
  void stand_by(Seconds step);  // which is how long one takes
  void start(std::function<void()> work);
  void look();  // has the work ended, and how
  void wait();
  void exchange();  // of votes, outside of a step
  // Of the ranks that could not do their part the first, which knows why; collective.
  int first_that_failed();
  void tell_failure();
  void report();
  void at(SavePoint point) const {
    if (options_.at) options_.at(point, rank_);
  }

  const CheckpointOptions& options_;
  RankTrainer& trainer_;
  int rank_, world_;
  StreamId stream_;
  StateSnapshot staged_;
  Manifest next_;  // of the state that is staged, without files
  SaveEvent event_;
  std::chrono::steady_clock::time_point began_ = {};
  std::optional<std::chrono::steady_clock::time_point> ending_;  // since when the end of the run waits
  bool copying_ = false;                                         // the state may not change yet
  Seconds waited_;                                               // for that, since the last report
  bool outstanding_ = false;                                     // staged, and not everyone is done with it
  bool may_stage_ = true, due_ = false;
  bool busy_ = false, failed_ = false;  // of this rank's part
  std::string problem_;                 // of its own, when it has failed: not that of others
  enum class End : std::uint8_t { no, first_try, last_try } end_ = End::no;  // of the run
  std::atomic<bool> abandoned_ = false;    // no use to wait for the others' files
  std::optional<std::int64_t> committed_;  // known to the first rank
  struct Outcome {
    std::string error, problem;  // what others have failed at is no problem of this rank
  } outcome_;                    // of the save that the future says is over
  std::packaged_task<void()> saved_;
  std::future<void> running_;
  BackgroundThread background_thread_;  // last: ends before the rest goes
};

}  // namespace sextant

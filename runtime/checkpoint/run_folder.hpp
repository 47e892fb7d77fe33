// The checkpoints of a run's folder: RUN/checkpoints/step-00000012/, in which 12 steps have been done. A folder of that name
// is complete: it got its name by one rename, after everything in it was on the disk. What a killed run has left there
// is called .step-00000012.unfinished or .step-00000012.old.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

namespace sextant {

struct CommittedCheckpoint {
  std::int64_t step = 0;
  std::filesystem::path path;
};
// Oldest first. Throws ConfigError when they cannot be listed.
std::vector<CommittedCheckpoint> committed_checkpoints(const std::filesystem::path& run);
std::filesystem::path checkpoint_path(const std::filesystem::path& run, std::int64_t step);
// Where the checkpoint of a step is written before it is one.
std::filesystem::path unfinished_path(const std::filesystem::path& run, std::int64_t step);

// The functions below are for the one process that holds the run's lock; BackendError when the disk refuses.

// Flushes the unfinished folder, gives it its name and flushes that. One of the same step is replaced.
void commit_checkpoint(const std::filesystem::path& run, std::int64_t step);
void discard_unfinished(const std::filesystem::path& run, std::int64_t step);
void clear_leftovers(const std::filesystem::path& run);

struct Retention {
  int last = 2;            // the newest ones
  std::int64_t every = 0;  // and the first one in every so many steps; 0 = none
};
// Of those up to step `newest`, which is the one just written; later ones are another run's.
void drop_old_checkpoints(const std::filesystem::path& run, const Retention&, std::int64_t newest);
// Renames those beyond `step` to "aside-step-...": another run goes on from there, and nothing is lost.
void set_aside_after(const std::filesystem::path& run, std::int64_t step);

// A run's folder belongs to one process as long as this lives; the lock dies with the process, however it ends.
class RunLock {
 public:
  explicit RunLock(const std::filesystem::path& run);  // throws ConfigError when another process has it
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int fd_ = -1;
};

}  // namespace sextant

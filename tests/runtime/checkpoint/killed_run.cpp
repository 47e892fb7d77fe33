#include "tests/runtime/checkpoint/killed_run.hpp"

#include <chrono>
#include <csignal>
#include <mutex>
#include <optional>
#include <random>
#include <thread>

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/base/error.hpp"
#include "tests/runtime/checkpoint/checkpoint_trial.hpp"

namespace sextant::testing {
namespace {

namespace fs = std::filesystem;

// Whole lines of either rank, never mixed.
void say(const std::string& line) {
  const std::string text = line + '\n';
  (void)!::write(STDOUT_FILENO, text.data(), text.size());
}

}  // namespace

int child(const std::string& key, const fs::path& folder, Fault fault, unsigned seed, bool mpi) {
  std::signal(SIGXFSZ, SIG_IGN);  // as the command does
  say(fmt::format("pid {}", ::getpid()));
  CheckpointTrial t(key, folder);
  t.run.processes = mpi;
  t.run.on_start = t.run.on_end = {};
  t.run.optimizer.total_steps = kRunSteps;
  t.save.every = kSaveEvery;
  t.save.keep.last = 2;
  std::optional<RunLock> lock;
  t.run.claim = [&] {
    lock.emplace(folder);
    clear_leftovers(folder);
  };
  t.run.on_step = [&](const StepReport& r) { say(fmt::format("loss {} {:a}", r.step, r.loss)); };
  std::mutex mutex;
  std::mt19937 random(seed);
  const auto below = [&](unsigned n) {
    const std::lock_guard guard(mutex);
    return static_cast<unsigned>(random() % n);
  };
  t.save.at = [&](SavePoint point, int rank) {
    if (point == SavePoint::copy) return;  // nothing of the disk
    say(fmt::format("at {} {}", static_cast<int>(point), rank));
    if (fault == Fault::slow_disk) std::this_thread::sleep_for(std::chrono::milliseconds(below(40)));
    if (fault == Fault::failing_write && point < SavePoint::committed && below(4) == 0)
      throw BackendError("Input/output error");
  };
  t.save.on_event = [&](const SaveEvent& e) {
    if (e.error.empty()) say(fmt::format("commit {}", e.step));
  };
  t.save.on_problem = [](const std::string&) { say("failed"); };
  if (fault == Fault::file_too_large) {
    const rlimit limit{1024 + below(1U << 19), RLIM_INFINITY};
    (void)::setrlimit(RLIMIT_FSIZE, &limit);
  }
  if ((t.resumed = Checkpoint::open_newest(folder))) {
    t.run.resume = &*t.resumed;
    say(fmt::format("from {}", t.resumed->manifest().clock.step));
  }
  t.go(kRunSteps);
  if (t.error.empty()) {
    say("done");
    return 0;
  }
  say(fmt::format("error {} {}",
                  t.config_error ? kRefused : "of the disk:", t.error.substr(0, t.error.find('\n'))));
  return t.config_error ? 3 : 7;
}

}  // namespace sextant::testing

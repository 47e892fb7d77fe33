// The ranks of a run that adapts where each is a process of its own: rank 0 decides, the others tell it what they saw of a
// step and hear of its decisions. Needs no connection beside the run's.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "planner/adaptation/step_observer.hpp"
#include "runtime/communicators/communicator.hpp"

namespace sextant {

// Every call is collective over all processes. One that waits longer than the patience asks who shows no sign of life; those are
// given up, or, where the job does not outlive that, end it.
class RankProcesses {
 public:
  explicit RankProcesses(std::unique_ptr<Communicator> world, Seconds patience = Seconds(60));

  Communicator& world() { return *world_; }  // in which the layouts follow each other
  bool decides() const { return world_->rank() == 0; }

  // What one process saw of a step becomes what all saw. Whether rank 0 `tells` something: then all hear() it next.
  bool share(StepView&, bool tells);
  // Behind a RankLost: those that are left become the world, by rank with their ranks before.
  std::vector<int> regroup();
  std::int64_t least(std::int64_t);  // of all; beyond 2^53 not exact
  // What rank 0 says; `text` of the others is not looked at.
  std::string hear(const std::string& text);

 private:
  // While it lives, this process waits for others.
  class Waiting {
   public:
    explicit Waiting(RankProcesses& all) : all_(all) { all_.waits_since(std::chrono::steady_clock::now()); }
    ~Waiting() { all_.waits_since({}); }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    RankProcesses& all_;
  };
  void waits_since(std::chrono::steady_clock::time_point);
  void watch(const std::stop_token&);

  std::unique_ptr<Communicator> world_, own_;  // beside what the run exchanges
  const Seconds patience_;
  std::mutex mutex_, asking_;  // the second while the watch uses the world
  std::condition_variable_any changed_;
  std::chrono::steady_clock::time_point since_;  // none: it waits for nobody
  std::jthread watch_;                           // last: ends before the rest goes
};

}  // namespace sextant

// The ranks of a run that adapts where each is a process of its own: rank 0 decides, the others tell it what they saw of a
// step and hear of its decisions. Needs no connection beside the run's.
#pragma once

#include <memory>
#include <string>

#include "planner/adaptation/step_observer.hpp"
#include "runtime/communicators/communicator.hpp"

namespace sextant {

// Every call is collective over all processes.
class RankProcesses {
 public:
  explicit RankProcesses(std::unique_ptr<Communicator> world);

  Communicator& world() { return *world_; }  // in which the layouts follow each other
  bool decides() const { return world_->rank() == 0; }

  // What one process saw of a step becomes what all saw. Whether rank 0 `tells` something: then all hear() it next.
  bool share(StepView&, bool tells);
  // What rank 0 says; `text` of the others is not looked at.
  std::string hear(const std::string& text);

 private:
  std::unique_ptr<Communicator> world_, own_;  // beside what the run exchanges
};

}  // namespace sextant

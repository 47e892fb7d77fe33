// `sextant simulate --events`: a whole run on the virtual clock, with and without adapting.
#pragma once

#include <string>

#include "tools/inputs/planning.hpp"

namespace sextant {

struct EventsOptions {
  std::string file;
  int steps = 1000, save_every = 0;
  double restart_s = 0, noise = 1;  // noise: percent
};
void add_events_options(CLI::App&, EventsOptions&);

// The question has a plan, which the stack can run.
ExitCode simulate_events(Session&, const Planning&, const EventsOptions&);

}  // namespace sextant

// The options of a run that adapts, and of trials of it.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "tools/inputs/running.hpp"

namespace sextant {

struct AdaptOptions {
  bool adapt = false, emulate = false;
  double budget = 2;   // percent of the run's time that trying layouts at the start may cost
  std::string inject;  // a file of events
  bool asked() const { return adapt || emulate || !inject.empty(); }
};
void add_adapt_options(CLI::App&, AdaptOptions&);
// Throws UsageError or ConfigError where the options do not go together, or with how ranks run.
void settle(const AdaptOptions&, RunningOptions&);

}  // namespace sextant

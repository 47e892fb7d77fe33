// How is an exported job started? Scripts for torchrun, Slurm and mpirun that put rank r on GPU r % G of node r / G, as the plan
// counts its ranks, and the README that says what to do.
#pragma once

#include <string>
#include <vector>

#include "core/plan/plan_file.hpp"
#include "tools/export/export_target.hpp"

namespace sextant {

inline constexpr const char* kLaunchers = "torchrun|slurm|mpirun";

struct LaunchOptions {
  std::string launcher = "torchrun";
  std::string container;  // image; empty: none
};

// The nodes that the plan fills and the ranks on each: all GPUs of a node, what is left on the last.
struct NodeShare {
  int nodes = 1, gpus = 1, last = 1;
};
NodeShare node_share(const PlanFile&);

// environment.sh, launch.sh, trial.sh, and what the launcher needs beside them.
std::vector<ExportFile> launch_files(const PlanFile&, const ExportContent&, const LaunchOptions&);

// What a person types to start it, from the folder.
std::string launch_command(const PlanFile&, const LaunchOptions&);

// README.md, ten lines or a few more.
ExportFile export_readme(const PlanFile&, const ChosenTarget&, const ExportContent&, const LaunchOptions&);

}  // namespace sextant

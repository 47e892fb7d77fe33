// What the verbs over the runtime share: the options of how a plan is run, and a plan file turned into a graph, its
// predicted timeline and a training run.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "core/cluster/topology.hpp"
#include "core/plan/plan_file.hpp"
#include "cost_models/cost_model.hpp"
#include "runtime/training/training_run.hpp"
#include "tools/inputs/launch_environment.hpp"
#include "tools/inputs/profile_use.hpp"
#include "tools/inputs/verb.hpp"

namespace sextant {

struct RunningOptions {
  std::string plan;
  std::string comm = comm_of_launcher();
  std::string device = "cpu";
  std::string gemms = "fast";
  bool shaped = false;
  std::string cuda_graphs = "auto";  // kReplayNames
  int threads = 0;                   // 0: the cores of this machine shared among its ranks
  int seed = 1;
  bool processes() const { return comm != "local"; }  // one rank in each
};
void add_rank_options(CLI::App&, RunningOptions&);  // --device, --shaped, --threads
void add_comm_option(CLI::App&, RunningOptions&);   // --comm
void add_running_options(CLI::App&, RunningOptions&);
void add_profile_option(CLI::App&, std::string& file_or_name);  // --profile of what runs, or has run

// The GPU of this process, when it runs on one. Throws ConfigError with the reason when it cannot.
std::optional<CudaDeviceOptions> gpu_of(const RunningOptions&);

// On a GPU, once its kernels have run: what is slow here as its library would not serve it, why, and what follows.
struct SlowKernels {
  std::string key;  // in an answer
  std::string why;
};
std::vector<SlowKernels> slow_kernels(const RunningOptions&);

// A plan that is about to run, and what it is expected to take.
class Runnable {
 public:
  // Throws ConfigError when the file cannot be read or the plan cannot be run here.
  Runnable(const RunningOptions&, const std::string& profile, const std::filesystem::path& presets);
  // The same of a plan that is at hand; messages call it options.plan.
  Runnable(const RunningOptions&, PlanFile, const std::string& profile, const std::filesystem::path& presets);
  Runnable(const Runnable&) = delete;
  Runnable& operator=(const Runnable&) = delete;

  const PlanFile& file() const { return file_; }
  const ExecutionGraph& graph() const { return graph_; }
  const Timeline& predicted() const { return predicted_; }
  // Works that an operation needs, and how many of them the profile has.
  std::size_t works_needed() const { return works_needed_; }
  std::size_t works_measured() const { return works_measured_; }
  // With a profile: what of the predicted step rests on it.
  const std::optional<GivenProfile>& profile() const { return profile_; }
  const std::optional<CostShares>& predicted_from() const { return predicted_from_; }
  // Throws ConfigError when this machine, or the one that was planned for, has too little memory.
  void require_room() const;
  // What the planner says the buffers of the fullest stage take of a device.
  Bytes account() const { return account_; }
  // Why a search would not have given this plan, though what its ranks allocate is there: what lies outside of that does
  // not fit the stated cluster as well. Empty when it fits.
  const std::string& misfit() const { return misfit_; }

  // The run's fields that follow from plan and options; the caller adds steps and hooks. Throws ConfigError when this
  // machine has too little memory.
  TrainingRun training() const;
  bool on_gpu() const { return options_.device == "cuda"; }

 private:
  const KernelTable& kernels() const;

  RunningOptions options_;
  PlanFile file_;
  Topology topology_;
  std::optional<GivenProfile> profile_;
  std::optional<CostShares> predicted_from_;
  ExecutionGraph graph_;
  std::vector<OpCost> costs_;
  Timeline predicted_;
  std::size_t works_needed_ = 0, works_measured_ = 0;
  Bytes account_;
  std::string misfit_;
};

}  // namespace sextant

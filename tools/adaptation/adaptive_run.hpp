// `sextant run --adapt`: a run that watches its machine and changes its layout between two steps. Tries a few layouts in its
// first steps, keeps the best measured, then watches; state moves in memory, so that training goes on as if nothing had
// happened. With --emulate CPU ranks take as long as the plan's cluster would, and --inject makes that cluster sick.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json_fwd.hpp>

#include "planner/adaptation/adaptation_policy.hpp"
#include "planner/adaptation/start_trial.hpp"
#include "planner/adaptation/step_observer.hpp"
#include "runtime/training/training_run.hpp"
#include "tools/adaptation/layout_search.hpp"
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

class AdaptiveRun {
 public:
  struct Hooks {
    // The run under this layout with all that the caller wants of it; `first`: the one that begins the run.
    std::function<TrainingRun(const Runnable&, bool first)> prepare;
    std::function<void(const std::string&)> tell;             // a line for people
    std::function<void(const nlohmann::ordered_json&)> keep;  // a line of adaptation.jsonl
    std::function<const Checkpoint*()> newest = {};  // which the run goes back to; null: there is none
  };
  AdaptiveRun(const AdaptOptions&, const RunningOptions&, std::string profile, std::filesystem::path presets,
              std::int64_t steps, Hooks);

  // Trains to the end. `runnable`: the first layout, and afterwards the last.
  RunResult train(std::unique_ptr<Runnable>& runnable);
  ~AdaptiveRun();

 private:
  RunResult train_layout(const Runnable&, bool first);
  void attach(TrainingRun&, const Runnable&);
  void play_machine();  // the emulated one, as events say
  bool time_to_change();
  void look_at_trial();
  void look_for_lost();
  void end_trial();
  void begin_watch(const Layout&);
  void tell(const Decision&);
  void change_to(const Layout&);
  ClusterSpec believed() const;
  void keep_by_gpu(const std::vector<GpuPlace>& before);

  const AdaptOptions options_;
  const RunningOptions running_;
  const std::string profile_;
  const std::filesystem::path presets_;
  const std::int64_t steps_;
  const Hooks hooks_;

  ClusterSpec given_;
  ClusterEvents events_;
  PlanFile file_;  // of the first layout
  Layout layout_;
  std::vector<GpuPlace> gpus_;  // under its ranks, as when it began
  std::optional<LayoutSearch> search_;
  std::optional<StartTrial> trial_;
  std::optional<AdaptationPolicy> policy_;
  std::unique_ptr<EmulatedSpeeds> speeds_;
  std::unique_ptr<StepObserver> observer_;
  CarriedState carried_;
  std::int64_t next_step_ = 0;
  std::int64_t reached_ = 0;    // the machine does not go back to a checkpoint with the run
  std::optional<Layout> next_;  // the layout that the run changes to, once it is built beside training
  std::future<std::unique_ptr<Runnable>> building_;
  std::vector<GpuPlace> just_lost_;   // with what they held
  std::optional<Decision> decision_;  // that it follows; none: the trial goes on
  std::chrono::steady_clock::time_point paused_;
};

// "decision 1 behind step 47 (drift): ...".
std::string decision_text(const Decision&);
// A line of adaptation.jsonl.
nlohmann::ordered_json decision_json(const Decision&);

}  // namespace sextant

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
#include <set>
#include <string>
#include <vector>

#include "planner/adaptation/adaptation_policy.hpp"
#include "planner/adaptation/start_trial.hpp"
#include "planner/adaptation/step_observer.hpp"
#include "runtime/communicators/tcp_entrance.hpp"
#include "runtime/training/training_run.hpp"
#include "tools/adaptation/adapt_options.hpp"
#include "tools/adaptation/decision_log.hpp"
#include "tools/adaptation/layout_search.hpp"
#include "tools/adaptation/rank_processes.hpp"
#include "tools/inputs/run_checkpoints.hpp"
#include "tools/inputs/running.hpp"

namespace sextant {

class AdaptiveRun {
 public:
  struct Hooks {
    // The run under this layout with all that the caller wants of it; `first`: the one that begins the run.
    std::function<TrainingRun(const Runnable&, bool first)> prepare;
    std::function<void(const std::string&)> tell;   // a line for people
    DecisionLog& decisions;                         // adaptation.jsonl
    RunFolder& folder;                              // whose checkpoints the run goes back to
    std::function<void(const StepReport&)> report;  // a step that is done
    // Where ranks are processes: meets the others of the job, which is to outlive some of them or not.
    std::function<std::unique_ptr<Communicator>(const Runnable&, bool outlives_ranks)> meet = {};
    std::function<TcpWorld(const Runnable&)> job = {};  // as it was launched, where they meet over TCP
    Seconds deadline{60};                               // for a process that shows no sign of life
  };
  AdaptiveRun(const AdaptOptions&, const RunningOptions&, std::string profile, std::filesystem::path presets,
              std::int64_t steps, Hooks);

  // Trains to the end. `runnable`: the first layout, and afterwards the last. Processes that a launcher has started in
  // another number than the layout has ranks get a layout of their own.
  RunResult train(std::unique_ptr<Runnable>& runnable);
  ~AdaptiveRun();

 private:
  // Of processes only one decides, and says what the others do.
  bool decides() const { return !processes_ || processes_->decides(); }
  void meet(std::unique_ptr<Runnable>& runnable);
  PlanFile plan_for(int ranks) const;
  void make_places(const std::vector<GpuPlace>& started);
  void read_events();
  void take_next(std::unique_ptr<Runnable>& runnable);
  void exchange_views(std::int64_t step, int rank, const std::vector<Span>&);
  void step_done(std::int64_t step);
  void spread_next();

  // lost_processes.cpp: the processes that are left of a job whose step a lost one has ended.
  bool outlives_ranks() const;
  Recoverable carried_step() const;
  std::int64_t regroup(Recoverable own);  // the step behind which all go on
  void go_on_without_lost(std::unique_ptr<Runnable>& runnable, std::int64_t step);
  void spread_carried();
  std::string plan_without_lost(std::int64_t step);  // on the first; throws when there is none
  void find_state(std::int64_t step);
  std::string heard_of_first(const std::function<std::string()>& say);
  void end_where_killed() const;

  // joined_processes.cpp: processes that come while the run is under way.
  void open_entrance(const Runnable&);  // on the first
  void look_for_newcomers(const Runnable&);
  // All of them, for the next layout, which has more ranks. False: the run goes on without them.
  bool take_in(const Runnable& present, const PlanFile& next);
  std::string placement(int ranks);       // empty: they have gone meanwhile
  void welcome(const PlanFile& next);     // on those that were there, once all have met
  void join(std::unique_ptr<Runnable>&);  // the other side

  RunResult train_layout(const Runnable&, bool first);
  const Checkpoint& back_to_checkpoint(const std::string& missing);  // throws where there is none
  void attach(TrainingRun&, const Runnable&);
  void changed(const StateMove&);
  void begin_trial();
  void play_machine();  // the emulated one, as events say
  bool time_to_change(const Runnable&);
  void look_at_trial();
  void look_for_lost();
  void end_trial();
  void begin_watch(const Layout&);
  void tell(const Decision&);
  void change_to(const Layout&);
  void build(PlanFile);
  ClusterSpec believed() const;
  void keep_by_gpu(const std::vector<GpuPlace>& before);

  const AdaptOptions options_;
  const RunningOptions running_;
  const std::string profile_;
  const std::filesystem::path presets_;
  const std::int64_t steps_;
  const Hooks hooks_;

  ClusterSpec given_;  // with all GPUs to which a process may come
  ClusterEvents events_;
  PlanFile file_;  // of the first layout
  Layout layout_;
  std::vector<GpuPlace> gpus_;  // under its ranks, as when it began
  std::optional<LayoutSearch> search_;
  std::optional<StartTrial> trial_;
  std::optional<AdaptationPolicy> policy_;
  std::unique_ptr<EmulatedSpeeds> speeds_;
  std::unique_ptr<StepObserver> observer_;
  std::optional<RankProcesses> processes_;
  std::unique_ptr<TcpEntrance> entrance_;
  std::vector<GpuPlace> places_;  // by the rank as which a process comes
  std::set<GpuPlace> waiting_;    // of those that the policy knows of
  int generation_ = 0;            // how often processes have been let in
  std::chrono::steady_clock::time_point entrance_tried_;
  std::chrono::seconds entrance_waits_{1};  // before another try
  std::optional<std::int64_t> joined_at_;   // the step from which on this process is one of them
  CarriedState carried_;
  std::int64_t start_ = 0, next_step_ = 0;
  std::int64_t reached_ = 0;        // the machine does not go back to a checkpoint with the run
  std::optional<Layout> next_;      // the layout that the run changes to, once it is built beside training
  std::optional<PlanFile> untold_;  // its plan, until the other processes know of it
  std::future<std::unique_ptr<Runnable>> building_;
  std::vector<GpuPlace> just_lost_;         // with what they held
  std::set<GpuPlace> lost_;                 // of processes, before
  GpuPlace own_gpu_;                        // of this process
  const Checkpoint* saved_ = nullptr;       // to which the next layout goes back
  std::optional<StepReport> last_;          // of processes: the last step
  std::optional<std::int64_t> steps_lost_;  // for that, since it was told last
  std::optional<Decision> decision_;        // that it follows; none: the trial goes on
  std::chrono::steady_clock::time_point paused_;
};

}  // namespace sextant

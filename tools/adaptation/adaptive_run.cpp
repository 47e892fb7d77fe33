#include "tools/adaptation/adaptive_run.hpp"

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/file_io.hpp"
#include "core/plan/plan_links.hpp"
#include "planner/lowering/lower.hpp"
#include "planner/simulation/simulate.hpp"
#include "tools/adaptation/decision_text.hpp"

namespace sextant {
namespace {

using Json = nlohmann::ordered_json;
constexpr int kShortlist = 4;  // layouts that are tried at the start

double since(std::chrono::steady_clock::time_point then) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - then).count();
}

// What each op takes on the plan's GPUs when none of them, nor a link, is slow. `expected`: by work, on the cluster as it is.
std::vector<Seconds> sound_times(const Runnable& runnable, const std::vector<Seconds>& expected,
                                 const std::filesystem::path& presets) {
  const PlanFile& file = runnable.file();
  ClusterSpec sound = file.cluster;
  std::vector<Seconds> by_op;
  if (std::erase_if(sound.defects, [](const Defect& d) { return !d.missing; }) == 0) {
    for (const Op& op : runnable.graph().ops) by_op.push_back(expected[op.work]);
    return by_op;
  }
  const Topology topology(sound);
  const MachineCosts costs(sound, file.stack, {}, runnable.profile() ? &*runnable.profile() : nullptr,
                           presets);
  const ExecutionGraph graph = lower(file.model, file.training, plan_links(topology, file.plan), file.plan,
                                     file.stack, {.operands = false});
  const std::vector<OpCost> by_work = price(graph, costs.best());
  for (const Op& op : graph.ops) by_op.push_back(by_work[op.work].duration);
  return by_op;
}

}  // namespace

AdaptiveRun::AdaptiveRun(const AdaptOptions& options, const RunningOptions& running, std::string profile,
                         std::filesystem::path presets, std::int64_t steps, Hooks hooks)
    : options_(options),
      running_(running),
      profile_(std::move(profile)),
      presets_(std::move(presets)),
      steps_(steps),
      hooks_(std::move(hooks)) {}

ClusterSpec AdaptiveRun::believed() const {
  if (policy_) return policy_->belief().cluster();
  ClusterSpec cluster = given_;
  for (const GpuPlace& gpu : lost_) cluster.defects.push_back(missing(gpu));
  return cluster;
}

AdaptiveRun::~AdaptiveRun() {
  if (building_.valid()) building_.wait();
}

// Lowered and priced beside training; the run pauses when that is done.
void AdaptiveRun::change_to(const Layout& layout) {
  next_ = layout;
  PlanFile file = file_;
  file.plan = layout.plan;
  file.cluster = used_by(layout, believed());
  file.prediction = {};
  if (processes_) untold_ = file;
  build(std::move(file));
}

void AdaptiveRun::build(PlanFile file) {
  building_ = std::async(std::launch::async, [this, file = std::move(file)] {
    return std::make_unique<Runnable>(running_, file, profile_, presets_);
  });
}

// The best layout for so many GPUs of the cluster, those that are missing back again.
PlanFile AdaptiveRun::plan_for(int ranks) const {
  PlanFile file = file_;
  file.cluster = keep_fastest(with_none_missing(file.cluster), ranks);
  file.prediction = {};
  const std::atomic<bool> abandoned = false;
  const auto found = search_->plans(file.cluster, abandoned);
  if (found.empty())
    throw BackendError(
        fmt::format("{} ranks were started: no layout of {} is possible on as many", ranks, file.model.name));
  file.plan = found.front().layout.plan;
  return file;
}

void AdaptiveRun::meet(std::unique_ptr<Runnable>& runnable) {
  processes_.emplace(hooks_.meet(*runnable, outlives_ranks()), hooks_.deadline);
  if (processes_->world().joined()) return join(runnable);
  const int ranks = processes_->world().size();
  if (!options_.adapt || ranks == file_.plan.world()) return;
  if (ranks > with_none_missing(file_.cluster).gpus()) return;  // the run refuses them
  std::string text, why;
  if (decides()) {
    try {
      text = nlohmann::json(plan_for(ranks)).dump();
    } catch (const std::exception& e) {  // the others wait
      why = e.what();
    }
  }
  text = processes_->hear(text);
  if (text.empty())
    throw BackendError(decides() ? why : "rank 0 has found no layout; its message gives the reason");
  const int planned = file_.plan.world();
  file_ = nlohmann::json::parse(text).get<PlanFile>();
  runnable = std::make_unique<Runnable>(running_, file_, profile_, presets_);
  if (decides())
    hooks_.tell(fmt::format("{} ranks were started, and the plan has {}: training under {}", ranks, planned,
                            plan_key(file_.plan)));
}

// Where this job outlives ranks: a process may come to each GPU of the cluster.
void AdaptiveRun::make_places(const std::vector<GpuPlace>& started) {
  given_ = with_none_missing(given_);
  const auto is_started = [&](const GpuPlace& gpu) {
    return std::ranges::find(started, gpu) != started.end();
  };
  for (const GpuPlace& gpu : usable_gpus(given_)) {
    if (!is_started(gpu) && !joined_at_) lost_.insert(gpu);
    places_.push_back(gpu);
  }
  std::stable_partition(places_.begin(), places_.end(), is_started);
}

// Reads what is to happen to the machine. Throws ConfigError where these ranks cannot play it.
void AdaptiveRun::read_events() {
  if (!options_.inject.empty())
    events_ = ClusterEvents(read_text_file(options_.inject), options_.inject, file_.cluster);
  for (const ClusterEvent& e : events_.events())
    if (processes_ && (e.joins > 0 || (e.defect.missing && options_.adapt && !outlives_ranks())))
      throw ConfigError(Problem{options_.inject, e.text, e.joins > 0 ? "ranks that come" : "ranks that go",
                                outlives_ranks() ? "events that slow the machine, or kill"
                                                 : "events that slow the machine, with these processes",
                                e.joins > 0 && outlives_ranks()
                                    ? "start one more process, with --resume: it is taken in by itself"
                                    : "end a process, and start them again with --resume --adapt"});
    else if (!options_.adapt && (e.joins > 0 || e.defect.missing))
      throw ConfigError(Problem{options_.inject, e.text, "ranks that come and go",
                                "events that slow the machine", "add --adapt, or the run would end there"});
}

RunResult AdaptiveRun::train(std::unique_ptr<Runnable>& runnable) {
  file_ = runnable->file();
  search_.emplace(question_of(file_, profile_, presets_), file_.plan, presets_, 1,
                  running_.processes() ? LayoutSearch::Idle::none : LayoutSearch::Idle::some);
  if (running_.processes()) meet(runnable);
  given_ = file_.cluster;
  const std::vector<GpuPlace> started = usable_gpus(given_);
  if (outlives_ranks()) make_places(started);
  read_events();
  if (!joined_at_) {
    layout_ = layout_on(file_.plan, file_.cluster, file_.cluster);
    gpus_ = started;
  }
  if (processes_) own_gpu_ = gpus_.at(static_cast<std::size_t>(processes_->world().rank()));
  open_entrance(*runnable);
  std::int64_t done = 0;
  for (bool first = true;; first = false) {
    std::int64_t step = 0;
    try {
      RunResult result = train_layout(*runnable, first);
      done = result.steps += done;
      if (!result.changing && !result.lost) return result;
      if (result.changing) {
        take_next(runnable);
        continue;
      }
      step = next_step_;
      last_ = result.last;
    } catch (const RankLost&) {
      if (!outlives_ranks()) throw;
      step = regroup(carried_step());
    }
    go_on_without_lost(runnable, step);
  }
}

// The layout that the run has paused for, with those that come for it; they may be lost meanwhile.
void AdaptiveRun::take_next(std::unique_ptr<Runnable>& runnable) {
  if (untold_ || !next_) spread_next();  // decided behind the last step that processes shared
  auto next = building_.get();
  if (processes_ && next_->plan.world() > processes_->world().size() && !take_in(*runnable, next->file()))
    return go_on_without_lost(runnable, processes_->least(carried_step().last));
  layout_ = *std::exchange(next_, std::nullopt);
  if (!processes_) keep_by_gpu(std::exchange(gpus_, usable_gpus(used_by(layout_, believed()))));
  runnable = std::move(next);
}

// What all ranks saw of a step, on rank 0; and what it has decided, on the others.
void AdaptiveRun::exchange_views(std::int64_t step, int rank, const std::vector<Span>& spans) {
  StepView view = observer_->view(rank, spans);
  if (processes_->share(view, untold_.has_value())) spread_next();
  if (decides()) observer_->add(step, view, layout_.plan.world());
}

void AdaptiveRun::step_done(std::int64_t step) {
  next_step_ = step + 1;
  reached_ = std::max(reached_, next_step_);
  if (processes_ && options_.adapt) end_where_killed();
  if (options_.emulate) play_machine();
}

// Rank 0 builds the next layout already; the others begin to.
void AdaptiveRun::spread_next() {
  const std::string text = processes_->hear(untold_ ? nlohmann::json(*untold_).dump() : "");
  untold_.reset();
  if (decides()) return;
  auto file = nlohmann::json::parse(text).get<PlanFile>();
  next_ = Layout{file.plan, {}};
  build(std::move(file));
}

// A rank of the new layout keeps what the GPU under it held; what lay on GPUs that are idle now is asked of them.
void AdaptiveRun::keep_by_gpu(const std::vector<GpuPlace>& before) {
  std::map<GpuPlace, std::unique_ptr<HeldState>> by_gpu;
  for (std::size_t rank = 0; rank < carried_.ranks.size(); ++rank)
    by_gpu[before[rank]] = std::move(carried_.ranks[rank]);
  for (const GpuPlace& gpu : std::exchange(just_lost_, {})) by_gpu.erase(gpu);
  carried_.ranks.clear();
  for (int rank = 0; rank < layout_.plan.world(); ++rank) {
    const auto held = by_gpu.extract(gpus_[static_cast<std::size_t>(rank)]);
    carried_.ranks.push_back(held ? std::move(held.mapped()) : nullptr);
  }
  for (auto& [gpu, held] : by_gpu) carried_.ranks.push_back(std::move(held));
}

RunResult AdaptiveRun::train_layout(const Runnable& runnable, bool first) {
  TrainingRun run = hooks_.prepare(runnable, first);
  if (first && joined_at_) run.resume = nullptr;  // the others have its state
  if (first && run.resume) start_ = next_step_ = reached_ = run.resume->manifest().clock.step;
  attach(run, runnable);
  if (processes_) run.world = &processes_->world();
  if (saved_) run.resume = std::exchange(saved_, nullptr);
  const auto missing =
      carried_.present() && !processes_ ? missing_state(carried_, runnable.file().model) : std::nullopt;
  if (!missing) return sextant::train(run);
  run.resume = &back_to_checkpoint(*missing);
  const std::int64_t saved = run.resume->manifest().clock.step;
  carried_.ranks.clear();
  steps_lost_ = next_step_ - saved;
  next_step_ = saved;
  return sextant::train(run);
}

const Checkpoint& AdaptiveRun::back_to_checkpoint(const std::string& missing) {
  const Checkpoint* const saved = hooks_.folder.go_back();
  if (!saved)
    throw BackendError(fmt::format(
        "{} went with the lost ranks: no other has a copy, and there is no checkpoint\n  a layout with "
        "replicas (ZeRO 0, or shards over fewer ranks) or -o with --save-every keeps one",
        missing));
  hooks_.tell(fmt::format("{} went with the lost ranks: going back to the checkpoint of step {}", missing,
                          saved->manifest().clock.step));
  return *saved;
}

void AdaptiveRun::attach(TrainingRun& run, const Runnable& runnable) {
  const PlanFile& file = runnable.file();
  const Topology topology(file.cluster);
  if (options_.emulate) {
    speeds_ = std::make_unique<EmulatedSpeeds>(static_cast<std::size_t>(file.plan.world()));
    run.emulated = speeds_.get();
    run.shape->node_of.clear();
    for (int rank = 0; rank < file.plan.world(); ++rank) run.shape->node_of.push_back(topology.node_of(rank));
    play_machine();
  }
  run.carried = &carried_;
  if (outlives_ranks()) run.regroup = [this](const Recoverable& own) { return next_step_ = regroup(own); };
  run.begin = [this, begin = run.begin](const StateMove& moved) {
    if (begin) begin(moved);
    if (paused_ != decltype(paused_){}) changed(moved);  // otherwise the first layout
  };
  run.on_step = [this, on_step = run.on_step](const StepReport& report) {
    if (on_step) on_step(report);
    if (trial_ && !next_) trial_->took(report.duration);
    if (observer_) observer_->step_took(report.step, report.duration);
    step_done(report.step);
  };
  observer_.reset();
  run.on_spans = [this](int rank, std::int64_t step, const std::vector<Span>& spans) {
    if (observer_ && processes_) exchange_views(step, rank, spans);
    if (observer_ && !processes_) observer_->add(step, observer_->view(rank, spans), 1);
    if (!decides()) step_done(step);  // on_step is rank 0's
  };
  if (!options_.adapt) return;
  observer_ = std::make_unique<StepObserver>(runnable.graph(), sound_times(runnable, run.expected, presets_),
                                             topology, given_.nodes);
  if (!decides()) return;
  run.time_to_change = [this, &runnable] { return time_to_change(runnable); };
  if (policy_ || trial_) return;
  if (options_.budget > 0 && next_step_ < steps_) begin_trial();
  if (!trial_) begin_watch(layout_);
}

// The run goes on under the layout that it has changed to.
void AdaptiveRun::changed(const StateMove& moved) {
  const Seconds stood_still(since(paused_));
  if (trial_) trial_->paused(stood_still);
  if (decision_) {
    policy_->changed(stood_still);
    Json line = {{"changed", decision_->number},
                 {"stood_still_s", stood_still.v},
                 {"moved_GB", 1e-9 * static_cast<double>(moved.bytes)},
                 {"moved_to_one_rank_GB", 1e-9 * static_cast<double>(moved.most_bytes)},
                 {"moving_s", moved.took.v}};
    if (steps_lost_) line["steps_lost"] = *std::exchange(steps_lost_, std::nullopt);
    hooks_.decisions.add(line);
    hooks_.tell(fmt::format("went on after {:.3g} s{}", stood_still.v, moved_text(line)));
  }
  decision_.reset();
}

// No trial is left where every other layout would cost too much.
void AdaptiveRun::begin_trial() {
  const std::int64_t left = steps_ - next_step_;
  const ClusterSpec cluster = believed();
  trial_.emplace(search_->kinds(layout_, cluster, kShortlist), left,
                 TrialBudget{.share = options_.budget / 100, .pause = search_->move(layout_, cluster)});
  if (trial_->next()) return;
  if (trial_->left_out() > 0)
    hooks_.tell(
        fmt::format("no other layout is tried at the start: that would cost more than {:g} % of {} steps",
                    options_.budget, left));
  trial_.reset();
}

void AdaptiveRun::play_machine() {
  const auto defective = defective_nodes(events_.at(given_, reached_));
  for (std::size_t rank = 0; rank < speeds_->compute.size(); ++rank) {
    const GpuState state = state_of(defective, gpus_[rank]);
    speeds_->compute[rank] = state.compute;
    speeds_->node_link[rank] = state.node_link;
    speeds_->network[rank] = state.network;
  }
}

}  // namespace sextant

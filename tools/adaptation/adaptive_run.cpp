#include "tools/adaptation/adaptive_run.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/file_io.hpp"
#include "core/plan/plan_links.hpp"
#include "planner/lowering/lower.hpp"
#include "planner/simulation/simulate.hpp"
#include "tools/inputs/options.hpp"

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

Json layout_json(const Layout& layout) {
  Json j = {{"plan", plan_key(layout.plan)}};
  for (const GpuPlace& gpu : layout.idle) j["idle"].push_back({{"node", gpu.node}, {"gpu", gpu.gpu}});
  return j;
}

std::string layout_text(const Layout& layout) {
  return layout.idle.empty() ? plan_key(layout.plan)
                             : fmt::format("{} ({} GPU{} idle)", plan_key(layout.plan), layout.idle.size(),
                                           layout.idle.size() == 1 ? "" : "s");
}

}  // namespace

void add_adapt_options(CLI::App& app, AdaptOptions& o) {
  add_flag(app,
           {.flag = "--adapt",
            .metavar = "",
            .text = "try a few layouts in the first steps and keep the best measured; then watch every step, "
                    "and change "
                    "the layout when the machine has changed and a change pays (adaptation.jsonl says why)"},
           o.adapt);
  add_number(app,
             {.flag = "--adapt-budget",
              .metavar = "X",
              .text = "of the run's time that the layouts tried at the start may cost; 0 = none are tried",
              .unit = "%",
              .min = 0,
              .max = 100},
             o.budget);
  app.get_option("--adapt-budget")->needs(app.get_option("--adapt"));
  add_flag(
      app,
      {.flag = "--emulate",
       .metavar = "",
       .text = "CPU ranks compute and exchange as slowly as the cluster of the plan: a trial of that cluster "
               "with real steps"},
      o.emulate);
  add_text(app,
           {.flag = "--inject",
            .metavar = "FILE",
            .text = "with --emulate: what happens to the cluster, a line such as 'step 40 rank 3 compute x2 "
                    "until 120', "
                    "'step 60 node 1 network x0.25', 'step 90 kill rank 5' or 'step 150 join 1'"},
           o.inject);
}

void settle(const AdaptOptions& o, RunningOptions& running) {
  if (!o.asked()) return;
  if (!o.inject.empty() && !o.emulate)
    throw UsageError("--inject acts on an emulated cluster: add --emulate");
  if (running.processes())
    throw ConfigError(Problem{"--comm", "", running.comm, "local with --adapt or --emulate",
                              "the layout of ranks that are processes cannot change yet"});
  if (running.device != "cpu")
    throw ConfigError(Problem{"--device", "", running.device, "cpu with --adapt or --emulate",
                              "a change of layout has not been tried on GPUs yet"});
  if (o.emulate) running.shaped = true;
}

std::string decision_text(const Decision& d) {
  const std::string what =
      d.changes() ? fmt::format("{} in place of {}: ", layout_text(d.to), layout_text(d.from)) : "";
  return fmt::format("decision {} behind step {} ({}): {}{}", d.number, d.step, d.trigger, what, d.why);
}

Json decision_json(const Decision& d) {
  Json j = {{"decision", d.number},   {"kind", name(d.kind)},       {"trigger", d.trigger},
            {"step", d.step},         {"onset", d.onset},           {"seen", d.seen},
            {"evidence", d.evidence}, {"from", layout_json(d.from)}};
  if (d.changes()) j["to"] = layout_json(d.to);
  j["now_step_time_s"] = d.now.v;
  j["then_step_time_s"] = d.then.v;
  j["move_s"] = d.move.v;
  j["doubt"] = d.doubt;
  j["steps_left"] = d.steps_left;
  j["gain_s"] = d.gain().v;
  j["why"] = d.why;
  j["alternatives"] = Json::array();
  for (const Forecast& f : d.alternatives) {
    Json a = layout_json(f.layout);
    a["predicted_step_time_s"] = f.step.v;
    j["alternatives"].push_back(a);
  }
  return j;
}

AdaptiveRun::AdaptiveRun(const AdaptOptions& options, const RunningOptions& running, std::string profile,
                         std::filesystem::path presets, std::int64_t steps, Hooks hooks)
    : options_(options),
      running_(running),
      profile_(std::move(profile)),
      presets_(std::move(presets)),
      steps_(steps),
      hooks_(std::move(hooks)) {}

ClusterSpec AdaptiveRun::believed() const { return policy_ ? policy_->belief().cluster() : given_; }

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
  building_ = std::async(std::launch::async, [this, file = std::move(file)] {
    return std::make_unique<Runnable>(running_, file, profile_, presets_);
  });
}

RunResult AdaptiveRun::train(std::unique_ptr<Runnable>& runnable) {
  file_ = runnable->file();
  given_ = file_.cluster;
  if (!options_.inject.empty())
    events_ = ClusterEvents(read_text_file(options_.inject), options_.inject, given_);
  for (const ClusterEvent& e : events_.events())
    if (!options_.adapt && (e.joins > 0 || e.defect.missing))
      throw ConfigError(Problem{options_.inject, e.text, "ranks that come and go",
                                "events that slow the machine", "add --adapt, or the run would end there"});
  layout_ = layout_on(file_.plan, given_, given_);
  gpus_ = usable_gpus(given_);
  search_.emplace(question_of(file_, profile_, presets_), file_.plan, presets_, 1);
  std::int64_t done = 0, moved = 0;
  for (bool first = true;; first = false) {
    RunResult result = train_layout(*runnable, first);
    result.steps += done, result.moved_bytes += moved;
    done = result.steps, moved = result.moved_bytes;
    if (!result.changing) return result;
    layout_ = *std::exchange(next_, std::nullopt);
    keep_by_gpu(std::exchange(gpus_, usable_gpus(used_by(layout_, believed()))));
    runnable = building_.get();
  }
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
  if (first && run.resume) next_step_ = reached_ = run.resume->manifest().clock.step;
  attach(run, runnable);
  const auto missing = carried_.present() ? missing_state(carried_, runnable.file().model) : std::nullopt;
  if (!missing) return sextant::train(run);
  const Checkpoint* const saved = hooks_.newest ? hooks_.newest() : nullptr;
  if (!saved)
    throw BackendError(fmt::format(
        "{} went with the lost ranks: no other has a copy, and there is no checkpoint\n  a layout with "
        "replicas (ZeRO 0, or shards over fewer ranks) or -o with --save-every keeps one",
        *missing));
  hooks_.tell(fmt::format("{} went with the lost ranks: going back to the checkpoint of step {}", *missing,
                          saved->manifest().clock.step));
  carried_.ranks.clear();
  next_step_ = saved->manifest().clock.step;
  run.resume = saved;
  return sextant::train(run);
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
  run.begin = [this, begin = run.begin] {
    if (begin) begin();
    if (paused_ == decltype(paused_){}) return;  // the first layout
    const Seconds stood_still(since(paused_));
    if (trial_) trial_->paused(stood_still);
    if (decision_) {
      policy_->changed(stood_still);
      hooks_.keep({{"changed", decision_->number}, {"stood_still_s", stood_still.v}});
      hooks_.tell(fmt::format("went on after {:.3g} s", stood_still.v));
    }
    decision_.reset();
  };
  run.on_step = [this, on_step = run.on_step](const StepReport& report) {
    if (on_step) on_step(report);
    next_step_ = report.step + 1;
    reached_ = std::max(reached_, next_step_);
    if (trial_ && !next_) trial_->took(report.duration);
    if (observer_) observer_->step_took(report.step, report.duration);
    if (options_.emulate) play_machine();
  };
  observer_.reset();
  if (!options_.adapt) return;
  observer_ = std::make_unique<StepObserver>(runnable.graph(), sound_times(runnable, run.expected, presets_),
                                             topology, given_.nodes);
  run.on_spans = [this](int rank, std::int64_t step, const std::vector<Span>& spans) {
    observer_->record(rank, step, spans);
  };
  run.time_to_change = [this] { return time_to_change(); };
  if (policy_ || trial_) return;
  if (options_.budget > 0 && next_step_ < steps_) {
    const std::int64_t left = steps_ - next_step_;
    trial_.emplace(search_->kinds(layout_, given_, kShortlist), left,
                   TrialBudget{.share = options_.budget / 100, .pause = search_->move(layout_, given_)});
    if (!trial_->next()) {
      if (trial_->left_out() > 0)
        hooks_.tell(
            fmt::format("no other layout is tried at the start: that would cost more than {:g} % of {} steps",
                        options_.budget, left));
      trial_.reset();
    }
  }
  if (!trial_) begin_watch(layout_);
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

void AdaptiveRun::begin_watch(const Layout& layout) {
  AdaptationOptions options;
  policy_.emplace(given_, layout, search_->tools(), options);
}

bool AdaptiveRun::time_to_change() {
  using namespace std::chrono_literals;
  if (trial_ && !events_.lost(reached_).empty()) end_trial();
  if (!next_ && trial_) look_at_trial();
  if (!trial_) look_for_lost();
  while (const auto seen = observer_->take()) {
    if (next_ || !policy_) continue;  // of a layout that is about to go
    const bool searching = policy_->searching();
    const auto decision = policy_->observe(*seen, steps_ - next_step_);
    if (!searching && policy_->searching())
      for (const std::string& line : policy_->evidence())
        hooks_.tell(fmt::format("step {}: {}; looking for a better layout", seen->step, line));
    if (decision) tell(*decision);
  }
  // Nobody waits for a layout, unless ranks are lost that this one needs.
  if (!next_ || (just_lost_.empty() && building_.wait_for(0s) != std::future_status::ready)) return false;
  paused_ = std::chrono::steady_clock::now();
  return true;
}

void AdaptiveRun::look_for_lost() {
  const std::set<GpuPlace>& known = policy_->belief().lost();
  const auto [gone, back] = events_.change({known.begin(), known.end()}, reached_);
  if (!back.empty()) policy_->find(back, next_step_ - 1);
  if (gone.empty()) return;
  const Decision decision = policy_->lose(gone, next_step_ - 1, steps_ - next_step_);
  if (decision.changes()) just_lost_ = gone;
  tell(decision);
  if (decision.kind == DecisionKind::no_layout) throw BackendError(decision.why);
}

void AdaptiveRun::tell(const Decision& d) {
  hooks_.keep(decision_json(d));
  hooks_.tell(decision_text(d));
  if (!d.changes()) return;
  decision_ = d;
  if (building_.valid()) building_.wait();
  change_to(d.to);
}

void AdaptiveRun::look_at_trial() {
  if (!trial_->present_done()) return;
  if (const auto next = trial_->next()) {
    trial_->go_on();
    change_to(*next);
  } else {
    end_trial();
  }
}

// The best measured layout is kept; what was measured corrects what is predicted.
void AdaptiveRun::end_trial() {
  const std::vector<StartTrial::Result> results = trial_->results();
  if (results.empty()) {
    trial_.reset();
    return begin_watch(layout_);
  }
  Json line = {{"decision", 0},
               {"kind", "start"},
               {"trigger", "start"},
               {"step", next_step_ - 1},
               {"alternatives", Json::array()}};
  for (const auto& r : results) {
    Json a = layout_json(r.layout.layout);
    a["predicted_step_time_s"] = r.layout.step.v, a["measured_step_time_s"] = r.measured.v;
    line["alternatives"].push_back(a);
  }
  const Layout best = results.front().layout.layout;
  line["to"] = layout_json(best);
  const double gain = 1 - results.front().measured / results.back().measured;
  line["why"] = fmt::format("measured fastest of {} layouts, {:.1f} % less than the slowest", results.size(),
                            100 * gain);
  line["spent_s"] = trial_->spent().v, line["budget_s"] = trial_->budget().v;
  hooks_.keep(line);
  hooks_.tell(
      fmt::format("tried {} layouts in {} steps: {} is kept, {:.4g} s a step ({:.4g} s predicted), {:.1f} % "
                  "less than the slowest",
                  results.size(), next_step_, layout_text(best), results.front().measured.v,
                  results.front().layout.step.v, 100 * gain));
  trial_.reset();
  begin_watch(best);
  for (const auto& r : results) policy_->measured(r.layout.layout, r.measured);
  if (best != layout_) change_to(best);
}

}  // namespace sextant

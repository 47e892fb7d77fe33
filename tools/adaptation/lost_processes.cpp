// Of processes one is lost: the step ends, and those that are left go on (adaptive_run.hpp). They have agreed on who they are
// and on the step behind which all of them have their state; the first decides on a layout for as many, and each takes what it
// lacks from the others, or all go back to the newest checkpoint.
#include <algorithm>
#include <csignal>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "tools/adaptation/adaptive_run.hpp"

namespace sextant {

bool AdaptiveRun::outlives_ranks() const {
  return options_.adapt && running_.comm == "env" && running_.device == "cpu";
}

Recoverable AdaptiveRun::carried_step() const {
  for (const auto& held : carried_.ranks)
    if (held) return {held->clock().step, held->clock().step};
  return {};
}

// Another may be lost meanwhile; what this process has stays what it is.
std::int64_t AdaptiveRun::regroup(Recoverable own) {
  if (paused_ == decltype(paused_){}) paused_ = std::chrono::steady_clock::now();
  while (true) try {
      std::vector<GpuPlace> left;
      for (const int rank : processes_->regroup()) left.push_back(gpus_.at(static_cast<std::size_t>(rank)));
      for (const GpuPlace& gpu : gpus_)
        if (std::ranges::find(left, gpu) == left.end()) just_lost_.push_back(gpu);
      gpus_ = std::move(left);
      return processes_->least(own.last);
    } catch (const RankLost&) {
    }
}

void AdaptiveRun::go_on_without_lost(std::unique_ptr<Runnable>& runnable, std::int64_t step) {
  std::unique_ptr<Runnable> next;  // the last step is told as one of the layout before
  while (true) try {
      if (building_.valid()) building_.wait();
      building_ = {};
      next_.reset();
      untold_.reset();
      trial_.reset();
      spread_carried();
      if (processes_->least(reached_ > start_ ? -1 : 0) == 0)
        throw BackendError("a rank was lost before the first step was done: start the run again");
      if (step > steps_) step = next_step_;  // nobody has any of the state
      const std::string text = heard_of_first([&] { return plan_without_lost(step); });
      if (decides()) {
        layout_ = *std::exchange(next_, std::nullopt);
        next = building_.get();
      } else {
        auto file = nlohmann::json::parse(text).get<PlanFile>();
        layout_ = Layout{file.plan, {}};
        next = std::make_unique<Runnable>(running_, std::move(file), profile_, presets_);
      }
      find_state(step);
      runnable = std::move(next);
      open_entrance(*runnable);
      lost_.insert(just_lost_.begin(), just_lost_.end());
      just_lost_.clear();
      return;
    } catch (const RankLost&) {
      step = regroup(carried_step());
    }
}

// What the first says, or cannot, in which case the run ends on all.
std::string AdaptiveRun::heard_of_first(const std::function<std::string()>& say) {
  std::string text, why;
  if (decides()) {
    try {
      text = say();
    } catch (const RankLost&) {
      throw;
    } catch (const std::exception& e) {  // the others wait
      why = e.what();
    }
  }
  text = processes_->hear(text);
  if (text.empty())
    throw BackendError(decides() ? why
                                 : "a rank was lost, and the first of those that are left cannot continue; "
                                   "its message gives the reason");
  return text;
}

// By rank of those that are left, what this process holds at its own.
void AdaptiveRun::spread_carried() {
  const auto ranks = static_cast<std::size_t>(processes_->world().size());
  auto place = static_cast<std::size_t>(processes_->world().rank());
  std::vector<std::unique_ptr<HeldState>> held(ranks);
  for (auto& one : carried_.ranks) {
    if (!one) continue;
    if (held.size() <= place) held.resize(place + 1);
    held[place] = std::move(one);
    place += ranks;
  }
  carried_.ranks = std::move(held);
}

std::string AdaptiveRun::plan_without_lost(std::int64_t step) {
  // What it has decided is off, and those who wait count among the lost until they are looked for again.
  if (decision_ || !waiting_.empty()) policy_.reset();
  decision_.reset();
  waiting_.clear();
  if (!policy_) begin_watch(layout_);  // or another process has led, or the run was trying layouts
  const Decision decision = policy_->lose(just_lost_, step - 1, steps_ - step);
  if (decision.kind == DecisionKind::no_layout)
    throw BackendError(decision.why +
                       "\n  --resume --adapt resumes from the newest checkpoint with another number");
  tell(decision);
  if (!next_) throw BackendError("no layout for the ranks that are left: " + decision.why);
  return nlohmann::json(*std::exchange(untold_, std::nullopt)).dump();
}

// Behind the first exchange here nobody writes into the folder any more: all have left the step before.
void AdaptiveRun::find_state(std::int64_t step) {
  Communicator& world = processes_->world();
  const auto held = held_by(carried_, world.rank(), world.size());
  const auto missing = missing_state(held, world, file_.model);
  steps_lost_ = 0;
  next_step_ = step;
  saved_ = nullptr;
  const std::string from = heard_of_first([&]() -> std::string {
    const bool reported = hooks_.folder.lead(step) != step - 1;
    if (!reported && last_ && last_->step == step - 1) hooks_.report(*last_);
    if (!missing) return "memory";
    saved_ = &back_to_checkpoint(*missing);
    return std::to_string(saved_->manifest().clock.step);
  });
  if (!missing) return;
  if (!decides()) saved_ = hooks_.folder.read(std::stoll(from));
  carried_.ranks.clear();
  next_step_ = saved_->manifest().clock.step;
  steps_lost_ = std::max<std::int64_t>(0, step - next_step_);
}

// `--inject`: the process of a killed GPU really goes, without a word.
void AdaptiveRun::end_where_killed() const {
  const auto lost = events_.lost(reached_), before = events_.lost(joined_at_.value_or(-1));
  if (outlives_ranks() && std::ranges::find(before, own_gpu_) == before.end() &&
      std::ranges::find(lost, own_gpu_) != lost.end())
    ::kill(::getpid(), SIGKILL);
}

}  // namespace sextant

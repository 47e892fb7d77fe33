// What a run that adapts decides between two steps (adaptive_run.hpp), and what it says of that.
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.hpp"
#include "tools/adaptation/adaptive_run.hpp"
#include "tools/adaptation/decision_text.hpp"

namespace sextant {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

void AdaptiveRun::begin_watch(const Layout& layout) {
  AdaptationOptions options;
  if (processes_) {
    options.decided = hooks_.decisions.last();
    options.lost.assign(lost_.begin(), lost_.end());
    options.leaves_idle = false;
  }
  policy_.emplace(given_, layout, search_->tools(), options);
}

bool AdaptiveRun::time_to_change(const Runnable& present) {
  using namespace std::chrono_literals;
  if (!processes_ && trial_ && !events_.lost(reached_).empty()) end_trial();
  if (!next_ && trial_) look_at_trial();
  if (!processes_ && !trial_) look_for_lost();
  if (outlives_ranks()) look_for_newcomers(present);
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
  if (decision.changes()) {
    just_lost_ = gone;
    steps_lost_ = 0;
  }
  tell(decision);
  if (decision.kind == DecisionKind::no_layout) throw BackendError(decision.why);
}

void AdaptiveRun::tell(const Decision& d) {
  hooks_.decisions.add(decision_json(d));
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
    a["predicted_step_time_s"] = r.layout.step.v;
    a["measured_step_time_s"] = r.measured.v;
    line["alternatives"].push_back(a);
  }
  const Layout best = results.front().layout.layout;
  line["to"] = layout_json(best);
  const Seconds measured = results.front().measured, predicted = results.front().layout.step;
  const double gain = 1 - measured / results.back().measured;
  const std::string others = results.size() == 1 ? "no other was tried"
                                                 : fmt::format("{:.1f} % less than the slowest of {} layouts",
                                                               100 * gain, results.size());
  line["why"] = fmt::format("measured fastest: {}", others);
  line["spent_s"] = trial_->spent().v;
  line["budget_s"] = trial_->budget().v;
  hooks_.decisions.add(line);
  hooks_.tell(fmt::format("after {} steps {} is kept: {:.4g} s a step ({:.4g} s predicted), {}",
                          trial_->steps(), layout_text(best), measured.v, predicted.v, others));
  trial_.reset();
  begin_watch(best);
  for (const auto& r : results) policy_->measured(r.layout.layout, r.measured);
  if (best != layout_) change_to(best);
}

}  // namespace sextant

#include "planner/adaptation/adaptation_policy.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/error.hpp"
#include "core/base/median.hpp"
#include "planner/search/search.hpp"

namespace sextant {
namespace {

constexpr std::array<std::string_view, 6> kDecisionNames = {"stay",    "change", "keep",
                                                            "go_back", "lost",   "no_layout"};
constexpr std::size_t kRecent = 64;  // steps that are remembered
constexpr double kToldApart = 0.01;  // of a step: predictions that are closer say nothing
constexpr double kHalf = 0.5;        // of a predicted gain that a change has to hold

// "node 3", or "node 0, GPU 5".
std::vector<std::string> places_text(const std::vector<GpuPlace>& gpus, int gpus_per_node, const char* what) {
  std::map<int, std::vector<int>> by_node;
  for (const GpuPlace& gpu : gpus) by_node[gpu.node].push_back(gpu.gpu);
  std::vector<std::string> lines;
  for (const auto& [node, some] : by_node)
    lines.push_back(static_cast<int>(some.size()) == gpus_per_node
                        ? fmt::format("node {} {}", node, what)
                        : fmt::format("node {}, GPU {} {}", node, fmt::join(some, ", "), what));
  return lines;
}

}  // namespace

std::string_view name(DecisionKind kind) { return kDecisionNames[static_cast<std::size_t>(kind)]; }

ClusterSpec used_by(const Layout& layout, ClusterSpec cluster) {
  for (const GpuPlace& gpu : layout.idle) cluster.defects.push_back(missing(gpu));
  return cluster;
}

AdaptationPolicy::AdaptationPolicy(ClusterSpec given, Layout layout, AdaptationTools tools,
                                   AdaptationOptions options)
    : belief_(std::move(given)),
      layout_(std::move(layout)),
      tools_(std::move(tools)),
      options_(std::move(options)),
      decisions_(options_.decided) {
  for (const GpuPlace& gpu : options_.lost) belief_.lose(gpu);
  watch();
}

AdaptationPolicy::~AdaptationPolicy() { abandon_search(); }

// The machine is another by now, or the run ends.
void AdaptationPolicy::abandon_search() {
  if (!search_.valid()) return;
  abandoned_ = true;
  if (!options_.waits) search_.wait();  // one that waits has not begun
  search_ = {};
  abandoned_ = false;
}

void AdaptationPolicy::watch() {
  recent_.clear();
  watch_.emplace(belief_.expected(layout_.plan, used_by(layout_, belief_.cluster())), options_.drift);
}

std::optional<Seconds> AdaptationPolicy::typical(std::int64_t from, std::int64_t to) const {
  std::vector<double> steps;
  for (const auto& [step, took] : recent_)
    if (step >= from && step <= to) steps.push_back(took.v);
  return steps.empty() ? std::nullopt : std::optional(Seconds(median(std::move(steps))));
}

double AdaptationPolicy::correction(const Layout& layout) const {
  const auto of = [&](const Layout& l) { return std::ranges::find(tried_, l, &Tried::layout); };
  if (const auto own = of(layout); own != tried_.end()) return own->correction;
  const auto present = of(layout_);
  return present == tried_.end() ? 1 : present->correction;
}

bool AdaptationPolicy::tried(const Layout& layout) const {
  return std::ranges::find(tried_, layout, &Tried::layout) != tried_.end();
}

void AdaptationPolicy::correct(std::vector<Forecast>& forecasts) const {
  for (Forecast& f : forecasts) {
    f.step = f.step * correction(f.layout);
    f.tried = tried(f.layout);
  }
  // What was tried is no worse for not being the best on paper, as long as its GPUs are there.
  const ClusterSpec cluster = belief_.cluster();
  for (const Tried& t : tried_) {
    const bool known = std::ranges::find(forecasts, t.layout, &Forecast::layout) != forecasts.end();
    const ClusterSpec used = used_by(t.layout, cluster);
    if (!known && used.gpus() >= t.layout.plan.world() && possible(t.layout))
      forecasts.push_back({t.layout, tools_.step(t.layout, cluster) * t.correction, true});
  }
  const auto pessimistic = [&](const Forecast& f) { return f.step.v * (1 + uncertainty(f)); };
  std::ranges::stable_sort(forecasts, {}, pessimistic);
  // Of those that predictions cannot tell apart the simplest: with fewer kinds of parallelism less can be wrong.
  const auto told_apart = std::ranges::find_if(forecasts, [&](const Forecast& f) {
    return pessimistic(f) > pessimistic(forecasts.front()) * (1 + kToldApart);
  });
  const auto simplest =
      std::min_element(forecasts.begin(), told_apart, [](const Forecast& a, const Forecast& b) {
        return effort_of(a.layout.plan) < effort_of(b.layout.plan);
      });
  if (simplest != forecasts.end()) std::rotate(forecasts.begin(), simplest, std::next(simplest));
}

Decision AdaptationPolicy::begun(DecisionKind kind, std::int64_t step, std::int64_t steps_left) {
  Decision d;
  d.kind = kind;
  d.number = ++decisions_;
  d.step = step;
  d.steps_left = steps_left;
  d.from = layout_;
  return d;
}

void AdaptationPolicy::begin_search(std::string trigger, std::vector<std::string> evidence,
                                    std::int64_t onset, std::int64_t seen) {
  pending_.trigger = std::move(trigger);
  pending_.evidence = std::move(evidence);
  pending_.onset = onset;
  pending_.seen = seen;
  search_ = std::async(options_.waits ? std::launch::deferred : std::launch::async,
                       [this, cluster = belief_.cluster()] { return tools_.plans(cluster, abandoned_); });
}

std::optional<Decision> AdaptationPolicy::observe(const StepObservation& step, std::int64_t steps_left) {
  recent_.emplace_back(step.step, step.duration);
  if (recent_.size() > kRecent) recent_.pop_front();
  if (recent_.size() == static_cast<std::size_t>(options_.drift.warm_up) && !tried(layout_))
    measured(layout_, *typical(recent_.front().first, step.step));
  if (search_.valid()) {
    using namespace std::chrono_literals;
    if (!options_.waits && search_.wait_for(0s) != std::future_status::ready) return std::nullopt;
    return decide(step.step, steps_left);
  }
  if (auto drift = watch_->observe(step)) {
    const ClusterSpec used = used_by(layout_, belief_.cluster());
    std::vector<std::string> evidence = MachineBelief::lines(*drift, used);
    belief_.take(*drift, used);
    trial_.reset();  // what it was to show is of another machine
    begin_search("drift", std::move(evidence), drift->onset, drift->seen);
    if (options_.waits) return decide(step.step, steps_left);
    return std::nullopt;
  }
  return verify(step.step, steps_left);
}

Decision AdaptationPolicy::decide(std::int64_t step, std::int64_t steps_left) {
  Decision d = begun(DecisionKind::stay, step, steps_left);
  d.trigger = pending_.trigger;
  d.evidence = pending_.evidence;
  d.onset = pending_.onset;
  d.seen = pending_.seen;
  d.alternatives = search_.get();
  const ClusterSpec cluster = belief_.cluster();
  // Not the steps beside the search, which may slow them down.
  // They say what predictions are off by now; the first steps of a run, on a machine that had other work, may have said otherwise.
  if (const auto step_now = typical(pending_.onset, pending_.seen)) measured(layout_, *step_now);
  d.now = tools_.step(layout_, cluster) * correction(layout_);
  correct(d.alternatives);
  if (d.alternatives.empty()) {
    d.why = "no layout was found for the machine as it is now";
    return d;
  }
  const Forecast& best = d.alternatives.front();
  d.then = best.step;
  d.uncertainty = uncertainty(best);
  if (best.layout == layout_) {
    d.why = "the present layout is the best for the machine as it is now";
    return d;
  }
  d.move = tools_.move(best.layout, cluster) + restart_;
  if (d.gain().v <= 0) {
    d.why = fmt::format(
        "the best other layout takes {:.4g} s a step instead of {:.4g}; over {} steps, with an uncertainty "
        "of {:.0f} %, "
        "that does not pay for a change of {:.3g} s",
        d.then.v, d.now.v, steps_left, 100 * d.uncertainty, d.move.v);
    return d;
  }
  d.kind = DecisionKind::change;
  d.to = best.layout;
  d.why = fmt::format("{:.4g} s a step instead of {:.4g}: over {} steps at least {:.3g} s are gained",
                      d.then.v, d.now.v, steps_left, d.gain().v);
  trial_ = Trial{d, d.now};
  return d;
}

void AdaptationPolicy::measured(const Layout& layout, Seconds step) {
  const Seconds predicted = tools_.step(layout, belief_.cluster());
  if (predicted.v <= 0) return;
  const auto known = std::ranges::find(tried_, layout, &Tried::layout);
  if (known == tried_.end())
    tried_.push_back({layout, step / predicted});
  else
    known->correction = step / predicted;
}

void AdaptationPolicy::changed(Seconds took) {
  SEXTANT_CHECK(trial_.has_value(), "a decision to change");
  layout_ = trial_->decision.to;
  // What else a loss takes (those that are left meet, a checkpoint is read) says nothing of a change that is chosen.
  if (trial_->decision.kind != DecisionKind::lost)
    restart_ = std::max(Seconds(0), took - (trial_->decision.move - restart_));
  watch();
}

std::optional<Decision> AdaptationPolicy::verify(std::int64_t step, std::int64_t steps_left) {
  if (!trial_ || recent_.size() < static_cast<std::size_t>(options_.verify_steps)) return std::nullopt;
  // The first step of a layout still connects and allocates.
  const Seconds held_step = *typical(recent_[1].first, step);
  const Decision tried = trial_->decision;
  const Seconds before = trial_->before;
  trial_.reset();
  const Seconds promised = before - tried.then, held = before - held_step;
  // A change that was forced, or went back, has nothing to go back to.
  const bool may_go_back = tried.kind == DecisionKind::change && possible(tried.from);
  Decision d = begun(DecisionKind::keep, step, steps_left);
  d.trigger = "verified";
  d.onset = tried.seen;
  d.seen = step;
  d.now = held_step;
  d.then = tried.then;
  d.evidence = {
      fmt::format("decision {}: a step takes {:.4g} s, {:.4g} s before the change, {:.4g} s were predicted",
                  tried.number, held_step.v, before.v, tried.then.v)};
  measured(layout_, held_step);
  if (!may_go_back) {
    d.why = fmt::format("{:.1f} % off what was predicted", 100 * (held_step / tried.then - 1));
    return d;
  }
  if (held >= promised * kHalf) {
    d.why = fmt::format("{:.0f} % of the predicted gain were measured", 100 * (held / promised));
    return d;
  }
  d.kind = DecisionKind::go_back;
  d.to = tried.from;
  d.now = held_step;
  d.then = before;
  d.move = tools_.move(d.to, belief_.cluster()) + restart_;
  d.why = fmt::format("only {:.0f} % of the predicted gain were measured", 100 * (held / promised));
  trial_ = Trial{d, held_step};
  return d;
}

Decision AdaptationPolicy::lose(const std::vector<GpuPlace>& gpus, std::int64_t step,
                                std::int64_t steps_left) {
  abandon_search();
  for (const GpuPlace& gpu : gpus) belief_.lose(gpu);
  Decision d = begun(DecisionKind::lost, step, steps_left);
  d.trigger = "lost";
  d.onset = d.seen = step;
  d.evidence = places_text(gpus, belief_.cluster().node.gpus, "is lost");
  const bool used = std::ranges::any_of(
      gpus, [&](const GpuPlace& gpu) { return std::ranges::find(layout_.idle, gpu) == layout_.idle.end(); });
  std::erase_if(layout_.idle,
                [&](const GpuPlace& gpu) { return std::ranges::find(gpus, gpu) != gpus.end(); });
  if (!used) {
    d.kind = DecisionKind::stay;
    d.why = "no rank of the layout was there";
    return d;
  }
  pending_ = d;
  d.now = recent_.empty() ? Seconds{} : recent_.back().second;
  d.alternatives = tools_.plans(belief_.cluster(), abandoned_);
  correct(d.alternatives);
  if (d.alternatives.empty()) {
    d.kind = DecisionKind::no_layout;
    d.why = fmt::format("no layout is possible on the {} ranks that are left", belief_.cluster().gpus());
    return d;
  }
  d.to = d.alternatives.front().layout;
  d.then = d.alternatives.front().step;
  d.move = tools_.move(d.to, belief_.cluster()) + restart_;
  d.why = "the best layout on the ranks that are left";
  trial_ = Trial{d, d.now};
  return d;
}

void AdaptationPolicy::find(const std::vector<GpuPlace>& gpus, std::int64_t step) {
  for (const GpuPlace& gpu : gpus) belief_.find(gpu);
  abandon_search();
  std::vector<std::string> evidence = places_text(gpus, belief_.cluster().node.gpus, "is there again");
  // The plan goes on where it is: what is back is idle until a layout uses it.
  const auto known = std::ranges::find(tried_, layout_, &Tried::layout);
  for (const GpuPlace& gpu : gpus) layout_.idle.push_back(gpu);
  std::ranges::sort(layout_.idle);
  if (known != tried_.end()) known->layout = layout_;
  trial_.reset();
  begin_search("joined", std::move(evidence), step - options_.verify_steps, step);
}

}  // namespace sextant

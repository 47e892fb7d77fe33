#include "planner/search/search.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <tbb/task_arena.h>

#include "planner/search/bounds/admissible_prices.hpp"
#include "planner/search/first_layouts.hpp"
#include "planner/search/node_queue.hpp"
#include "planner/search/off_grid.hpp"
#include "planner/search/search_budget.hpp"
#include "planner/search/search_clock.hpp"
#include "planner/search/search_front.hpp"
#include "planner/search/search_ranking.hpp"
#include "planner/search/search_tree.hpp"
#include "planner/search/simulated_ahead.hpp"
#include "planner/search/step_simulator.hpp"
#include "planner/simulation/parallel_for.hpp"
#include "planner/simulation/predict.hpp"

namespace sextant {
namespace {

// Work done in one round. The same whatever the number of threads: results are taken in the order of the nodes.
constexpr std::size_t kRound = 64;
constexpr int kExamples = 4;  // of each outcome

class Search {
 public:
  Search(const Job& job, const SearchSpace& space, const SearchOptions& options)
      : job_(job),
        space_(space),
        options_(options),
        tree_(job, space, limit_, [this] { return guessed_enough(); }) {}

  SearchReport run() {
    look();
    if (!report_.stopped.empty()) {  // there may be better members near what was found last
      clock_.allow(0.95);
      first_.climb();
    }
    look_off_grid();
    finish();
    return std::move(report_);
  }

  ParetoFront front(double share, double slowest) {
    front_.emplace(job_, space_, share, slowest, limit_);
    look();
    while (queue_.empty() && front_->best()) next_point();
    clock_.allow(1);
    if (front_->best()) next_point();  // stopped: it may not be the fastest
    ParetoFront out;
    out.exact = queue_.empty();
    out.needs_more = limit_;
    finish();
    for (const MovedMember& point : front_->points()) {
      RankedPlan& plan = out.plans.emplace_back(ranked_plan(job_, point));
      plan.slower = plan.prediction.step / out.plans.front().prediction.step - 1;
      plan.tie = out.plans.size() > 1 && plan.slower < options_.tie_share;
    }
    out.report = std::move(report_);
    return out;
  }

 private:
  struct Tried {
    Expansion expansion;
    std::optional<Simulated> simulated;
  };

  void look() {
    report_.space = space_.size();
    if (report_.space > 0) begin();
    int rounds = 0;
    while (!queue_.empty() && !stop_asked() && (options_.most_rounds == 0 || rounds++ < options_.most_rounds))
      if (front_ && front_->best() && queue_.front().bound > proved_until())
        next_point();
      else
        round();
    if (!queue_.empty() && !found() && options_.most_rounds == 0) dive();
    if (!queue_.empty()) report_.stopped = clock_.cancelled() ? "interrupted" : kTimeSpent;
  }

  // No part of the space whose bound is above can change the answer, or the point that is next on the front. The first is
  // looked for as the one answer is: with the families behind it, which are moved as well.
  double proved_until() const {
    if (!front_ || !front_->best()) return threshold();
    const double best = as_fast(front_->best()->step);
    return front_->points().empty() ? std::max(best, ranking_.limit()) : best;
  }

  // The fastest within the limit is known, and moved to where it is faster still.
  void next_point() {
    const Simulated best = *front_->best();
    MovedMember point{best, {tree_.plan(best.choice, simulator_.cache()), best.step}};
    if (options_.move_layers) {
      const Ranking from = front_->points().empty() ? ranking_ : front_->fastest(kMovedFamilies);
      for (MovedMember& moved : moved_from(from)) moved_.push_back(std::move(moved));
      // What was moved for an earlier point may be smaller than this one's limit.
      for (const MovedMember& moved : moved_)
        if (moved.found.step < point.found.step && plan_memory(job_, moved.found.plan).peak <= limit_)
          point = moved;
    }
    limit_ = front_->push(std::move(point));
    tree_.lower_memory_limit(limit_);
  }

  // The divisions of the ranks; then the members that are worth simulating before the tree is walked.
  void begin() {
    Tried whole;
    tree_.expand(tree_.root(), simulator_.cache(), whole.expansion);
    take(whole);
    first_.guess(queue_.best_first());
  }

  // No plan can be of use whose bound is above: the last of the families wanted.
  double threshold() const {
    const double useful = options_.at_most ? options_.at_most->v : INFINITY;
    return std::min(useful, front_ ? front_->slowest_step() : ranking_.limit());
  }
  // No member of the node is of use whose bound is above: from the pipeline's form on, all are of one family.
  double limit_of(const Node& node) const {
    return node.level < Level::pipeline || front_ ? threshold()
                                                  : std::min(threshold(), ranking_.limit_of(node.choice));
  }
  bool useless(const Node& node) const { return node.bound > threshold() || node.bound > limit_of(node); }

  bool found() const { return !ranking_.empty(); }
  bool stop_asked() const { return clock_.stop_asked(); }
  bool guessed_enough() const { return clock_.guessed_enough(found()); }

  // Asked to stop with nothing to show: straight down, the best child first, to one layout that fits.
  void dive() {
    std::vector<Node> stack = queue_.take_best_last();
    const double until = clock_.first_layout_until_s();
    while (!stack.empty() && !found() && clock_.spent_s() < until) {
      const Node node = stack.back();
      stack.pop_back();
      Tried tried_one;
      work(node, tried_one);
      take(tried_one);  // children go to the queue
      const std::vector<Node> children = queue_.take_best_last();
      stack.insert(stack.end(), children.begin(), children.end());
    }
    for (const Node& node : stack) queue_.push(node);
  }

  void round() {
    std::vector<Node> nodes;
    const double until = proved_until();
    while (!queue_.empty() && nodes.size() < kRound) {
      if (queue_.front().bound > until) break;
      const Node node = queue_.pop();
      if (useless(node))
        report_.outcomes[Outcome::pruned_by_bound] += node.members;
      else
        nodes.push_back(node);
    }
    if (nodes.empty()) {  // all that is left is above the threshold
      if (queue_.empty() || queue_.front().bound > threshold()) drain(Outcome::pruned_by_bound);
      return;
    }
    std::vector<Tried> tried(nodes.size());
    std::vector<char> worked(nodes.size(), 0);  // of several threads: no vector<bool>
    parallel_for(nodes.size(), [&](std::size_t i) {
      if (stop_asked()) return;
      work(nodes[i], tried[i]);
      worked[i] = 1;
    });
    simulator_.limit_states();
    for (std::size_t i = 0; i < nodes.size(); ++i)
      if (worked[i])
        take(tried[i]);
      else
        queue_.push(nodes[i]);
    if (report_.bounds > options_.thorough_bounds && options_.others_share > 0) {
      report_.others_share = options_.others_share;
      ranking_.look_less(options_.others_share);
    }
  }

  void work(const Node& node, Tried& tried_one) {
    SearchCache& cache = simulator_.cache();
    tried_one.expansion.limit = limit_of(node);
    tried_one.expansion.exemplified = exemplified_;
    if (node.refined < SearchTree::passes(node.level)) {
      Node refined = node;
      tree_.refine(refined, cache, tried_one.expansion);
      if (refined.members > 0) tried_one.expansion.add(refined);
    } else if (node.level != Level::full) {
      Node expanded = node;
      expanded.refined = 0;  // children start anew
      tree_.expand(expanded, cache, tried_one.expansion);
    } else if (Node whole = node; tree_.fits(whole, cache, tried_one.expansion)) {
      tried_one.simulated = simulated(whole);
    }
  }

  Simulated simulated(const Node& node) {
    return {simulator_.step_of(tree_.plan(node.choice, simulator_.cache())), node.choice, node.peak};
  }

  void look_off_grid() {
    if (!options_.move_layers || ranking_.empty()) return;
    clock_.allow(1);
    moved_ = moved_from(ranking_);
  }
  Moved moved_from(const Ranking& ranking) {
    OffGrid found = off_grid(job_, space_, tree_, ranking,
                             {[this]() -> SearchCache& { return simulator_.cache(); },
                              [this](const ParallelPlan& plan) { return simulator_.step_of(plan); },
                              [this] { return stop_asked(); }});
    report_.moved += found.cut_anew;
    report_.refined += found.refined;
    return std::move(found.moved);
  }

  void take(Tried& tried_one) {
    report_.outcomes += tried_one.expansion.outcomes;
    report_.bounds += tried_one.expansion.bounds;
    for (OutcomeExample& example : tried_one.expansion.examples) {
      const auto outcome = static_cast<std::size_t>(example.outcome);
      if (examples_of_[outcome] < kExamples) report_.examples.push_back(std::move(example));
      exemplified_[outcome] = ++examples_of_[outcome] >= kExamples;
    }
    for (const Node& child : tried_one.expansion.children)
      if (useless(child))
        report_.outcomes[Outcome::pruned_by_bound] += child.members;
      else
        queue_.push(child);
    if (!tried_one.simulated) return;
    ++report_.outcomes[Outcome::simulated];
    ahead_.visited(tried_one.simulated->choice);
    rank(*tried_one.simulated);
  }

  void rank_ahead(const Simulated& result) {
    ahead_.add(result.choice);
    rank(result);
  }

  void rank(const Simulated& result) {
    if (front_) front_->add(result);
    if (ranking_.add(result)) tell(ranking_.best());
  }

  // The step as the answer will state it.
  void tell(const Simulated& best) const {
    if (options_.progress)
      options_.progress(report_.outcomes[Outcome::simulated],
                        measured_step(job_, plan_of(space_, best.choice), Seconds(best.step)));
  }

  void drain(Outcome outcome) {
    for (const Node& node : queue_.nodes()) report_.outcomes[outcome] += node.members;
    queue_.clear();
  }

  void leave_unvisited() {
    SearchCache& cache = simulator_.cache();
    for (const Node& node : queue_.nodes()) {
      const std::uint64_t ahead = ahead_.below(node, space_, cache);
      report_.outcomes[Outcome::simulated] += ahead;
      report_.outcomes[Outcome::unvisited] += node.members - ahead;
    }
    queue_.clear();
  }

  void finish() {
    report_.exact = report_.stopped.empty();
    double bound = ranking_.empty() ? INFINITY : ranking_.best().step;
    if (!report_.exact && !queue_.empty()) {
      bound = std::min(bound, queue_.front().bound);
      leave_unvisited();
    }
    if (std::isfinite(bound)) {
      ParallelPlan any;
      any.dp = space_.world;
      report_.best_bound = measured_step(job_, any, Seconds(bound));
    }
    if (!front_)
      report_.ranked = ranked_plans(
          job_, ranking_, moved_, static_cast<std::size_t>(std::max(1, options_.top)), options_.tie_share,
          [this](const Simulated& member) { return tree_.plan(member.choice, simulator_.cache()); });
    report_.wall_s = clock_.spent_s();
  }

  const Job& job_;
  const SearchSpace& space_;
  const SearchOptions& options_;
  Bytes limit_ = options_.memory_limit.value_or(job_.cluster.device.memory);
  std::optional<SearchFront> front_;
  SearchTree tree_;
  StepSimulator simulator_{job_, space_};
  NodeQueue queue_;
  SimulatedAhead ahead_;
  // What is moved does not depend on how many are shown.
  Ranking ranking_{space_, options_.move_layers ? std::max(options_.top, kMovedFamilies) : options_.top};
  Moved moved_;
  std::array<int, kOutcomeNames.size()> examples_of_{};
  std::array<bool, kOutcomeNames.size()> exemplified_{};  // by outcome: enough examples
  SearchReport report_;
  SearchClock clock_{options_};
  FirstLayouts first_{space_,
                      tree_,
                      ranking_,
                      {.cache = [this]() -> SearchCache& { return simulator_.cache(); },
                       .simulated = [this](const Node& node) { return simulated(node); },
                       .threshold = [this] { return threshold(); },
                       .stop_asked = [this] { return stop_asked(); },
                       .guessed_enough = [this] { return guessed_enough(); },
                       .useless = [this](const Node& node) { return useless(node); },
                       .rank = [this](const Simulated& result) { rank_ahead(result); }}};
};

template <class Ask>
auto on_threads(int threads, const Ask& ask) {
  if (threads <= 0) return ask();
  tbb::task_arena arena(threads);
  return arena.execute(ask);
}

}  // namespace

SearchReport search(const Job& job, const SearchSpace& space, const SearchOptions& options) {
  return with_admissible_prices(job, [&](const Job& asked) {
    return on_threads(options.threads, [&] { return Search(asked, space, options).run(); });
  });
}

ParetoFront pareto_front(const Job& job, const SearchSpace& space, const SearchOptions& options, double step,
                         double slowest) {
  return with_admissible_prices(job, [&](const Job& asked) {
    return on_threads(options.threads, [&] { return Search(asked, space, options).front(step, slowest); });
  });
}

}  // namespace sextant

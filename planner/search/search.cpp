#include "planner/search/search.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <optional>
#include <span>

#include <fmt/format.h>
#include <tbb/enumerable_thread_specific.h>
#include <tbb/global_control.h>
#include <tbb/task_arena.h>

#include "planner/lowering/lower.hpp"
#include "planner/search/bounds/admissible_prices.hpp"
#include "planner/search/off_grid.hpp"
#include "planner/search/search_budget.hpp"
#include "planner/search/search_front.hpp"
#include "planner/search/search_ranking.hpp"
#include "planner/search/search_tree.hpp"
#include "planner/search/simulated_ahead.hpp"
#include "planner/simulation/parallel_for.hpp"
#include "planner/simulation/predict.hpp"

namespace sextant {
namespace {

using Clock = std::chrono::steady_clock;

// Nodes leave in the order of their bounds; equal bounds in the order of the space, deeper ones first.
struct Later {
  bool operator()(const Node& a, const Node& b) const {
    if (a.bound != b.bound) return a.bound > b.bound;
    if (a.level != b.level) return a.level < b.level;
    return a.choice > b.choice;
  }
};

// Work done in one round. The same whatever the number of threads: results are taken in the order of the nodes.
constexpr std::size_t kRound = 64;
constexpr std::size_t kGuesses = 8;
constexpr int kOfOwn = 4;     // neighbours of the best that are of its own kind
constexpr int kExamples = 4;  // of each outcome
// With nothing to show, whoever gives a search less time, or has lost patience, gets what these can find.
constexpr double kLeast_s = 1, kAfterCancel_s = 0.5;

class Search {
 public:
  Search(const Job& job, const SearchSpace& space, const SearchOptions& options)
      : job_(job),
        space_(space),
        options_(options),
        tree_(job, space, limit_, [this] { return guessed_enough(); }),
        threads_([this] {
          return PerThread{SearchCache(job_, space_, shared_), {}, {}};
        }) {}

  SearchReport run() {
    look();
    if (!report_.stopped.empty()) {  // there may be better members near what was found last
      budget_share_ = 0.95;
      climb();
    }
    look_beside();
    finish();
    return std::move(report_);
  }

  ParetoFront front(double share, double slowest) {
    front_.emplace(job_, space_, share, slowest, limit_);
    look();
    while (queue_.empty() && front_->best()) next_point();
    budget_share_ = 1;
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
  struct PerThread {
    SearchCache cache;
    SimulateScratch scratch;
    FoldedGraph graph;
  };
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
    if (!queue_.empty()) report_.stopped = cancelled() ? "interrupted" : kTimeSpent;
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
    MovedMember point{best, {tree_.plan(best.choice, threads_.local().cache), best.step}};
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

  // The divisions of the ranks; then, from the best of them on, members that a practitioner would try. Their steps say
  // from the start what is not worth a look, and a search that is stopped early has an answer.
  void begin() {
    Tried whole;
    tree_.expand(tree_.root(), threads_.local().cache, whole.expansion);
    take(whole);
    std::vector<Node> divisions = queue_;
    std::sort(divisions.begin(), divisions.end(), [](const Node& a, const Node& b) { return Later{}(b, a); });
    using enum SearchTree::Guess;
    for (const bool lean_only : {false, true}) {
      for (std::size_t at = 0; at < divisions.size() && !guessed_enough(); at += kGuesses) {
        if (divisions[at].bound > threshold() || (lean_only && found())) break;
        const auto some = std::span(divisions).subspan(at, std::min(kGuesses, divisions.size() - at));
        guess(some, lean_only ? lean : usual);
        if (!lean_only) guess(some, on_host);
        if (!lean_only && space_.tight) guess(some, roomy);
      }
      if (found()) break;
    }
    climb();
    if (!space_.tight) return;
    for (std::size_t at = 0; at < divisions.size() && !stop_asked(); at += kGuesses) {
      if (divisions[at].bound > threshold()) break;
      guess(std::span(divisions).subspan(at, std::min(kGuesses, divisions.size() - at)), roomy_on_host);
    }
    climb();
  }

  // From the best on, one field changed at a time for as long as that helps: those of the least bounds, one of a family.
  void climb() {
    while (!stop_asked() && !ranking_.empty()) {
      const Simulated from = ranking_.best();
      std::vector<Choice> choices = neighbours(space_, from.choice);
      if (space_.tight) make_room(choices);
      std::vector<std::optional<Node>> members(choices.size());
      const double limit = threshold();
      parallel_for(choices.size(), [&](std::size_t i) {
        if (!stop_asked()) members[i] = tree_.member(choices[i], limit, threads_.local().cache);
      });
      std::vector<Node> nodes;
      for (const std::optional<Node>& node : members)
        if (node && !useless(*node)) nodes.push_back(*node);
      std::ranges::sort(nodes, [](const Node& a, const Node& b) { return Later{}(b, a); });
      const Family own = family_of(plan_of(space_, from.choice));
      std::map<Family, int> families;
      std::erase_if(nodes, [&](const Node& node) {
        const Family family = family_of(plan_of(space_, node.choice));
        if (families.size() >= kGuesses && families.count(family) == 0) return true;
        return ++families[family] > (family == own ? kOfOwn : 1);
      });
      simulate(nodes);
      if (ranking_.best().choice == from.choice) return;
    }
  }

  // The same beside them, each with just as much of the optimizer on the host as it needs there.
  void make_room(std::vector<Choice>& choices) {
    std::vector<std::optional<Choice>> roomy(choices.size());
    parallel_for(choices.size(), [&](std::size_t i) {
      if (!stop_asked()) roomy[i] = tree_.with_least_share(choices[i], threads_.local().cache);
    });
    for (const std::optional<Choice>& c : roomy)
      if (c && std::ranges::find(choices, *c) == choices.end()) choices.push_back(*c);
  }

  void simulate(std::vector<Node>& nodes) {
    std::vector<std::optional<Simulated>> tried(nodes.size());
    parallel_for(nodes.size(), [&](std::size_t i) {
      Expansion ignored;
      if (stop_asked()) return;
      if (tree_.fits(nodes[i], threads_.local().cache, ignored)) tried[i] = simulated(nodes[i]);
    });
    for (const auto& tried_one : tried)
      if (tried_one) rank_ahead(*tried_one);
  }

  void guess(std::span<const Node> divisions, SearchTree::Guess what) {
    std::vector<Tried> tried(divisions.size());
    const double limit = threshold();
    parallel_for(divisions.size(), [&](std::size_t i) {
      if (guessed_enough()) return;
      if (const auto node = tree_.guess(divisions[i], what, limit, threads_.local().cache))
        tried[i].simulated = simulated(*node);
    });
    for (const Tried& tried_one : tried)
      if (tried_one.simulated) rank_ahead(*tried_one.simulated);
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
  bool cancelled() const { return options_.cancel && options_.cancel->load(); }
  bool stop_asked() const {
    return cancelled() || (options_.budget_s > 0 && spent() > options_.budget_s * budget_share_);
  }
  // A search that has hardly any time goes on to a first layout, half of what dive() has at least.
  bool guessed_enough() const { return cancelled() || (stop_asked() && (found() || spent() > kLeast_s / 2)); }
  double spent() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

  // Asked to stop with nothing to show: straight down, the best child first, to one layout that fits.
  void dive() {
    std::vector<Node> stack;
    stack.swap(queue_);
    std::sort(stack.begin(), stack.end(), Later{});
    const double until = cancelled() ? spent() + kAfterCancel_s : std::max(kLeast_s, options_.budget_s);
    while (!stack.empty() && !found() && spent() < until) {
      const Node node = stack.back();
      stack.pop_back();
      Tried tried_one;
      work(node, tried_one);
      take(tried_one);  // children go to the queue
      std::sort(queue_.begin(), queue_.end(), Later{});
      stack.insert(stack.end(), queue_.begin(), queue_.end());
      queue_.clear();
    }
    for (const Node& node : stack) push(node);
  }

  void round() {
    std::vector<Node> nodes;
    const double until = proved_until();
    while (!queue_.empty() && nodes.size() < kRound) {
      if (queue_.front().bound > until) break;
      std::pop_heap(queue_.begin(), queue_.end(), Later{});
      const Node node = queue_.back();
      queue_.pop_back();
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
    if (shared_->state_bytes > SearchCache::kMostStateBytes) forget_states();
    for (std::size_t i = 0; i < nodes.size(); ++i)
      if (worked[i])
        take(tried[i]);
      else
        push(nodes[i]);
    if (report_.bounds > options_.thorough_bounds && options_.others_share > 0) {
      report_.others_share = options_.others_share;
      ranking_.look_less(options_.others_share);
    }
  }

  void forget_states() {
    shared_->states.clear(), shared_->stages.clear(), shared_->state_bytes = 0;
    for (PerThread& thread : threads_) thread.cache.forget_last_states();
  }

  void work(const Node& node, Tried& tried_one) {
    PerThread& mine = threads_.local();
    tried_one.expansion.limit = limit_of(node);
    tried_one.expansion.exemplified = exemplified_;
    if (node.refined < SearchTree::passes(node.level)) {
      Node refined = node;
      tree_.refine(refined, mine.cache, tried_one.expansion);
      if (refined.members > 0) tried_one.expansion.add(refined);
    } else if (node.level != Level::full) {
      Node expanded = node;
      expanded.refined = 0;  // children start anew
      tree_.expand(expanded, mine.cache, tried_one.expansion);
    } else if (Node whole = node; tree_.fits(whole, mine.cache, tried_one.expansion)) {
      tried_one.simulated = simulated(whole);
    }
  }

  Simulated simulated(const Node& node) {
    return {step_of(tree_.plan(node.choice, threads_.local().cache)), node.choice, node.peak};
  }
  double step_of(const ParallelPlan& plan) {
    PerThread& mine = threads_.local();
    lower_folded(job_.model, job_.training, mine.cache.links(plan), plan, job_.stack, mine.graph);
    const std::vector<OpCost> costs = price(mine.graph, job_.cost);
    return simulated_step(mine.graph, costs, simulate_options(job_, plan), mine.scratch).v;
  }

  void look_beside() {
    if (!options_.move_layers || ranking_.empty()) return;
    budget_share_ = 1;
    moved_ = moved_from(ranking_);
  }
  Moved moved_from(const Ranking& ranking) {
    Beside found = off_grid(
        job_, space_, tree_, ranking,
        {[this]() -> SearchCache& { return threads_.local().cache; },
         [this](const ParallelPlan& plan) { return step_of(plan); }, [this] { return stop_asked(); }});
    report_.moved += found.cut_anew, report_.refined += found.refined;
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
        push(child);
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

  void push(const Node& node) {
    queue_.push_back(node);
    std::push_heap(queue_.begin(), queue_.end(), Later{});
  }

  void drain(Outcome outcome) {
    for (const Node& node : queue_) report_.outcomes[outcome] += node.members;
    queue_.clear();
  }

  void leave_unvisited() {
    SearchCache& cache = threads_.local().cache;
    for (const Node& node : queue_) {
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
          [this](const Simulated& member) { return tree_.plan(member.choice, threads_.local().cache); });
    report_.wall_s = std::chrono::duration<double>(Clock::now() - begin_).count();
  }

  const Job& job_;
  const SearchSpace& space_;
  const SearchOptions& options_;
  Bytes limit_ = options_.memory_limit.value_or(job_.cluster.device.memory);
  std::optional<SearchFront> front_;
  SearchTree tree_;
  std::shared_ptr<SearchCache::Shared> shared_ = SearchCache::make_shared();
  tbb::enumerable_thread_specific<PerThread> threads_;
  std::vector<Node> queue_;  // a heap
  SimulatedAhead ahead_;
  // What is moved does not depend on how many are shown.
  Ranking ranking_{space_, options_.move_layers ? std::max(options_.top, kMovedFamilies) : options_.top};
  Moved moved_;
  std::array<int, kOutcomeNames.size()> examples_of_{};
  std::array<bool, kOutcomeNames.size()> exemplified_{};  // by outcome: enough examples
  SearchReport report_;
  Clock::time_point begin_ = Clock::now();
  double budget_share_ = 0.85;  // what comes beside the space, or the first layout at all, has the rest
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

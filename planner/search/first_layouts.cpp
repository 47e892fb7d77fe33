#include "planner/search/first_layouts.hpp"

#include <algorithm>
#include <map>
#include <optional>

#include "planner/search/node_queue.hpp"
#include "planner/simulation/parallel_for.hpp"

namespace sextant {
namespace {

constexpr std::size_t kGuesses = 8;
constexpr int kOfOwn = 4;  // neighbours of the best that are of its own kind

}  // namespace

void FirstLayouts::guess(const std::vector<Node>& divisions) {
  using enum SearchTree::Guess;
  for (const bool lean_only : {false, true}) {
    for (std::size_t at = 0; at < divisions.size() && !means_.guessed_enough(); at += kGuesses) {
      if (divisions[at].bound > means_.threshold() || (lean_only && found())) break;
      const auto some = std::span(divisions).subspan(at, std::min(kGuesses, divisions.size() - at));
      guess(some, lean_only ? lean : usual);
      if (!lean_only) guess(some, on_host);
      if (!lean_only && space_.tight) guess(some, roomy);
    }
    if (found()) break;
  }
  climb();
  if (!space_.tight) return;
  for (std::size_t at = 0; at < divisions.size() && !means_.stop_asked(); at += kGuesses) {
    if (divisions[at].bound > means_.threshold()) break;
    guess(std::span(divisions).subspan(at, std::min(kGuesses, divisions.size() - at)), roomy_on_host);
  }
  climb();
}

void FirstLayouts::climb() {
  while (!means_.stop_asked() && !ranking_.empty()) {
    const Simulated from = ranking_.best();
    std::vector<Choice> choices = neighbours(space_, from.choice);
    if (space_.tight) make_room(choices);
    std::vector<std::optional<Node>> members(choices.size());
    const double limit = means_.threshold();
    parallel_for(choices.size(), [&](std::size_t i) {
      if (!means_.stop_asked()) members[i] = tree_.member(choices[i], limit, means_.cache());
    });
    std::vector<Node> nodes;
    for (const std::optional<Node>& node : members)
      if (node && !means_.useless(*node)) nodes.push_back(*node);
    sort_best_first(nodes);
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
void FirstLayouts::make_room(std::vector<Choice>& choices) const {
  std::vector<std::optional<Choice>> roomy(choices.size());
  parallel_for(choices.size(), [&](std::size_t i) {
    if (!means_.stop_asked()) roomy[i] = tree_.with_least_share(choices[i], means_.cache());
  });
  for (const std::optional<Choice>& c : roomy)
    if (c && std::ranges::find(choices, *c) == choices.end()) choices.push_back(*c);
}

void FirstLayouts::simulate(std::vector<Node>& nodes) {
  std::vector<std::optional<Simulated>> tried(nodes.size());
  parallel_for(nodes.size(), [&](std::size_t i) {
    Expansion ignored;
    if (means_.stop_asked()) return;
    if (tree_.fits(nodes[i], means_.cache(), ignored)) tried[i] = means_.simulated(nodes[i]);
  });
  for (const auto& tried_one : tried)
    if (tried_one) means_.rank(*tried_one);
}

void FirstLayouts::guess(std::span<const Node> divisions, SearchTree::Guess what) {
  std::vector<std::optional<Simulated>> tried(divisions.size());
  const double limit = means_.threshold();
  parallel_for(divisions.size(), [&](std::size_t i) {
    if (means_.guessed_enough()) return;
    if (const auto node = tree_.guess(divisions[i], what, limit, means_.cache()))
      tried[i] = means_.simulated(*node);
  });
  for (const auto& tried_one : tried)
    if (tried_one) means_.rank(*tried_one);
}

}  // namespace sextant

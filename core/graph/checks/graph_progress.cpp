#include <boost/graph/compressed_sparse_row_graph.hpp>
#include <boost/graph/depth_first_search.hpp>

#include "core/graph/checks/problem_list.hpp"

namespace sextant {
namespace {

using checks::ProblemList;

// An edge a -> b: b waits for a.
using Waits = boost::compressed_sparse_row_graph<boost::directedS>;
using Vertex = boost::graph_traits<Waits>::vertex_descriptor;

struct Circle {
  std::vector<Vertex> ops;  // each waits for the one before it, the first for the last
};

// Depth-first search: an edge back to an op still open closes a circle.
struct CircleFinder : boost::default_dfs_visitor {
  explicit CircleFinder(std::vector<Vertex>& parents) : parent(&parents) {}
  void tree_edge(Waits::edge_descriptor e, const Waits& g) const { (*parent)[target(e, g)] = source(e, g); }
  void back_edge(Waits::edge_descriptor e, const Waits& g) const {
    Circle circle;
    for (Vertex v = source(e, g); v != target(e, g); v = (*parent)[v]) circle.ops.push_back(v);
    circle.ops.push_back(target(e, g));
    std::reverse(circle.ops.begin(), circle.ops.end());
    throw circle;
  }
  std::vector<Vertex>* parent;
};

// The transfers, and the ops at which the circle changes lanes; what only stands between them on a lane says nothing.
std::string circle_text(const ExecutionGraph& g, const Circle& circle) {
  constexpr std::size_t kShown = 12;
  const std::size_t n = circle.ops.size();
  const auto lane = [&](std::size_t k) { return g.ops[circle.ops[k % n]].lanes[0]; };
  std::vector<OpId> shown;
  for (std::size_t k = 0; k < n; ++k)
    if (g.ops[circle.ops[k]].lanes[1] != kNoLane || lane(k) != lane(k + 1) || lane(k) != lane(k + n - 1))
      shown.push_back(static_cast<OpId>(circle.ops[k]));
  if (shown.empty()) shown = {static_cast<OpId>(circle.ops.front())};
  std::string out;
  for (std::size_t k = 0; k < shown.size() && k < kShown; ++k) out += op_label(g, shown[k]) + " -> ";
  if (shown.size() > kShown) out += fmt::format("({} more) -> ", shown.size() - kShown);
  return out + op_label(g, shown.front());
}

}  // namespace

std::vector<Problem> check_progress(const ExecutionGraph& g, const std::vector<std::vector<OpId>>& order) {
  ProblemList problems(g);
  // The stages' parts of one sum over the world start together: one vertex for all of them.
  std::vector<OpId> vertex(g.ops.size());
  std::vector<std::vector<OpId>> joins(static_cast<std::size_t>(g.plan.pp));
  for (OpId i = 0; i < g.ops.size(); ++i) {
    vertex[i] = i;
    if (g.ops[i].role != OpRole::norm_reduce) continue;
    auto& mine = joins[g.ops[i].stage];
    if (mine.size() < joins.front().size() && g.ops[i].stage != 0) vertex[i] = joins.front()[mine.size()];
    mine.push_back(i);
  }
  for (std::size_t s = 0; s < joins.size(); ++s)
    if (joins[s].size() != joins.front().size())
      problems.add(fmt::format("stage {}", s), fmt::format("{} sums over the world", joins[s].size()),
                   fmt::format("{}, as many as stage 0: every rank must come to each", joins.front().size()));

  std::vector<std::pair<Vertex, Vertex>> edges;
  edges.reserve(g.deps.size() + g.ops.size());
  for (OpId i = 0; i < g.ops.size(); ++i)
    for (const OpId dep : g.deps_of(g.ops[i])) edges.emplace_back(vertex[dep], vertex[i]);
  for (const auto& lane : order)
    for (std::size_t k = 1; k < lane.size(); ++k) edges.emplace_back(vertex[lane[k - 1]], vertex[lane[k]]);
  const Waits waits(boost::edges_are_unsorted_multi_pass, edges.begin(), edges.end(), g.ops.size());
  std::vector<Vertex> parents(g.ops.size());
  try {
    boost::depth_first_search(waits, boost::visitor(CircleFinder(parents)));
  } catch (const Circle& circle) {
    problems.add("order of issue", "ops that wait in a circle: " + circle_text(g, circle),
                 "an order in which each gets its turn");
  }
  return problems.take();
}

}  // namespace sextant

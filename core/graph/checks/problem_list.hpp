// Collects what is wrong with a graph, op by op, up to a number that a person will still read. Internal to the checks.
#pragma once

#include <concepts>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/graph/checks/graph_check.hpp"

namespace sextant::checks {

class ProblemList {
 public:
  explicit ProblemList(const ExecutionGraph& graph) : graph_(graph) {}

  void add(std::string key, std::string found, std::string expected, std::string hint = "") {
    if (problems_.size() < kMost)
      problems_.push_back({"", std::move(key), std::move(found), std::move(expected), std::move(hint)});
  }
  void add(OpId op, std::string found, std::string expected) {
    add(op_label(graph_, op), std::move(found), std::move(expected));
  }

  // `found` is a value, or a function that writes it out when it is needed.
  template <class Found>
  bool require(bool holds, OpId op, const std::string& expected, const Found& found) {
    if (holds) return true;
    if constexpr (std::invocable<const Found&>)
      add(label(op), found(), expected);
    else
      add(label(op), fmt::format("{}", found), expected);
    return false;
  }

  bool clean() const { return problems_.empty(); }
  std::vector<Problem> take() { return std::move(problems_); }

 private:
  static constexpr std::size_t kMost = 50;

  // A broken op may have no name yet: its work may not exist.
  std::string label(OpId op) const {
    return graph_.ops[op].work < graph_.works.size() ? op_label(graph_, op) : fmt::format("op {}", op);
  }

  const ExecutionGraph& graph_;
  std::vector<Problem> problems_;
};

}  // namespace sextant::checks

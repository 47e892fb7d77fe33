// What a stage of a graph must do by its plan, and what its buffers are for, told by who uses them: the common ground of
// the checks on parameters and gradients.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "core/graph/checks/problem_list.hpp"
#include "core/graph/parameter_layout.hpp"

namespace sextant::checks {

inline constexpr BufferId kUnknown = std::numeric_limits<BufferId>::max();

struct Interval {
  std::int64_t begin = 0, end = 0;
  auto operator<=>(const Interval&) const = default;
};
// What an op must touch, no more and no less.
struct Access {
  BufferId buffer = kUnknown;
  bool write = false;
  Interval span;
  auto operator<=>(const Access&) const = default;
};
std::string text(const std::vector<Access>&);

struct StageFacts {
  StageFacts(const ExecutionGraph&, const StackRules&, int stage);

  const ExecutionGraph& graph;
  const StackRules& rules;
  int stage = 0;
  ParameterLayout layout;
  bool ring_gradients = false;      // reduced in every micro-batch
  bool host_sums = false;           // ... and summed on the host
  bool fetches = false;             // parameters fetched unit by unit
  std::vector<BufferId> gradients;  // resident: one for each bucket, or its accumulator; in order of buckets
  std::vector<BufferId> rest;       // by bucket: where the slice stands that is gathered or fetched
  std::vector<BufferId> host_gradient;  // by bucket
  BufferId landing = kUnknown;          // on the host: gradients to be added to those
  std::vector<BufferId> optimizer;
  std::set<BufferId> units;  // rings and staging of fetched parameters
  std::set<BufferId> gradient_ring;
  BufferId norm_buffer = kUnknown, norm_total = kUnknown;
  std::optional<std::size_t> shared_embedding;  // parameter that is the head as well
  bool head_apart = false;                      // which sums its gradient in a place of its own:
  BufferId head_gradient = kUnknown;
  bool has_head_gradient() const { return head_apart == (head_gradient != kUnknown); }
  bool joins(std::size_t b) const { return head_apart && layout.parameters[*shared_embedding].bucket == b; }

  // Parameters of a unit, by model chunk, layer (kNone16 outside of layers) and kind.
  std::map<std::tuple<std::uint16_t, std::uint16_t, BlockKind>, std::vector<std::size_t>> by_site;

  std::size_t n_buckets() const { return layout.buckets.size(); }
  const Bucket& bucket(std::size_t b) const { return layout.buckets[b]; }
  std::span<const Parameter> parameters_of(std::size_t b) const {
    return std::span(layout.parameters).subspan(bucket(b).first, bucket(b).count);
  }
  std::optional<std::size_t> bucket_of_gradient(BufferId) const;
  std::int64_t slice(std::size_t b) const { return layout.slice(bucket(b)); }
  std::int64_t host(std::size_t b) const { return host_share(graph.plan.optimizer_offload, slice(b)); }
  std::string bucket_name(std::size_t b) const { return fmt::format("stage {} bucket {}", stage, b); }

  Interval gradient_span(std::int64_t begin, std::int64_t end) const;  // of elements
  Interval gradient_span(const Parameter& p) const { return gradient_span(p.offset, p.offset + p.elements); }
  Interval parameter_span(std::int64_t begin, std::int64_t end) const;
  Interval whole(BufferId b) const { return {0, b == kUnknown ? 0 : graph.buffers[b].bytes}; }

  // Brings parameters to where blocks read them. Other copies bring back what the host updated, or activations.
  bool is_fetch(const Op&) const;
  bool reads_gradient(const Op&) const;

  // The op touches exactly these bytes; `among`: these at least.
  void touches(ProblemList&, OpId, std::vector<Access> expected, bool among = false) const;

 private:
  void find_buffers();
  void find_roles(const Op&);
  void find_host_sums();
  void index_parameters();
  double gradient_bytes_ = 4;  // per element
};

}  // namespace sextant::checks

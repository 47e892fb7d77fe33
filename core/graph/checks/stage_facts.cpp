#include "core/graph/checks/stage_facts.hpp"

#include <algorithm>
#include <cmath>

namespace sextant::checks {

std::string text(const std::vector<Access>& list) {
  std::string out;
  for (const Access& a : list)
    out += fmt::format("{}{} [{}, {}) of buffer {}", out.empty() ? "" : ", ", a.write ? "write" : "read",
                       a.span.begin, a.span.end, a.buffer);
  return out.empty() ? "no operands" : out;
}

StageFacts::StageFacts(const ExecutionGraph& g, const StackRules& r, int s)
    : graph(g),
      rules(r),
      stage(s),
      layout(parameter_layout(g.model, g.plan, r, s)),
      ring_gradients(reduces_every_microbatch(g.plan, r)),
      host_sums(sums_gradients_on_host(g.plan, r)),
      fetches(fetches_parameters(g.plan, r)),
      rest(layout.buckets.size(), kUnknown),
      host_gradient(layout.buckets.size(), kUnknown) {
  head_apart = embedding_apart_from_head(layout, g.model, g.plan, r, microbatches(g.plan, g.training)) >= 0;
  find_buffers();
  index_parameters();
}

void StageFacts::find_buffers() {
  for (BufferId b = 0; b < graph.buffers.size(); ++b) {
    const Buffer& buffer = graph.buffers[b];
    if (buffer.stage != stage || !buffer.resident) continue;
    if (buffer.kind == BufferKind::gradient) {
      if (head_apart && buffer.bucket == kNone16)
        head_gradient = b;
      else
        gradients.push_back(b);
    }
    if (buffer.kind == BufferKind::optimizer_state) optimizer.push_back(b);
  }
  if (!gradients.empty() && n_buckets() > 0)
    gradient_bytes_ = static_cast<double>(graph.buffers[gradients.front()].bytes) /
                      static_cast<double>(ring_gradients ? slice(0) : bucket(0).elements);
  for (const Op& op : graph.ops)
    if (op.stage == stage) find_roles(op);
  if (host_sums) find_host_sums();
}

// The sums take the accumulators' part. Where gradients are before they are copied, elements may be of another size.
void StageFacts::find_host_sums() {
  gradients = host_gradient;
  std::int64_t place = 0, elements = 1;
  for (const BufferId b : gradient_ring) place = std::max(place, graph.buffers[b].bytes);
  for (const Bucket& b : layout.buckets) elements = std::max(elements, b.elements);
  gradient_bytes_ = static_cast<double>(place) / static_cast<double>(elements);
}

void StageFacts::find_roles(const Op& op) {
  const bool fetch = is_fetch(op);
  for (const Operand& o : graph.operands_of(op)) {
    const BufferKind kind = graph.buffers[o.buffer].kind;
    if (op.bucket < n_buckets()) {
      if (fetch && !o.write && rest[op.bucket] == kUnknown) rest[op.bucket] = o.buffer;
      if (op.role == OpRole::copy_out && o.write && kind == BufferKind::host &&
          (host_sums || reads_gradient(op)))
        (host_sums && op.microbatch > 0 ? landing : host_gradient[op.bucket]) = o.buffer;
      if (op.role == OpRole::copy_out && host_sums && !o.write && kind == BufferKind::communication)
        gradient_ring.insert(o.buffer);
    }
    if (fetch && o.write && kind == BufferKind::communication) units.insert(o.buffer);
    if ((op.role == OpRole::grad_reduce || op.role == OpRole::grad_accumulate) &&
        kind == BufferKind::communication)
      gradient_ring.insert(o.buffer);
    if (op.role == OpRole::norm_partial && o.write) norm_buffer = o.buffer;
    if (op.role == OpRole::norm_reduce && o.write) norm_total = o.buffer;
  }
}

void StageFacts::index_parameters() {
  for (std::size_t i = 0; i < layout.parameters.size(); ++i) {
    const Parameter& p = layout.parameters[i];
    const bool outer = p.kind == ParameterKind::embedding || p.kind == ParameterKind::norm_final ||
                       p.kind == ParameterKind::head;
    by_site[{p.chunk, outer ? kNone16 : p.layer, gradient_writer(p.kind)}].push_back(i);
  }
  // A tied head on the embedding's own stage is the embedding.
  const auto last = static_cast<std::uint16_t>(graph.plan.pp * graph.plan.vp - 1);
  const auto embedding = by_site.find({0, kNone16, BlockKind::embedding});
  if (embedding == by_site.end() || stage != graph.plan.pp - 1 ||
      by_site.contains({last, kNone16, BlockKind::head}))
    return;
  shared_embedding = embedding->second.front();
  by_site[{last, kNone16, BlockKind::head}] = {*shared_embedding};
}

std::optional<std::size_t> StageFacts::bucket_of_gradient(BufferId buffer) const {
  const auto found = std::ranges::find(gradients, buffer);
  if (found == gradients.end()) return std::nullopt;
  return static_cast<std::size_t>(found - gradients.begin());
}

Interval StageFacts::gradient_span(std::int64_t begin, std::int64_t end) const {
  return {std::llround(gradient_bytes_ * static_cast<double>(begin)),
          std::llround(gradient_bytes_ * static_cast<double>(end))};
}

Interval StageFacts::parameter_span(std::int64_t begin, std::int64_t end) const {
  const auto bytes = static_cast<std::int64_t>(size_bytes(graph.training.parameter));
  return {begin * bytes, end * bytes};
}

bool StageFacts::is_fetch(const Op& op) const {
  return op.role == OpRole::param_gather ||
         (op.role == OpRole::copy_in && op.microbatch == kNone16 && graph.plan.parameter_offload);
}

bool StageFacts::reads_gradient(const Op& op) const {
  return std::ranges::any_of(graph.operands_of(op), [&](const Operand& o) {
    return !o.write && graph.buffers[o.buffer].kind == BufferKind::gradient;
  });
}

void StageFacts::touches(ProblemList& problems, OpId i, std::vector<Access> expected, bool among) const {
  std::vector<Access> found;
  for (const Operand& o : graph.operands_of(graph.ops[i]))
    found.push_back({o.buffer, o.write, {o.begin, o.end}});
  std::ranges::sort(found);
  std::ranges::sort(expected);
  const bool fits = among ? std::ranges::includes(found, expected) : found == expected;
  problems.require(fits, i, text(expected), [&] { return text(found); });
}

}  // namespace sextant::checks

#include "core/graph/checks/parameters.hpp"

#include <algorithm>

namespace sextant::checks {

ParameterCheck::ParameterCheck(const StageFacts& facts, ProblemList& problems)
    : facts_(facts),
      problems_(problems),
      buckets_(facts.n_buckets()),
      rest_(facts.rest),
      uses_(facts.layout.parameters.size()) {
  for (const BufferId b : facts_.optimizer) optimizer_[b] = 0;
  for (const BufferId b : facts_.units) units_[b] = {};
}

void ParameterCheck::count_use(std::size_t parameter, Pass pass) {
  if (pass == Pass::backward_input) pass = Pass::backward;
  ++uses_[parameter][static_cast<std::size_t>(pass)];
}

void ParameterCheck::use(OpId i, const Parameter& p, const Access& read) {
  const Op& op = facts_.graph.ops[i];
  State& s = buckets_[p.bucket];
  const Interval span = facts_.parameter_span(p.offset, p.offset + p.elements);
  s.first_use = std::min(s.first_use, i);
  if (!facts_.fetches) {
    if (s.home == kUnknown) {
      s.home = read.buffer;
      if (rest_[p.bucket] == kUnknown) rest_[p.bucket] = read.buffer;
    }
    problems_.require(read == Access{s.home, false, span}, i, text({{s.home, false, span}}),
                      [&] { return text({read}); });
    return;
  }
  problems_.require(read.span == span, i, text({{read.buffer, false, span}}), [&] { return text({read}); });
  Fetched& unit = units_[read.buffer];
  problems_.require(unit.bucket == p.bucket, i, fmt::format("a fetch of bucket {} before it", p.bucket),
                    [&] { return fmt::format("bucket {} in buffer {}", unit.bucket, read.buffer); });
  // A fetch serves one visit: forward, backward or weight half of one micro-batch, the embedding apart from a head tied to it.
  const int pass = op.pass == Pass::forward ? 0 : op.pass == Pass::backward_weight ? 2 : 1;
  const bool lookup = std::get<BlockWork>(facts_.graph.works[op.work]).kind == BlockKind::embedding;
  const int visit = (op.microbatch * 3 + pass) * 2 + (lookup ? 1 : 0);
  if (unit.visit < 0) unit.visit = visit;
  problems_.require(unit.visit == visit, i, "a fetch of its own", "the unit that an earlier visit fetched");
}

void ParameterCheck::bring_back(OpId i) {
  for (const Operand& o : facts_.graph.operands_of(facts_.graph.ops[i])) {
    if (!o.write || optimizer_.contains(o.buffer)) continue;
    const bool slice_at_rest =
        facts_.graph.buffers[o.buffer].kind == BufferKind::parameter || facts_.graph.plan.parameter_offload;
    if (slice_at_rest) updates_[o.buffer].push_back({{o.begin, o.end}, i});
  }
}

void ParameterCheck::update(OpId i) {
  const auto& work = std::get<StateWork>(facts_.graph.works[facts_.graph.ops[i].work]);
  (work.host ? host_elements_ : device_elements_) += work.elements;
  bool scaled = facts_.norm_total == kUnknown;
  for (const Operand& o : facts_.graph.operands_of(facts_.graph.ops[i])) {
    if (o.buffer == facts_.norm_total && !o.write) scaled = true;
    if (const auto b = facts_.bucket_of_gradient(o.buffer); b && !o.write && !facts_.host_sums)
      buckets_[*b].update_reads.push_back({o.begin, o.end});
    if (const auto state = optimizer_.find(o.buffer); state != optimizer_.end() && o.write)
      problems_.require(state->second++ == 0, i, "one update of each optimizer state", "a second one");
    if (work.host) host_touched_.insert({o.buffer, o.write});
  }
  problems_.require(scaled, i, "a read of the gradient norm", "none");
  bring_back(i);
}

void ParameterCheck::fetch(OpId i) {
  const Op& op = facts_.graph.ops[i];
  if (!problems_.require(op.bucket < buckets_.size(), i, fmt::format("a bucket of stage {}", facts_.stage),
                         op.bucket))
    return;
  State& s = buckets_[op.bucket];
  const BufferId rest = rest_[op.bucket];
  const Interval part = facts_.parameter_span(0, facts_.slice(op.bucket)),
                 all = facts_.parameter_span(0, facts_.bucket(op.bucket).elements);
  // What is copied from the host to be gathered is in the host's format.
  const bool staged_first = facts_.graph.plan.parameter_offload && facts_.layout.shards > 1;
  const Interval moved =
      staged_first ? Interval{0, facts_.slice(op.bucket) * fetched_bytes(facts_.graph.training, facts_.rules)}
                   : part;
  s.first_use = std::min(s.first_use, i);
  BufferId to = kUnknown, from = kUnknown;
  for (const Operand& o : facts_.graph.operands_of(op)) (o.write ? to : from) = o.buffer;
  if (op.role == OpRole::copy_in) {
    facts_.touches(problems_, i, {{rest, false, facts_.whole(rest)}, {to, true, moved}});
  } else if (facts_.fetches) {
    facts_.touches(problems_, i, {{from, false, moved}, {to, true, all}});
    if (const auto staged = units_.find(from); staged != units_.end()) {
      problems_.require(
          staged->second.bucket == op.bucket && staged->second.visit < 0, i,
          "its own slice copied in before it",
          [&] { return fmt::format("a copy of bucket {} for an earlier gather", staged->second.bucket); });
      staged->second.visit = 0;
    } else {
      problems_.require(from == rest, i, fmt::format("a read of buffer {}", rest), from);
    }
  } else {
    ++s.gathers;
    facts_.touches(problems_, i, {{rest, false, part}, {rest, true, all}});
  }
  if (const auto unit = units_.find(to); unit != units_.end()) unit->second = {op.bucket, -1};
}

// Every unit of the model runs once in every pass of every micro-batch.
void ParameterCheck::passes() {
  const int m = microbatches(facts_.graph.plan, facts_.graph.training);
  const auto ranges = layer_ranges(facts_.graph.plan, facts_.graph.model.n_layers);
  for (std::size_t p = 0; p < facts_.layout.parameters.size(); ++p) {
    const Parameter& parameter = facts_.layout.parameters[p];
    const BlockKind unit = gradient_writer(parameter.kind);
    const bool in_layer = unit != BlockKind::embedding && unit != BlockKind::head &&
                          parameter.kind != ParameterKind::norm_final;
    const int times = facts_.shared_embedding == p ? 2 * m : m;
    const bool again = in_layer && facts_.graph.plan.recompute.kind == RecomputeKind::full &&
                       (facts_.graph.plan.recompute.layers < 0 ||
                        parameter.layer - ranges[parameter.chunk].first < facts_.graph.plan.recompute.layers);
    const bool deferred = facts_.graph.plan.schedule == PipelineSchedule::zero_bubble &&
                          unit != BlockKind::norm && unit != BlockKind::qk_norm &&
                          unit != BlockKind::embedding;
    const std::pair<Pass, int> expected[] = {{Pass::forward, times},
                                             {Pass::recompute, again ? m : 0},
                                             {Pass::backward, times},
                                             {Pass::backward_weight, deferred ? m : 0}};
    for (const auto& [pass, n] : expected)
      if (const int found = uses_[p][static_cast<std::size_t>(pass)]; found != n)
        problems_.add(
            fmt::format("stage {} {}", facts_.stage, parameter_name(parameter.kind, parameter.layer)),
            fmt::format("{} uses in pass {}", found, name(pass)), fmt::format("{}", n));
  }
}

void ParameterCheck::totals() {
  const std::string where = fmt::format("stage {}", facts_.stage);
  std::int64_t device = 0, on_host = 0;
  std::size_t host_buckets = 0, host_states = 0;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    device += facts_.slice(b) - facts_.host(b);
    on_host += facts_.host(b);
    host_buckets += facts_.host(b) > 0 ? 1 : 0;
  }
  if (device_elements_ != device || host_elements_ != on_host)
    problems_.add(
        where,
        fmt::format("{} elements updated on the device, {} on the host", device_elements_, host_elements_),
        fmt::format("{} and {}", device, on_host));
  for (const auto& [buffer, updates] : optimizer_)
    if (updates != 1)
      problems_.add(where, fmt::format("{} updates of buffer {} (optimizer_state)", updates, buffer), "one");
  for (const auto& [buffer, write] : host_touched_)
    host_states += write && host_touched_.contains({buffer, false}) ? 1 : 0;
  if (host_states != host_buckets)
    problems_.add(where, fmt::format("optimizer state of {} buckets updated on the host", host_states),
                  fmt::format("{}", host_buckets));
}

// The spans cover `all` without gap or overlap.
void ParameterCheck::tiles(std::size_t b, std::vector<Interval> spans, Interval all, const char* what) {
  std::ranges::sort(spans);
  std::int64_t at = all.begin;
  bool whole_range = true;
  for (const Interval& span : spans) {
    whole_range = whole_range && span.begin == at;
    at = span.end;
  }
  if (whole_range && at == all.end) return;
  std::string found;
  for (const Interval& span : spans) found += fmt::format("[{}, {}) ", span.begin, span.end);
  problems_.add(facts_.bucket_name(b), fmt::format("{}: {}", what, found.empty() ? "none" : found),
                fmt::format("[{}, {}) exactly once", all.begin, all.end));
}

void ParameterCheck::finish() {
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    State& s = buckets_[b];
    const int again = gathers_every_microbatch(facts_.graph.plan, facts_.rules)
                          ? microbatches(facts_.graph.plan, facts_.graph.training)
                          : 1;
    const int gathers = !facts_.fetches && facts_.layout.shards > 1 ? again : 0;
    if (s.gathers != gathers)
      problems_.add(facts_.bucket_name(b), fmt::format("{} gathers of its parameters", s.gathers),
                    fmt::format("{}", gathers));
    for (const auto& [span, op] : updates_[rest_[b]]) {
      s.updated.push_back(span);
      problems_.require(op < s.first_use, op, "the update before the first use of its parameters",
                        [&] { return op_label(facts_.graph, s.first_use); });
    }
    tiles(b, s.updated, facts_.parameter_span(0, facts_.slice(b)), "updates of the owned slice");
    tiles(b, s.update_reads, facts_.gradient_span(0, facts_.slice(b) - facts_.host(b)),
          "gradients that the update reads");
    if (facts_.host(b) > 0 && !host_touched_.contains({facts_.host_gradient[b], false}))
      problems_.add(facts_.bucket_name(b), "no update on the host that reads its gradient", "one");
  }
  passes();
  totals();
}

}  // namespace sextant::checks

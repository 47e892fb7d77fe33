#include "core/graph/checks/gradients.hpp"

#include <algorithm>

namespace sextant::checks {
namespace {

constexpr std::string_view kNames[] = {"zero_grad",
                                       "gradients of all its parameters",
                                       "grad_accumulate of the head",
                                       "tied_reduce",
                                       "sp_reduce",
                                       "grad_reduce",
                                       "grad_replica_reduce",
                                       "grad_accumulate",
                                       "norm_partial",
                                       "copy_out to the host"};
std::string text(Event e) { return std::string(kNames[static_cast<std::size_t>(e)]); }

}  // namespace

GradientCheck::GradientCheck(const StageFacts& facts, ProblemList& problems)
    : facts_(facts),
      problems_(problems),
      microbatches_(microbatches(facts.graph.plan, facts.graph.training)),
      buckets_(facts.n_buckets()) {
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    if (!facts_.ring_gradients) buckets_[b].gradient = facts_.gradients[b];
    expect_events(b);
  }
}

void GradientCheck::expect_events(std::size_t b) {
  const bool hybrid = facts_.layout.shards > 1 && facts_.graph.plan.replicas() > facts_.layout.shards;
  const auto parameters = facts_.parameters_of(b);
  const bool over_tp = std::ranges::any_of(parameters, [&](const Parameter& p) {
    return is_summed_over_tp(p.kind, facts_.graph.model, facts_.graph.plan);
  });
  const bool ends = facts_.stage == 0 || facts_.stage == facts_.graph.plan.pp - 1;
  const bool tied = facts_.graph.model.tied_embeddings && facts_.graph.plan.pp > 1 && ends &&
                    std::ranges::any_of(parameters, [&](const Parameter& p) {
                      return p.kind == (facts_.stage == 0 ? ParameterKind::embedding : ParameterKind::head);
                    });
  std::vector<Event>& events = buckets_[b].events;
  const auto when = [&](bool holds, Event event) {
    if (holds) events.push_back(event);
  };
  const int rounds = facts_.ring_gradients ? microbatches_ : 1;
  for (int r = 0; r < rounds; ++r) {
    when((!facts_.ring_gradients && !facts_.rules.gradients_begin_written) || !gaps(b).empty(), Event::clear);
    events.push_back(Event::fill);
    when(facts_.joins(b), Event::join);
    when(tied && !facts_.ring_gradients, Event::tied);
    when(over_tp, Event::sp);
    when(facts_.graph.plan.replicas() > 1, Event::reduce);
    when(hybrid, Event::replica);
    when(facts_.host_sums, Event::to_host);
    when(facts_.ring_gradients && (!facts_.host_sums || r > 0), Event::accumulate);
  }
  when(tied && facts_.ring_gradients, Event::tied);
  when(facts_.rules.clip_gradients, Event::norm);
  when(facts_.host(b) > 0 && !facts_.host_sums, Event::to_host);
  begin_fill(b);
}

void GradientCheck::begin_fill(std::size_t b) {
  const int times = facts_.ring_gradients ? 1 : microbatches_;
  buckets_[b].missing.clear();
  for (std::size_t i = facts_.bucket(b).first; i < facts_.bucket(b).first + facts_.bucket(b).count; ++i)
    buckets_[b].missing.push_back(facts_.shared_embedding == i ? 2 * times : times);
}

// Padding between and behind the parameters, which nothing fills.
std::vector<Interval> GradientCheck::gaps(std::size_t b) const {
  std::vector<Interval> out;
  std::int64_t at = 0;
  for (const Parameter& p : facts_.parameters_of(b)) {
    if (p.offset > at) out.push_back(facts_.gradient_span(at, p.offset));
    at = p.offset + p.elements;
  }
  if (facts_.bucket(b).elements > at) out.push_back(facts_.gradient_span(at, facts_.bucket(b).elements));
  return out;
}

// The next thing that happens to bucket b is `event`, with these bytes.
void GradientCheck::happens(OpId i, std::size_t b, Event event) {
  if (!problems_.require(b < buckets_.size(), i, fmt::format("a bucket of stage {}", facts_.stage), b))
    return;
  State& s = buckets_[b];
  const bool expected = s.awaits(event);
  problems_.require(expected, i,
                    s.next < s.events.size() ? text(s.events[s.next]) : "nothing more in this step",
                    [&] { return fmt::format("{} of bucket {}", text(event), b); });
  if (!expected) return;
  ++s.next;
  if (event == Event::clear && facts_.ring_gradients)
    s.cleared = i;  // which of the ring's buffers is meant shows when it is filled
  else
    facts_.touches(problems_, i, accesses(b, event), event == Event::clear || event == Event::tied);
  if (event == Event::accumulate || (event == Event::to_host && facts_.host_sums && s.round == 0)) {
    ++s.round;
    s.gradient = kUnknown;
    begin_fill(b);
  }
}

std::vector<Access> GradientCheck::accesses(std::size_t b, Event event) const {
  const State& s = buckets_[b];
  const Interval owned = facts_.gradient_span(0, facts_.slice(b));
  const auto in_place = [](BufferId buffer, Interval span) {
    return std::vector<Access>{{buffer, false, span}, {buffer, true, span}};
  };
  std::vector<Access> out;
  switch (event) {
    case Event::clear:
      if (facts_.ring_gradients || facts_.rules.gradients_begin_written) {
        for (const Interval& gap : gaps(b))
          out.push_back({facts_.ring_gradients ? s.gradient : facts_.gradients[b], true, gap});
        return out;
      }
      out.push_back({facts_.gradients[b], true, facts_.whole(facts_.gradients[b])});
      if (facts_.joins(b)) out.push_back({facts_.head_gradient, true, facts_.whole(facts_.head_gradient)});
      return out;
    case Event::join:
      out = in_place(s.gradient, facts_.gradient_span(facts_.layout.parameters[*facts_.shared_embedding]));
      out.push_back({facts_.head_gradient, false, facts_.whole(facts_.head_gradient)});
      return out;
    case Event::tied:
      return in_place(facts_.gradients[b], facts_.whole(facts_.gradients[b]));
    case Event::sp:
      for (const Parameter& p : facts_.parameters_of(b))
        if (is_summed_over_tp(p.kind, facts_.graph.model, facts_.graph.plan))
          for (const Access& a : in_place(s.gradient, facts_.gradient_span(p))) out.push_back(a);
      return out;
    case Event::reduce:
      return {{s.gradient, false, facts_.gradient_span(0, facts_.bucket(b).elements)},
              {s.gradient, true, owned}};
    case Event::replica:
      return in_place(s.gradient, owned);
    case Event::accumulate:  // the first of the step replaces what the last step left
      if (facts_.host_sums) {
        out = in_place(facts_.host_gradient[b], facts_.whole(facts_.host_gradient[b]));
        out.push_back({facts_.landing, false, facts_.whole(facts_.host_gradient[b])});
        return out;
      }
      out = {{s.gradient, false, owned}, {facts_.gradients[b], true, owned}};
      if (s.round > 0) out.push_back({facts_.gradients[b], false, owned});
      return out;
    case Event::norm: {
      const auto at = static_cast<std::int64_t>(8 * b);
      return {{facts_.gradients[b], false, facts_.host_sums ? facts_.whole(facts_.gradients[b]) : owned},
              {facts_.norm_buffer, true, {at, at + 8}}};
    }
    case Event::to_host:
      if (facts_.host_sums) {
        const BufferId to = s.round == 0 ? facts_.host_gradient[b] : facts_.landing;
        return {{s.gradient, false, owned}, {to, true, facts_.whole(facts_.host_gradient[b])}};
      }
      return {{facts_.gradients[b], false,
               facts_.gradient_span(facts_.slice(b) - facts_.host(b), facts_.slice(b))},
              {facts_.host_gradient[b], true, facts_.whole(facts_.host_gradient[b])}};
    case Event::fill:
      break;
  }
  return out;
}

void GradientCheck::fill(OpId i, std::size_t index, bool head, const Access& write, bool adds) {
  const Parameter& p = facts_.layout.parameters[index];
  const std::size_t b = p.bucket;
  State& s = buckets_[b];
  const bool open = s.awaits(Event::fill);
  if (!problems_.require(open, i, fmt::format("bucket {} open for gradients", b),
                         "a bucket already reduced or not cleared"))
    return;
  if (s.gradient == kUnknown) {
    s.gradient = write.buffer;
    for (std::size_t o = 0; o < buckets_.size(); ++o)
      problems_.require(
          o == b || buckets_[o].gradient != write.buffer, i, "a free ring buffer for its bucket",
          [&] { return fmt::format("buffer {} with gradients of bucket {}", write.buffer, o); });
    if (!gaps(b).empty()) facts_.touches(problems_, s.cleared, accesses(b, Event::clear));
  }
  const Access expected = head && facts_.joins(b)
                              ? Access{facts_.head_gradient, true, facts_.whole(facts_.head_gradient)}
                              : Access{s.gradient, true, facts_.gradient_span(p)};
  problems_.require(write == expected, i, checks::text({expected}), [&] { return checks::text({write}); });
  int& missing = s.missing[index - facts_.bucket(b).first];
  problems_.require(missing > 0, i, "one gradient per parameter and micro-batch", "one more");
  // In a ring the first replaces what another bucket left; an embedding adds to what its head wrote. Resident gradients that
  // begin written are added to by all but the first.
  const bool again =
      facts_.rules.gradients_begin_written && !s.begun.emplace(write.buffer, write.span.begin).second;
  const bool second = facts_.ring_gradients ? facts_.shared_embedding == index && missing == 1 : again;
  problems_.require(adds == second, i, second ? "the gradient read, to add to it" : "no gradient read",
                    adds ? "it read" : "none");
  --missing;
  if (std::ranges::all_of(s.missing, [](int n) { return n <= 0; })) ++s.next;
}

void GradientCheck::norm_reduce(OpId i) {
  std::size_t partials = 0;
  for (const State& s : buckets_) partials += s.awaits(Event::norm) ? 1 : 0;
  problems_.require(partials == 0, i, "the norms of all buckets before it",
                    [&] { return fmt::format("{} missing", partials); });
  std::set<int> stages;
  for (const Operand& o : facts_.graph.operands_of(facts_.graph.ops[i]))
    if (!o.write && o.begin == 0 && o.end == facts_.graph.buffers[o.buffer].bytes)
      stages.insert(facts_.graph.buffers[o.buffer].stage);
  problems_.require(static_cast<int>(stages.size()) == facts_.graph.plan.pp, i, "the norms of all stages",
                    [&] { return fmt::format("those of {}", stages.size()); });
  ++norm_reduces_;
}

void GradientCheck::finish() {
  for (std::size_t b = 0; b < buckets_.size(); ++b)
    if (const State& s = buckets_[b]; s.next < s.events.size())
      problems_.add(facts_.bucket_name(b), "no " + text(s.events[s.next]), "it in every step");
  const int sums = facts_.rules.clip_gradients ? 1 : 0;
  if (norm_reduces_ != sums)
    problems_.add(fmt::format("stage {}", facts_.stage), fmt::format("{} norm_reduce", norm_reduces_),
                  fmt::format("{}", sums));
}

}  // namespace sextant::checks

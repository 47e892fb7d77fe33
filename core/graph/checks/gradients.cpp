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
    : f_(facts),
      problems_(problems),
      microbatches_(microbatches(facts.graph.plan, facts.graph.training)),
      buckets_(facts.n_buckets()) {
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    if (!f_.ring_gradients) buckets_[b].gradient = f_.gradients[b];
    expect_events(b);
  }
}

void GradientCheck::expect_events(std::size_t b) {
  const bool hybrid = f_.layout.shards > 1 && f_.graph.plan.replicas() > f_.layout.shards;
  const auto parameters = f_.parameters_of(b);
  const bool over_tp = std::ranges::any_of(parameters, [&](const Parameter& p) {
    return is_summed_over_tp(p.kind, f_.graph.model, f_.graph.plan);
  });
  const bool ends = f_.stage == 0 || f_.stage == f_.graph.plan.pp - 1;
  const bool tied = f_.graph.model.tied_embeddings && f_.graph.plan.pp > 1 && ends &&
                    std::ranges::any_of(parameters, [&](const Parameter& p) {
                      return p.kind == (f_.stage == 0 ? ParameterKind::embedding : ParameterKind::head);
                    });
  std::vector<Event>& events = buckets_[b].events;
  const auto when = [&](bool holds, Event event) {
    if (holds) events.push_back(event);
  };
  const int rounds = f_.ring_gradients ? microbatches_ : 1;
  for (int r = 0; r < rounds; ++r) {
    when((!f_.ring_gradients && !f_.rules.gradients_begin_written) || !gaps(b).empty(), Event::clear);
    events.push_back(Event::fill);
    when(f_.joins(b), Event::join);
    when(tied && !f_.ring_gradients, Event::tied);
    when(over_tp, Event::sp);
    when(f_.graph.plan.replicas() > 1, Event::reduce);
    when(hybrid, Event::replica);
    when(f_.host_sums, Event::to_host);
    when(f_.ring_gradients && (!f_.host_sums || r > 0), Event::accumulate);
  }
  when(tied && f_.ring_gradients, Event::tied);
  when(f_.rules.clip_gradients, Event::norm);
  when(f_.host(b) > 0 && !f_.host_sums, Event::to_host);
  begin_fill(b);
}

void GradientCheck::begin_fill(std::size_t b) {
  const int times = f_.ring_gradients ? 1 : microbatches_;
  buckets_[b].missing.clear();
  for (std::size_t i = f_.bucket(b).first; i < f_.bucket(b).first + f_.bucket(b).count; ++i)
    buckets_[b].missing.push_back(f_.shared_embedding == i ? 2 * times : times);
}

// Padding between and behind the parameters, which nothing fills.
std::vector<Interval> GradientCheck::gaps(std::size_t b) const {
  std::vector<Interval> out;
  std::int64_t at = 0;
  for (const Parameter& p : f_.parameters_of(b)) {
    if (p.offset > at) out.push_back(f_.gradient_span(at, p.offset));
    at = p.offset + p.elements;
  }
  if (f_.bucket(b).elements > at) out.push_back(f_.gradient_span(at, f_.bucket(b).elements));
  return out;
}

// The next thing that happens to bucket b is `event`, with these bytes.
void GradientCheck::happens(OpId i, std::size_t b, Event event) {
  if (!problems_.require(b < buckets_.size(), i, fmt::format("a bucket of stage {}", f_.stage), b)) return;
  State& s = buckets_[b];
  const bool expected = s.awaits(event);
  problems_.require(expected, i,
                    s.next < s.events.size() ? text(s.events[s.next]) : "nothing more in this step",
                    [&] { return fmt::format("{} of bucket {}", text(event), b); });
  if (!expected) return;
  ++s.next;
  if (event == Event::clear && f_.ring_gradients)
    s.cleared = i;  // which of the ring's buffers is meant shows when it is filled
  else
    f_.touches(problems_, i, accesses(b, event), event == Event::clear || event == Event::tied);
  if (event == Event::accumulate || (event == Event::to_host && f_.host_sums && s.round == 0)) {
    ++s.round;
    s.gradient = kUnknown;
    begin_fill(b);
  }
}

std::vector<Access> GradientCheck::accesses(std::size_t b, Event event) const {
  const State& s = buckets_[b];
  const Interval owned = f_.gradient_span(0, f_.slice(b));
  const auto in_place = [](BufferId buffer, Interval span) {
    return std::vector<Access>{{buffer, false, span}, {buffer, true, span}};
  };
  std::vector<Access> out;
  switch (event) {
    case Event::clear:
      if (f_.ring_gradients || f_.rules.gradients_begin_written) {
        for (const Interval& gap : gaps(b))
          out.push_back({f_.ring_gradients ? s.gradient : f_.gradients[b], true, gap});
        return out;
      }
      out.push_back({f_.gradients[b], true, f_.whole(f_.gradients[b])});
      if (f_.joins(b)) out.push_back({f_.head_gradient, true, f_.whole(f_.head_gradient)});
      return out;
    case Event::join:
      out = in_place(s.gradient, f_.gradient_span(f_.layout.parameters[*f_.shared_embedding]));
      out.push_back({f_.head_gradient, false, f_.whole(f_.head_gradient)});
      return out;
    case Event::tied:
      return in_place(f_.gradients[b], f_.whole(f_.gradients[b]));
    case Event::sp:
      for (const Parameter& p : f_.parameters_of(b))
        if (is_summed_over_tp(p.kind, f_.graph.model, f_.graph.plan))
          for (const Access& a : in_place(s.gradient, f_.gradient_span(p))) out.push_back(a);
      return out;
    case Event::reduce:
      return {{s.gradient, false, f_.gradient_span(0, f_.bucket(b).elements)}, {s.gradient, true, owned}};
    case Event::replica:
      return in_place(s.gradient, owned);
    case Event::accumulate:  // the first of the step replaces what the last step left
      if (f_.host_sums) {
        out = in_place(f_.host_gradient[b], f_.whole(f_.host_gradient[b]));
        out.push_back({f_.landing, false, f_.whole(f_.host_gradient[b])});
        return out;
      }
      out = {{s.gradient, false, owned}, {f_.gradients[b], true, owned}};
      if (s.round > 0) out.push_back({f_.gradients[b], false, owned});
      return out;
    case Event::norm: {
      const auto at = static_cast<std::int64_t>(8 * b);
      return {{f_.gradients[b], false, f_.host_sums ? f_.whole(f_.gradients[b]) : owned},
              {f_.norm_buffer, true, {at, at + 8}}};
    }
    case Event::to_host:
      if (f_.host_sums) {
        const BufferId to = s.round == 0 ? f_.host_gradient[b] : f_.landing;
        return {{s.gradient, false, owned}, {to, true, f_.whole(f_.host_gradient[b])}};
      }
      return {{f_.gradients[b], false, f_.gradient_span(f_.slice(b) - f_.host(b), f_.slice(b))},
              {f_.host_gradient[b], true, f_.whole(f_.host_gradient[b])}};
    case Event::fill:
      break;
  }
  return out;
}

void GradientCheck::fill(OpId i, std::size_t index, bool head, const Access& write, bool adds) {
  const Parameter& p = f_.layout.parameters[index];
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
    if (!gaps(b).empty()) f_.touches(problems_, s.cleared, accesses(b, Event::clear));
  }
  const Access expected = head && f_.joins(b) ? Access{f_.head_gradient, true, f_.whole(f_.head_gradient)}
                                              : Access{s.gradient, true, f_.gradient_span(p)};
  problems_.require(write == expected, i, checks::text({expected}), [&] { return checks::text({write}); });
  int& missing = s.missing[index - f_.bucket(b).first];
  problems_.require(missing > 0, i, "one gradient per parameter and micro-batch", "one more");
  // In a ring the first replaces what another bucket left; an embedding adds to what its head wrote. Resident gradients that
  // begin written are added to by all but the first.
  const bool again =
      f_.rules.gradients_begin_written && !s.begun.emplace(write.buffer, write.span.begin).second;
  const bool second = f_.ring_gradients ? f_.shared_embedding == index && missing == 1 : again;
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
  for (const Operand& o : f_.graph.operands_of(f_.graph.ops[i]))
    if (!o.write && o.begin == 0 && o.end == f_.graph.buffers[o.buffer].bytes)
      stages.insert(f_.graph.buffers[o.buffer].stage);
  problems_.require(static_cast<int>(stages.size()) == f_.graph.plan.pp, i, "the norms of all stages",
                    [&] { return fmt::format("those of {}", stages.size()); });
  ++norm_reduces_;
}

void GradientCheck::finish() {
  for (std::size_t b = 0; b < buckets_.size(); ++b)
    if (const State& s = buckets_[b]; s.next < s.events.size())
      problems_.add(f_.bucket_name(b), "no " + text(s.events[s.next]), "it in every step");
  const int sums = f_.rules.clip_gradients ? 1 : 0;
  if (norm_reduces_ != sums)
    problems_.add(fmt::format("stage {}", f_.stage), fmt::format("{} norm_reduce", norm_reduces_),
                  fmt::format("{}", sums));
}

}  // namespace sextant::checks

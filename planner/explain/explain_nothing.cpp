// When nothing fits, or nothing can: why.
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include <fmt/format.h>

#include "planner/answers/lowest_memory.hpp"
#include "planner/explain/explain.hpp"
#include "planner/search/search_budget.hpp"

namespace sextant {
namespace {

// Nothing where some setting of the other fields lets the stack run a layout with this value; otherwise what it says of
// the one that it has least against.
template <class F>
std::string refused_whatever(const Job& job, F set) {
  std::string least;
  for (const int zero : job.stack.can.zero_stages)
    for (const bool overlap : {true, false})
      for (const int tp : {1, 2})
        for (const int pp : {1, 2})
          // Nothing on the host, the optimizer state, and parameters as well; of two replicas and of one.
          for (const int host : {0, 1, 2, 3, 4, 5}) {
            ParallelPlan p;
            p.dp = host < 3 ? 2 : 1;
            p.tp = tp;
            p.pp = pp;
            p.zero_stage = zero;
            p.micro_batch =
                std::max(1, job.training.global_batch / p.dp);  // all of it: nothing is said of it here
            p.sequence_parallel = tp > 1;
            p.optimizer_offload = host % 3 > 0 ? 1 : 0;
            p.parameter_offload = host % 3 > 1;
            p.overlap_grad_reduce = p.overlap_param_gather = overlap;
            set(p);
            const auto r = refuses(job.stack, p, job.model, job.training);
            if (!r) return "";
            if (host == 0 && (least.empty() || r->text.size() < least.size())) least = r->text;
          }
  return least;
}

// What the stack says where it takes each value of the limits, and none beside those of another field: of tensor and
// sequence parallelism, and of what is sharded and left on the host beside pipeline stages.
std::optional<std::string> refused_together(const Job& job, const SearchSpace& space) {
  std::string text;
  const auto allowed = [&](auto set) {
    const std::string refusal = refused_whatever(job, set);
    if (text.empty() || refusal.size() < text.size()) text = refusal;
    return refusal.empty();
  };
  const auto any_tp = [&] {
    for (const int tp : space.tp)
      for (const bool sp : space.sequence_parallel)
        for (const bool tiled : space.overlap_tp)
          if (tp > 1 || (!sp && !tiled))
            if (allowed([&](ParallelPlan& p) {
                  p.tp = tp;
                  p.sequence_parallel = sp;
                  p.overlap_tp = tiled;
                }))
              return true;
    return text.empty();
  };
  if (!any_tp()) return text;
  text.clear();
  std::vector<int> stages = space.zero_stage;
  std::erase_if(stages, [&](int zero) { return std::ranges::count(job.stack.can.zero_stages, zero) == 0; });
  for (const int zero : stages)
    for (const double optimizer : space.optimizer_offload)
      for (const bool parameters : space.parameter_offload)
        for (const int pp : space.pp)
          if (allowed([&](ParallelPlan& p) {
                p.pp = pp;
                p.zero_stage = zero;
                p.optimizer_offload = optimizer;
                p.parameter_offload = parameters;
              }))
            return std::nullopt;
  return text.empty() ? std::nullopt : std::optional(text);
}

// A field of which the limits leave no value.
std::optional<std::string> left_without(const Job& job, const SearchSpace& space) {
  const SearchSpace whole = default_space(job.model, job.training, job.cluster.device, space.world);
  const auto none_left = [&](const char* field, std::size_t left) {
    return left > 0 ? std::nullopt
                    : std::optional(fmt::format("the limits {} leave no value of {} to look at",
                                                to_string(space.limits), field));
  };
  const auto none_of = [&](const char* field, const std::vector<int>& left, const std::vector<int>& known) {
    auto text = none_left(field, left.size());
    if (text) *text += fmt::format(" (known here: {})", fmt::join(known, ", "));
    return text;
  };
  const auto none_of_layers = [&](const char* field, std::size_t left) {
    auto text = none_left(field, left);
    if (text) *text += fmt::format(" (the model has {} layers)", space.n_layers);
    return text;
  };
  for (const auto& found :
       {none_of("tp", space.tp, whole.tp), none_of("cp", space.cp, whole.cp),
        none_of("pp", space.pp, whole.pp), none_of("mbs", space.micro_batch, whole.micro_batch),
        none_of("z", space.zero_stage, whole.zero_stage), none_left("sp", space.sequence_parallel.size()),
        none_of_layers("rec and rk", space.recompute.size()),
        none_of_layers("schedule and vp", space.form.size()), none_left("oo", space.optimizer_offload.size()),
        none_left("po", space.parameter_offload.size()),
        none_of_layers("ao and hz", space.activation_offload.size()),
        none_left("b", space.bucket_elements.size()), none_left("lb", space.last_bucket_split.size()),
        none_left("gr", space.overlap_grad_reduce.size()), none_left("pg", space.overlap_param_gather.size()),
        none_left("tpo", space.overlap_tp.size()), none_left("ax", space.axis_order.size()),
        none_left("split", space.split.size())})
    if (found) return found;
  return std::nullopt;
}

// A field none of whose values the stack takes, whatever the others are.
std::optional<std::string> refused_alone(const Job& job, const SearchSpace& space) {
  // Some stacks keep activations on the host only beside full recomputation.
  const auto full = job.stack.can.activation_offload_needs_recompute
                        ? std::ranges::find(space.recompute, RecomputeKind::full, &Recompute::kind)
                        : space.recompute.end();
  // A list without its harmless value was narrowed: does the stack take any of it?
  const auto refused = [&](const auto& list, const auto& harmless, auto set) -> std::optional<std::string> {
    if (std::find(list.begin(), list.end(), harmless) != list.end()) return std::nullopt;
    std::string text;
    for (const auto& value : list) {
      text = refused_whatever(job, [&](ParallelPlan& p) { set(p, value); });
      if (text.empty()) return std::nullopt;
    }
    return text;
  };
  for (const auto& found :
       {refused(space.form, PipelineForm{},
                [](ParallelPlan&p, const PipelineForm&f) {
                  p.pp = std::max(2, p.pp);
                  p.schedule = f.schedule;
                  p.vp = f.vp;
                }),
        refused(space.zero_stage, 0, [](ParallelPlan&p, int z) { p.zero_stage = z; }),
        refused(space.recompute, Recompute{}, [](ParallelPlan&p, const Recompute&r) { p.recompute = r; }),
        refused(space.optimizer_offload, 0.0, [](ParallelPlan&p, double x) { p.optimizer_offload = x; }),
        refused(space.parameter_offload, std::uint8_t{0},
                [](ParallelPlan&p, bool on) { p.parameter_offload = on; }),
        refused(space.activation_offload, ActivationOffload{},
                [&](ParallelPlan&p, const ActivationOffload&a) {
                  p.activation_offload = a.of_chunk(space.n_layers);
                  p.offload_horizon = a.horizon;
                  if (a.layers > 0 && full != space.recompute.end()) p.recompute = *full;
                }),
        refused(space.bucket_elements, std::int64_t{0},
                [](ParallelPlan&p, std::int64_t b) { p.bucket_elements = b; }),
        refused(space.last_bucket_split, 1, [](ParallelPlan&p, int n) { p.last_bucket_split = n; }),
        refused(space.overlap_tp, std::uint8_t{0}, [](ParallelPlan&p, bool on) {
          p.tp = std::max(2, p.tp);
          p.overlap_tp = on;
        })})
    if (found) return found;
  return std::nullopt;
}

}  // namespace

std::optional<std::string> never_possible(const Job& job, const SearchSpace& space) {
  if (auto left = left_without(job, space)) return left;
  if (auto together = refused_together(job, space)) return together;
  return refused_alone(job, space);
}

namespace {

// A field none of whose values divides what it must, whatever the others are.
std::optional<std::string> divides_nothing(const Job& job, const SearchSpace& space) {
  const auto none = [](const char* field, const std::vector<int>& values, int whole, const char* of) {
    const bool some = std::ranges::any_of(values, [&](int value) { return whole % value == 0; });
    return some ? std::nullopt
                : std::optional(fmt::format("{} is {}, expected a divisor of the {} {}", field,
                                            fmt::join(values, ", "), whole, of));
  };
  for (const auto& found :
       {none("tp", space.tp, space.world, "GPUs"), none("cp", space.cp, space.world, "GPUs"),
        none("pp", space.pp, space.world, "GPUs"), none("tp", space.tp, job.model.n_heads, "attention heads"),
        none("tp", space.tp, job.model.ffn_hidden, "columns of the MLP"),
        none("mbs", space.micro_batch, job.training.global_batch, "sequences of a step")})
    if (found) return found;
  return std::nullopt;
}

// What several fields make together.
struct Products {
  std::set<std::int64_t> ranks, sequences;              // tp * cp * pp; mbs * dp
  bool divides = false, fills = false, shared = false;  // the GPUs; with a dp within the limits; the batch
};
Products products_of(const Job& job, const SearchSpace& space) {
  Products made;
  for (const int tp : space.tp)
    for (const int cp : space.cp)
      for (const int pp : space.pp) {
        const std::int64_t own = std::int64_t{tp} * cp * pp;
        made.ranks.insert(own);
        if (own > space.world || space.world % own != 0) continue;
        made.divides = true;
        const auto dp = static_cast<int>(space.world / own);
        if (!space.limits.admits(PlanField::dp, dp)) continue;
        made.fills = true;
        for (const int mbs : space.micro_batch) {
          made.sequences.insert(std::int64_t{mbs} * dp);
          made.shared = made.shared || job.training.global_batch % (std::int64_t{mbs} * dp) == 0;
        }
      }
  return made;
}

std::string first_of(const std::set<std::int64_t>& values) {
  constexpr std::size_t kShown = 4;
  std::vector<std::string> words;
  for (const std::int64_t value : values)
    if (words.size() < kShown) words.push_back(fmt::format("{}", value));
  if (values.size() > kShown) words.emplace_back("...");
  return fmt::format("{}", fmt::join(words, ", "));
}

// No tp * cp * pp leaves a dp within the limits.
std::string no_dp_fills(const SearchSpace& space, const std::set<std::int64_t>& ranks) {
  bool any_dp = false;
  for (int dp = 1; dp <= space.world; ++dp)
    any_dp = any_dp || (space.world % dp == 0 && space.limits.admits(PlanField::dp, dp));
  if (!any_dp) return fmt::format("no divisor of the {} GPUs is a dp within the limits", space.world);
  const auto pinned = std::ranges::find_if(space.limits.limits, [](const PlanLimit& limit) {
    return limit.field == PlanField::dp && limit.relation == Relation::equal;
  });
  if (pinned != space.limits.limits.end()) {
    std::set<std::int64_t> made;
    for (const std::int64_t own : ranks) made.insert(own * static_cast<std::int64_t>(pinned->value));
    return fmt::format("tp * cp * pp * dp is {}, expected the {} GPUs", first_of(made), space.world);
  }
  return fmt::format("no dp within the limits makes the {} GPUs of tp * cp * pp * dp", space.world);
}

// What the values of one field, or the products of several, never divide; empty where that is no reason.
std::string never_divides(const Job& job, const SearchSpace& space) {
  if (space.size() == 0) return "";
  if (const auto alone = divides_nothing(job, space)) return *alone;
  const auto least = [](const std::vector<int>& values) { return *std::ranges::min_element(values); };
  if (const std::int64_t fewest = std::int64_t{least(space.tp)} * least(space.cp) * least(space.pp);
      fewest > space.world)
    return fmt::format("tp * cp * pp is at least {}, and there are {} GPUs", fewest, space.world);
  const Products made = products_of(job, space);
  if (!made.divides)
    return fmt::format("tp * cp * pp is {}, expected a divisor of the {} GPUs", first_of(made.ranks),
                       space.world);
  if (made.fills && !made.shared)
    return fmt::format("mbs * dp is {}, expected a divisor of the {} sequences of a step",
                       first_of(made.sequences), job.training.global_batch);
  const int vp = std::ranges::min_element(space.form, {}, &PipelineForm::vp)->vp;
  const int n = job.model.n_layers, most = most_chunks(space, job.stack.can.uneven_stages, n);
  if (const std::int64_t chunks = std::int64_t{least(space.pp)} * vp; chunks > most)
    return fmt::format("pp * vp is at least {}, and there are {} layers{}", chunks, n,
                       most > n ? ", embedding and head" : "");
  return made.fills ? "" : no_dp_fills(space, made.ranks);
}

// The stack alone fills a device. That is said of the device itself: a limit of the user's is no reason why no model fits.
bool is_filled_by_stack(const Job& job, int world, NothingFits& n) {
  const Bytes device = job.cluster.device.memory, outside = outside_of(job.stack.memory, world);
  if (outside < device) return false;
  n.beside_stack = true;
  n.cause = fmt::format(
      "{} itself takes {:.1f} GiB of each device (context, NCCL, libraries), of the {:.1f} that there are: "
      "no model fits, however many devices there are",
      job.stack.name, gib(outside), gib(device));
  n.lines.push_back(n.cause);
  return true;
}

// What the layout of the least memory needs, or why there is none.
void say_closest(const Job& job, const SearchSpace& space, const LowestMemoryLayout& lean, NothingFits& n) {
  n.closest = lean.plan;
  n.needed = lean.peak;
  if (n.closest)
    n.step = predict(job, *n.closest).step;
  else if (lean.exact)
    n.cause = never_divides(job, space);
  if (n.closest)
    n.lines.push_back(fmt::format(
        "smallest change: GPUs of {:.1f} GiB instead of {:.1f}, for {}{}; {:.3f} s a step", gib(n.needed),
        gib(n.available), plan_key(*n.closest), lean.exact ? "" : " (less may do)", n.step.v));
  else if (lean.exact)
    n.lines.push_back(fmt::format("no layout{} is possible, whatever the memory{}",
                                  space.limits.limits.empty() ? "" : " within " + to_string(space.limits),
                                  n.cause.empty() ? "" : ": " + n.cause));
  else
    n.lines.push_back("what would fit was not found in time");
}

void say_fewest(int most_gpus, NothingFits& n) {
  const std::string untold =
      n.fewest.exact ? ""
      : n.fewest.in_time
          ? fmt::format(" (every number up to {} was tried, then whole nodes)", n.fewest.every_to)
          : " (the search was stopped early: fewer may do)";
  if (!n.fewest.found && !n.fewest.in_time)
    n.lines.push_back(fmt::format(
        "the search for the fewest GPUs was stopped early: up to {} do not do, of more it is not known",
        n.fewest.next_smaller));
  else
    n.lines.push_back(n.fewest.found
                          ? fmt::format("fewest GPUs: {}, with {}; {:.3f} s a step{}", n.fewest.found->gpus,
                                        plan_key(n.fewest.found->report.ranked.front().plan),
                                        n.fewest.found->report.ranked.front().prediction.step.v, untold)
                          : fmt::format("it does not fit on {} GPUs either{}", most_gpus, untold));
}

}  // namespace

NothingFits why_nothing_fits(const Job& job, const SearchSpace& space, int most_gpus,
                             const SearchOptions& options) {
  const SearchBudget budget(options);
  NothingFits n;
  n.available = options.memory_limit.value_or(job.cluster.device.memory);
  if (is_filled_by_stack(job, space.world, n)) return n;
  SearchOptions any_memory = budget.next();
  any_memory.memory_limit = Bytes(std::numeric_limits<std::int64_t>::max());
  say_closest(job, space, lowest_memory_layout(job, space, any_memory), n);
  if (budget.over()) return n;
  const int gpus = job.cluster.gpus();
  n.fewest = fewest_gpus(job, std::nullopt, most_gpus, space.limits, budget.next());
  if (n.closest || (n.fewest.found && n.fewest.found->gpus > gpus)) say_fewest(most_gpus, n);
  if (!n.fewest.found || n.fewest.found->gpus >= gpus || budget.over()) return n;
  n.fewer_gpus = faster_on_fewer(job, Seconds(INFINITY), space.limits, budget.next());
  if (n.fewer_gpus) {
    const RankedPlan& fastest = n.fewer_gpus->report.ranked.front();
    n.lines.push_back(fmt::format("{} of the {} GPUs do: {:.3f} s a step with {}", n.fewer_gpus->gpus, gpus,
                                  fastest.prediction.step.v, plan_key(fastest.plan)));
  }
  return n;
}

}  // namespace sextant

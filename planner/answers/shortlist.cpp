#include "planner/answers/shortlist.hpp"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "core/base/file_io.hpp"
#include "core/base/json_io.hpp"
#include "planner/search/search.hpp"
#include "planner/search/search_budget.hpp"
#include "planner/search/search_space.hpp"
#include "planner/simulation/stage_memory.hpp"

namespace sextant {

namespace {

constexpr auto kTriedFields = [](auto& io, auto& t) {
  io.optional("measured_step_s", t.measured_step_s, above(0));
  io.required("plan_file", t.plan);
};
constexpr auto kShortlist = [](auto& io, auto& s) {
  io.required("schema", s.schema);
  io.required("plans", s.plans);
};

// Another way to split model and state.
bool other_kind(const ParallelPlan& a, const ParallelPlan& b) {
  return a.tp != b.tp || a.pp != b.pp || a.zero_stage != b.zero_stage;
}

double half_width(const Prediction& p) { return p.step_upper / p.step - 1; }

bool reaches(const Prediction& p, const Prediction& best) { return p.step_lower <= best.step; }

}  // namespace

bool known_better(const Prediction& p, const Prediction& than) {
  constexpr double kBetter = 1.8;
  return kBetter * half_width(p) <= half_width(than);
}

int distance(const ParallelPlan& a, const ParallelPlan& b) {
  return 2 * ((a.tp != b.tp) + (a.pp != b.pp) + (a.zero_stage != b.zero_stage)) + (a.cp != b.cp) +
         (a.vp != b.vp) + (a.micro_batch != b.micro_batch) + (a.schedule != b.schedule) +
         (a.recompute.kind != b.recompute.kind) +
         (a.optimizer_offload != b.optimizer_offload || a.activation_offload != b.activation_offload);
}

bool roomier(const RankedPlan& a, const RankedPlan& than) {
  constexpr double kPeak = 0.9;
  const Prediction &mine = a.prediction, &other = than.prediction;
  return gib(mine.memory.peak) <= kPeak * gib(other.memory.peak) ||
         (other.chance_of_overflow >= kSurelyFits &&
          mine.chance_of_overflow <= 0.5 * other.chance_of_overflow);
}

std::vector<RankedPlan> other_kinds(const Job& job, const PlanLimits& limits, const RankedPlan& best,
                                    const SearchOptions& options) {
  const SearchBudget budget(options);
  std::vector<RankedPlan> out;
  const auto ask = [&](const PlanLimits& within, std::optional<Bytes> memory) {
    if (budget.over()) return;
    const SearchSpace space =
        default_space(job.model, job.training, job.cluster.device, best.plan.world(), within);
    if (space.size() == 0) return;  // pinned
    SearchOptions how = budget.next();
    how.top = 1;
    how.memory_limit = memory;
    how.at_most = best.simulated * (best.prediction.step_upper / best.prediction.step);
    const SearchReport report = search(job, space, how);
    for (const RankedPlan& r : report.ranked)
      if (reaches(r.prediction, best.prediction)) out.push_back(r);
  };
  for (const PlanField field : {PlanField::tp, PlanField::pp, PlanField::zero_stage}) {
    PlanLimits other = limits;
    other.limits.push_back({field, Relation::not_equal, field_value(best.plan, field)});
    ask(other, options.memory_limit);
  }
  ask(limits, Bytes(best.prediction.memory.peak.v / 10 * 9));
  return out;
}

std::vector<std::size_t> shortlist(std::span<const RankedPlan> ranked, int count) {
  constexpr int kFar = 3;
  std::vector<std::size_t> chosen;
  const auto apart = [&](std::size_t i, int least) {
    return std::all_of(chosen.begin(), chosen.end(), [&](std::size_t c) {
      const ParallelPlan &a = ranked[c].plan, &b = ranked[i].plan;
      return distance(a, b) >= least && (least < kFar || other_kind(a, b));
    });
  };
  for (const int least : {kFar, 2, 1})  // near copies only where nothing else is left
    for (std::size_t i = 0; i < ranked.size() && static_cast<int>(chosen.size()) < count; ++i)
      if (reaches(ranked[i].prediction, ranked.front().prediction) && apart(i, least)) chosen.push_back(i);
  const auto roomy = [&](std::size_t i) { return roomier(ranked[i], ranked.front()); };
  if (chosen.size() > 1 && std::none_of(chosen.begin(), chosen.end(), roomy)) {
    const std::size_t last = chosen.back();
    chosen.pop_back();
    std::size_t i = 0;
    while (i < ranked.size() &&
           !(roomy(i) && reaches(ranked[i].prediction, ranked.front().prediction) && apart(i, 1)))
      ++i;
    chosen.push_back(i < ranked.size() ? i : last);
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

std::optional<std::size_t> lower_risk_tie(std::span<const RankedPlan> ranked) {
  std::optional<std::size_t> surest;
  for (std::size_t i = 1; i < ranked.size(); ++i) {
    const double mine = half_width(ranked[i].prediction);
    if (!ranked[i].tie || !known_better(ranked[i].prediction, ranked.front().prediction)) continue;
    if (!surest || mine < half_width(ranked[*surest].prediction)) surest = i;
  }
  return surest;
}

namespace {

// The most memory that leaves room.
Bytes roomy(Bytes capacity, const StackSpec& stack) {
  const Bytes most = most_needed(capacity, kSurelyFits, overflow_scale(stack));
  return stack.memory.exact_tensors ? most : std::min(Bytes(capacity.v / 10 * 9), most);
}

bool lower_risk(const Prediction& p, const Prediction& than) {
  constexpr double kRounding = 1e-9;
  const double mine = half_width(p), other = half_width(than);
  return known_better(p, than) ||
         (p.chance_of_overflow < kSurelyFits && than.chance_of_overflow >= 2 * kSurelyFits &&
          mine <= (1 + kRounding) * other);
}

}  // namespace

std::optional<RankedPlan> lower_risk_plan(const Job& job, const PlanLimits& limits,
                                          std::span<const RankedPlan> ranked, const SearchOptions& options) {
  if (ranked.empty()) return std::nullopt;
  const RankedPlan& first = ranked.front();
  const SearchBudget budget(options);
  const auto ask = [&](std::initializer_list<PlanLimit> kind) -> std::optional<RankedPlan> {
    PlanLimits within = limits;
    within.limits.insert(within.limits.end(), kind);
    const SearchSpace space =
        default_space(job.model, job.training, job.cluster.device, first.plan.world(), within);
    if (budget.over() || space.size() == 0) return std::nullopt;
    SearchOptions how = budget.next();
    const Bytes limit = roomy(first.prediction.memory_available, job.stack);
    how.memory_limit = std::min(limit, options.memory_limit.value_or(limit));
    how.at_most = first.simulated * (1 + options.tie_share);
    const SearchReport report = search(job, space, how);
    if (report.ranked.empty()) return std::nullopt;
    RankedPlan found = report.ranked.front();
    found.slower = found.prediction.step / first.prediction.step - 1;
    found.tie = found.slower < options.tie_share;
    return found.tie && lower_risk(found.prediction, first.prediction) ? std::optional(found) : std::nullopt;
  };
  const UncertaintyClass uncertainty = first.prediction.uncertainty;
  if (uncertainty == UncertaintyClass::offload || uncertainty == UncertaintyClass::near_full ||
      uncertainty == UncertaintyClass::tp_crosses || first.prediction.chance_of_overflow >= kSurelyFits) {
    const PlanLimit on_fast_links{PlanField::tp, Relation::less_equal,
                                  static_cast<double>(job.cluster.node.gpus * job.cluster.node.domain_nodes)};
    if (auto found = ask({{PlanField::optimizer_offload, Relation::equal, 0},
                          {PlanField::parameter_offload, Relation::equal, 0},
                          {PlanField::activation_offload, Relation::equal, 0},
                          on_fast_links}))
      return found;
    // Elsewhere what offloads or is nearly full is no less risk.
    if (uncertainty == UncertaintyClass::tp_crosses)
      if (auto found = ask({on_fast_links})) return found;
    const auto as_first = [&](PlanField field) {
      return PlanLimit{field, Relation::equal, field_value(first.plan, field)};
    };
    if (first.prediction.chance_of_overflow >= kSurelyFits)
      if (auto found = ask({as_first(PlanField::tp), as_first(PlanField::cp), as_first(PlanField::pp)}))
        return found;
  }
  const auto tie = lower_risk_tie(ranked);
  return tie ? std::optional(ranked[*tie]) : std::nullopt;
}

PlanLimits told_apart(const ParallelPlan& lower_risk, const ParallelPlan& first) {
  PlanLimits out;
  for (const PlanField field :
       {PlanField::tp, PlanField::cp, PlanField::pp, PlanField::vp, PlanField::zero_stage,
        PlanField::micro_batch, PlanField::recompute, PlanField::optimizer_offload,
        PlanField::parameter_offload, PlanField::activation_offload})
    if (const double value = field_value(lower_risk, field); value != field_value(first, field))
      out.limits.push_back({field, Relation::equal, value});
  return out;
}

void to_json(nlohmann::json& j, const Tried& t) {
  write_object(j, t, kTriedFields);
  // The places where they belong.
  if (!t.measured_step_s) j["measured_step_s"] = nullptr;
  j["outcome"] = t.out_of_memory ? nlohmann::json("oom") : nlohmann::json();
}
void from_json(const nlohmann::json& j, Tried& t) {
  nlohmann::json stated = j;
  std::string outcome;
  if (stated.is_object()) {
    if (stated.contains("measured_step_s") && stated["measured_step_s"].is_null())
      stated.erase("measured_step_s");
    if (const auto it = stated.find("outcome"); it != stated.end()) {
      if (!it->is_null() && *it != "ok" && *it != "oom")
        throw ConfigError(
            Problem{"", "outcome", it->dump(), "\"ok\", \"oom\" (it ran out of memory), or null", ""});
      if (it->is_string()) outcome = it->get<std::string>();
      stated.erase(it);
    }
  }
  read_object(stated, t, kTriedFields);
  t.out_of_memory = outcome == "oom";
  if (t.out_of_memory && t.measured_step_s)
    throw ConfigError(Problem{"", "outcome", "oom", "no measured_step_s beside it",
                              "a layout that runs out of memory has no steady step"});
}
void to_json(nlohmann::json& j, const Shortlist& s) { write_object(j, s, kShortlist); }
void from_json(const nlohmann::json& j, Shortlist& s) {
  read_object(j, s, kShortlist);
  if (s.schema != Shortlist{}.schema)
    throw ConfigError(Problem{"", "schema", s.schema, Shortlist{}.schema, ""});
}

Shortlist load_shortlist(const std::filesystem::path& path) { return load_json<Shortlist>(path); }

void save_shortlist(const std::filesystem::path& path, const Shortlist& list) {
  write_file_atomic(path, nlohmann::json(list).dump(2) + "\n");
}

}  // namespace sextant
